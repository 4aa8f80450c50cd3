"""ResourceManager: the KV caches of the target and of drafts, moved together or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from trtspec.backends.packing import GroupState, RowGroup
from trtspec.executor.engines.step_states import StateMoves
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.kv_cache import KVCache


class DraftCache:
    """A draft cache as its drafter sees it: where to write, and after which rows.

    Tokens may be absent from it: those that a request found in the target's cache but not in this
    one, and whose rows cannot be computed any more. Its text goes on without them.
    """

    def __init__(self, manager: KVCache) -> None:
        self._manager = manager
        self._step: dict[int, tuple[int, int, Tensor]] = {}

    @property
    def books(self) -> KVCache:
        return self._manager

    @property
    def lookahead(self) -> int:
        """How many tokens after its position a row depends on."""
        return self._manager.lookahead

    @property
    def window(self) -> int:
        """Newest tokens that a row sees; 0: all."""
        return self._manager.window

    def committed(self, request: Request) -> int:
        """Tokens of the request up to which its rows are valid, or absent: the last answer of
        `Drafter.on_accepted`."""
        known = self._step.get(request.id)
        if known is not None:
            return known[0]
        return self._manager.committed(request.id) + self._manager.absent(request.id)

    def absent(self, request: Request) -> int:
        """Tokens of the request, all before those that it is fed, that have no row in the cache."""
        known = self._step.get(request.id)
        return self._manager.absent(request.id) if known is None else known[1]

    def block_table(self, request: Request) -> Tensor:
        """The request's blocks in order of position: int32 [n], read-only."""
        known = self._step.get(request.id)
        return self._manager.block_table(request.id) if known is None else known[2]

    def rows(self, request: Request, start: int, tokens: Sequence[int]) -> RowGroup:
        """The rows for the request's positions from ``start`` on, at least `committed`, each with
        one of ``tokens``. They are placed, and counted, directly after the rows in the cache;
        released rows still count in positions."""
        blocks, gap = self.block_table(request), 0
        if self._manager.drops_rows:
            held = blocks[blocks >= 0]
            gap = (len(blocks) - len(held)) * self._manager.block_size
            blocks = held
        context = start - self.absent(request) - gap
        state = self._state(request, context, len(tokens)) if self.keeps_states else None
        return RowGroup(tokens, context, blocks, gap=gap, state=state)

    @property
    def keeps_states(self) -> bool:
        return self._manager.states.num_states > 0

    def ends(self, request: Request, start: int, end: int) -> list[int]:
        """Where rows of the request's positions from ``start`` to ``end`` are cut into calls:
        behind those at which a snapshot is made of a state, and at the end."""
        if not self.keeps_states:
            return [end]
        absent, ends = self.absent(request), list[int]()
        last = end - absent
        slot, rows = self._manager.keep(request.id, start - absent, last)
        while slot >= 0 and rows < last:
            ends.append(rows + absent)
            slot, rows = self._manager.keep(request.id, rows, last)
        return [*ends, end]

    def _state(self, request: Request, context: int, count: int) -> GroupState:
        """Of rows that end where `ends` says."""
        begins = context == self._manager.committed(request.id)
        source = self._manager.source(request.id) if begins else -1
        slot, rows = self._manager.keep(request.id, context, context + count)
        snapshot = slot if rows == context + count else -1
        return GroupState(self._manager.state(request.id), source, snapshot)

    def rows_to_offer(self, request: Request, start: int, count: int, beyond: int) -> int:
        """Of ``count`` rows that `rows` could make from ``start`` on, how many to feed so that the
        last block that they fill is offered for reuse; 0 if they fill none, nobody is to find it,
        or the request has no blocks for them. After a kept row ``beyond`` others must be fed."""
        if not self._manager.enable_reuse:
            return 0
        size, first = self._manager.block_size, start - self.absent(request)
        count = min(count, len(self.block_table(request)) * size - first)
        end = (first + count - beyond) // size * size
        return end - first + beyond if end > first else 0

    def know(self, step: dict[int, tuple[int, int, Tensor]]) -> None:
        """Facts about the requests of a step, by id, valid until the caches move again: the answers
        of `committed`, `absent` and `block_table`. Drafters ask several times, and a call into C++
        takes fifty times as long as a lookup."""
        self._step = step


class ResourceManager:
    """The only mover of `KVCache`s: the target's, and those of any number of drafts
    (cpp/include/trtspec/resource_manager.hpp).

    At step boundaries each draft's committed length is at most the target's. A `Scheduler` begins
    and frees the requests that it was given; others are begun and freed here.
    """

    def __init__(
        self,
        target: KVCache,
        drafts: Sequence[KVCache] = (),
        from_tokens: Sequence[bool] | None = None,
    ) -> None:
        """from_tokens: for each draft, whether missing rows can be computed from tokens alone at
        any time; by default they cannot."""
        self.target = target
        self.drafts = tuple(drafts)
        self.draft_caches = tuple(DraftCache(manager) for manager in self.drafts)
        flags = [False] * len(self.drafts) if from_tokens is None else from_tokens
        books: Any = torch.classes.trtspec.ResourceManager(
            [cache.address for cache in self.all],
            list(map(int, flags)),
        )
        self.native = books
        """For a `Scheduler`."""
        # To look a method up takes a third of the time of calling it.
        self._extend, self._commit = books.extend, books.commit

    @property
    def all(self) -> tuple[KVCache, ...]:
        """The target's cache, then the drafts'."""
        return self.target, *self.drafts

    def begin(self, request: Request) -> int:
        """Start a request on the prefix in the target's cache; returns its length. No draft
        shortens it: drafts that can catch up begin on what they hold of it; for the others the
        missing part is absent, so that they have the target's length."""
        self._forget_step()
        return int(self.native.begin(request.tokens.address))

    def reserve(
        self, request: Request, target_tokens: int, draft_tokens: Sequence[int] = ()
    ) -> bool:
        """Reserve that many rows in every cache; False if there is no room, and then nothing
        changes. A length that is already covered costs nothing, so empty draft_tokens reserve
        nothing."""
        self._forget_step()
        return bool(self.native.reserve(request.tokens.address, target_tokens, draft_tokens))

    def extend(self, plan: StepPlan, result: StepResult) -> list[Tensor]:
        """Append what each request of the plan emits. Returns rows of the target's cache to be
        moved before they are committed, sources and destinations, int64 [n] each, so that the
        accepted rows of each request are contiguous; empty if they are."""
        moves: list[Tensor] = self._extend(plan.table, result.start, result.tokens, result.rows)
        return moves

    def state_moves(self, plan: StepPlan, result: StepResult) -> StateMoves:
        """The moves of the target's states before the step is committed."""
        assert plan.states is not None, "the target keeps states"
        states, nodes = torch.stack(plan.states), result.drafts.counts
        of: Any = torch.classes.trtspec.ResourceManager.state_moves
        return StateMoves.of(of(plan.table, states, result.start, result.rows, nodes))

    def commit(self, plan: StepPlan, result: StepResult, drafted: Sequence[Sequence[int]]) -> None:
        """Make the kept rows valid in the target's cache, and in the drafts' caches the rows that
        `Drafter.on_accepted` returned, for each item that did not fail. Surplus blocks are
        returned, and full ones offered for reuse.

        RuntimeError unless there is a length for each, for a draft ahead of the target, and if a
        cache refuses (`KVCache.commit`).
        """
        self._forget_step()
        lengths = list(chain.from_iterable(drafted))
        self._commit(plan.table, result.start, result.failures, lengths)

    def free(self, request: Request) -> None:
        """Return all blocks of a request that was begun here."""
        self._forget_step()
        self.native.free(request.tokens.address)

    def room(self, request: Request) -> int:
        """Most rows that the request could hold now in every cache."""
        return int(self.native.room(request.tokens.address))

    def target_room(self, request: Request) -> int:
        """Most rows that the request could hold now in the target's cache."""
        return self.target.room(request.id)

    def target_committed(self, request: Request) -> int:
        return self.target.committed(request.id)

    def target_block_table(self, request: Request) -> Tensor:
        """The target's blocks in order of position: int32 [n], a copy."""
        return self.target.block_table(request.id)

    @property
    def enable_reuse(self) -> bool:
        """Whether requests may begin on what others left in the caches."""
        return self.target.enable_reuse

    @property
    def usage(self) -> float:
        """Share of the blocks in use, in the fullest cache; blocks cached for reuse count as
        free."""
        return float(self.native.usage())

    def check_invariants(self) -> None:
        """RuntimeError unless every cache's bookkeeping is consistent, and they agree; for tests
        and debugging."""
        self.native.check_invariants()

    def know(
        self,
        ids: Sequence[int],
        committed: Sequence[int],
        absent: Sequence[int],
        tables: Sequence[Tensor],
    ) -> None:
        """Facts that a step was scheduled with, for each draft cache in turn and all its requests
        (`DraftCache.know`)."""
        number = len(ids)
        for i, cache in enumerate(self.draft_caches):
            own = slice(i * number, (i + 1) * number)
            facts = zip(committed[own], absent[own], tables[own], strict=True)
            cache.know(dict(zip(ids, facts, strict=True)))

    def _forget_step(self) -> None:
        for cache in self.draft_caches:
            cache.know({})
