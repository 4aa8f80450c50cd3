"""A random schedule of a `HiddenStateDrafter` over engines that only keep books of their rows."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from trtspec.backends.packing import RowBatch, RowGroup
from trtspec.config.kv import CacheLayout
from trtspec.config.sampling import SamplingParams
from trtspec.executor.engines.pass_rollout import StopRule
from trtspec.executor.py_executor import PyExecutor
from trtspec.executor.schedule.kv_cache import KVCacheManager
from trtspec.executor.schedule.resources import ResourceManager
from trtspec.executor.schedule.scheduler import Scheduler
from trtspec.executor.step.drafter import DraftCacheNeeds
from trtspec.executor.step.request import Request
from trtspec.executor.text.stopping import StopChecker
from trtspec.ops.sequence import UNLIMITED
from trtspec.speculative.eagle.options import Eagle3DecodingConfig
from trtspec.speculative.hidden_state_drafter import HiddenStateDrafter, hidden_state_needs

Path = tuple[int, ...]


NOTHING: Path = (-1,)


@dataclass(frozen=True)
class World:
    seed: int
    num_requests: int
    max_prompt: int
    max_output: int
    vocab: int
    block: int
    spare_blocks: int
    draft_spare_blocks: int
    batch: int
    spare_rows: int
    topk: int
    depth: int
    skill: float
    reuse: bool
    modules: int  # 0: an EAGLE network

    @property
    def lookahead(self) -> int:
        return self.modules or 1

    @property
    def shape(self) -> tuple[int, int]:
        """The width and depth of the drafts asked for; modules draft a chain."""
        return (1, min(self.depth, self.modules)) if self.modules else (self.topk, self.depth)


CHOICES: dict[str, Sequence[Any]] = {
    "num_requests": range(1, 7),
    "max_prompt": (1, 6, 6, 20),
    "max_output": (1, 4, 12, 30),
    "vocab": (2, 3, 8),
    "block": range(1, 5),
    "spare_blocks": (0, 1, 2, 4, 12),
    "draft_spare_blocks": (0, 1, 3, 12),
    "batch": range(1, 5),
    "spare_rows": (0, 1, 4, 10, 30),
    "topk": (1, 1, 2),
    "depth": range(1, 5),
    "skill": (0.0, 0.6, 0.9, 1.0),
    "reuse": (True, True, True, False),
    "modules": (0, 0, 1, 2, 3, 5),
}


def random_world(seed: int) -> World:
    rng = random.Random(seed)
    return World(seed, **{name: rng.choice(values) for name, values in CHOICES.items()})


class Book:
    """An engine's cache as a table slot -> prefix that the row was made of."""

    def __init__(self, block: int) -> None:
        self.layout = CacheLayout(tokens_per_block=block, blocks_per_sequence=99, mask_words=1)
        self.rows: dict[int, Path] = {}

    def slot(self, blocks: Sequence[int], position: int) -> int:
        size = self.layout.tokens_per_block
        return int(blocks[position // size]) * size + position % size


class FakeTarget(Book):
    """States are numbers of prefixes; the next token is a function of the prefix."""

    verifies = False

    def __init__(self, block: int, next_token: Callable[[Path], int], vocab: int) -> None:
        super().__init__(block)
        self.prefixes: list[Path] = []
        self.next_token, self.vocab = next_token, vocab

    def forward(self, packed: RowBatch) -> tuple[Tensor, Tensor]:
        rows, logits_rows, *_ = packed
        ids, slots = rows.input_ids.tolist(), rows.slot_mapping.tolist()
        masks = rows.tree_mask[:, 0].tolist()
        starts, hidden, reached = rows.query_start.tolist(), [], []
        for i, context in enumerate(rows.context_lens.tolist()):
            first, end = starts[i : i + 2]
            before = self.rows[self.slot(rows.block_tables[i], context - 1)] if context else ()
            assert len(before) == context
            for row in range(first, end):
                seen = [*range(first, row + 1)]
                if rows.is_tree[i]:
                    seen = [j for j in seen if masks[row] >> (j - first) & 1]
                reached.append((*before, *(ids[j] for j in seen)))
                self.rows[slots[row]] = reached[-1]
                hidden.append([float(len(self.prefixes))])
                self.prefixes.append(reached[-1])
        logits = torch.zeros(len(logits_rows), self.vocab)
        for own, row in zip(logits, logits_rows.tolist(), strict=True):
            own[self.next_token(reached[row])] = 9.0
        return logits, torch.tensor(hidden)

    def compact(self, src: Tensor, dst: Tensor) -> None:
        moved = [self.rows[slot] for slot in src.tolist()]
        self.rows.update(zip(dst.tolist(), moved, strict=True))


class FakeHead(Book):
    """Checks what it is fed; its drafts are right with a probability of ``skill``."""

    def __init__(self, target: FakeTarget, world: World, rng: random.Random) -> None:
        super().__init__(world.block)
        self.target, self.world, self.rng = target, world, rng
        self.vocab_size = world.vocab

    rolls_first_step = True

    def feed(self, groups: Sequence[RowGroup], hidden: Tensor) -> None:
        states = [self.target.prefixes[int(number)] for number in hidden[:, 0].tolist()]
        assert len(states) == sum(len(group.tokens) for group in groups)
        for group in groups:
            assert group.tokens
            for position in range(group.context, group.context + len(group.tokens)):
                state = states.pop(0)
                if position:
                    # Behind absent tokens the row before is of an earlier position of the text.
                    before = self.rows[self.slot(group.blocks, position - 1)][: len(state)]
                    assert before == state[: len(before)], "another text's row"
                read = group.tokens[position - group.context :][: self.world.lookahead]
                unknown = NOTHING * (self.world.lookahead - len(read))
                self.rows[self.slot(group.blocks, position)] = (*state, *read, *unknown)

    def rollout(
        self,
        groups: Sequence[RowGroup],
        sampling: Sequence[Tensor],
        hidden: Tensor,
        rule: StopRule,
    ) -> tuple[Tensor, Tensor, Tensor]:
        self.feed(groups, hidden)
        reached = [len(self.target.prefixes[int(number)]) for number in hidden[:, 0].tolist()]
        k, depth = self.world.shape
        if self.world.modules:
            depth = self.world.modules
        elif rule.max_depth == 1:
            depth = 1
        tokens, parents = [], []
        for group in groups:
            end = group.context + len(group.tokens)
            if not self.world.modules:
                for offset in range(k * (depth - 1)):
                    self.rows[self.slot(group.blocks, end + offset)] = NOTHING
            of_rows, reached = reached[: len(group.tokens)], reached[len(group.tokens) :]
            known = of_rows[-1] + 1  # tokens of the text
            prefix = self.rows[self.slot(group.blocks, end - 1)][:known]
            own: list[int] = []
            for _ in range(depth):
                right = self.target.next_token(prefix)
                wrong = (right + self.rng.randrange(1, self.world.vocab)) % self.world.vocab
                best, other = (
                    (right, wrong) if self.rng.random() < self.world.skill else (wrong, right)
                )
                own += [best, other][:k]
                prefix = (*prefix, best)
            for row, state in enumerate(of_rows, group.context) if self.world.modules else ():
                # The modules read the drafts in place of tokens that are not known yet.
                slot = self.slot(group.blocks, row)
                length = state + self.world.lookahead
                self.rows[slot] = (*self.rows[slot][:known], *own)[:length]
            tokens.append(own)
            parents.append([-1 if i < k else (i // k - 1) * k for i in range(len(own))])
        scores = -torch.arange(float(k * depth)).expand(len(groups), k * depth)
        return torch.tensor(tokens), torch.tensor(parents, dtype=torch.int32), scores


class Schedule:
    """One run of the real executor."""

    drafter_type = HiddenStateDrafter
    unkeyed = 0
    """Tokens that a draft row depends on but the cache does not know of."""

    def __init__(self, world: World) -> None:
        self.world, self.rng = world, random.Random(world.seed)
        self.events: Counter[str] = Counter()
        rng, longest = self.rng, world.max_prompt + world.max_output
        bases = [[rng.randrange(world.vocab) for _ in range(world.max_prompt)] for _ in range(2)]
        self.arrivals = []
        for id in range(world.num_requests):
            prompt = rng.choice(bases)[: rng.randint(1, world.max_prompt)]
            if rng.random() < 0.5:
                prompt[-1] = rng.randrange(world.vocab)
            params = SamplingParams(max_tokens=rng.randint(1, world.max_output))
            limit = rng.choice((UNLIMITED, UNLIMITED, 0, 1))
            request = Request.create(id, prompt, params, 0, longest, max_draft_len=limit)
            self.arrivals.append(request)
        k, depth = world.shape
        config = Eagle3DecodingConfig(
            speculative_model="x", max_draft_len=depth, topk=k, num_draft_tokens=k * depth + 1
        )
        needs = drafter_needs = hidden_state_needs(config)
        if world.modules:
            needs = replace(needs, caches=(DraftCacheNeeds(0, world.lookahead),))
        most = max(r.num_prompt_tokens + r.max_output_tokens for r in self.arrivals)
        size = world.block
        self.resources = ResourceManager(
            KVCacheManager(
                -(-(most + needs.max_nodes) // size) + world.spare_blocks, size, world.reuse
            ),
            [
                KVCacheManager(
                    -(-(most + cache.slots) // size) + world.draft_spare_blocks,
                    size,
                    world.reuse,
                    lookahead=cache.lookahead - self.unkeyed,
                )
                for cache in needs.caches
            ],
        )
        self.target = FakeTarget(size, self.next_token, world.vocab)
        self.head: Any = FakeHead(self.target, world, rng)
        self.drafter = self.drafter_type(self.head, self.resources.draft_caches[0], drafter_needs)
        self.drafter._not_final += self.unkeyed
        scheduler = Scheduler(
            self.resources, world.batch, world.batch + world.spare_rows, longest, needs
        )
        target: Any = self.target
        self.executor = PyExecutor(target, self.resources, scheduler, self.drafter)
        self.scheduler = scheduler
        self.began: dict[int, int] = {}  # rows that a request found in the draft's cache
        self.live: dict[int, Request] = {}
        self._watch_feeding()

    def next_token(self, prefix: Path) -> int:
        return hash(prefix) % self.world.vocab

    def _watch_feeding(self) -> None:
        """Every final row once: a request's are fed in order, from where its cache began."""
        next_row: dict[int, int] = {}
        group, release = self.drafter._group, self.drafter.release

        def watched_group(request: Request, start: int, count: int) -> RowGroup:
            assert start == next_row[request.id], "a row is fed twice or left out"
            next_row[request.id] = start + max(count + 1 - self.world.lookahead, 0)
            self.events["waited for a row"] += count > self.world.shape[1] + self.world.lookahead
            self.events["fed again"] += next_row[request.id] < start + count
            return group(request, start, count)

        def watched_release(request_id: int) -> None:
            next_row.pop(request_id, None)
            release(request_id)

        self.drafter._group = watched_group  # type: ignore[method-assign]
        self.drafter.release = watched_release  # type: ignore[method-assign]
        schedule = self.scheduler.schedule

        def watched_schedule() -> Any:
            batch = schedule()
            self.events["preempted"] += len(batch.preempted)
            for item in batch.items:
                if item.request.id not in next_row:
                    next_row[item.request.id] = item.start
                    (draft,) = self.resources.drafts
                    self.began[item.request.id] = held = draft.committed(item.request.id)
                    self.events["reused"] += item.start > 0
                    lacks = draft.absent(item.request.id) > 0
                    self.events["lacked all"] += lacks and not held
                    self.events["lacked some"] += lacks and held > 0
                self.events["chunk"] += not item.samples
                self.events["no drafts"] += item.is_generation and item.max_nodes == 0
            return batch

        self.scheduler.schedule = watched_schedule  # type: ignore[method-assign]

    def check(self) -> None:
        self.resources.check_invariants()
        (draft,) = self.resources.drafts
        for id, committed in self.resources.target.committed_lengths().items():
            blocks = self.resources.target.block_table(id).tolist()
            held = [self.target.rows[self.target.slot(blocks, row)] for row in range(committed)]
            tokens = tuple(self.live[id].tokens)
            assert held == [tokens[: row + 1] for row in range(committed)], ("target", id)
        for id, committed in draft.committed_lengths().items():
            blocks, tokens = draft.block_table(id).tolist(), tuple(self.live[id].tokens)
            reached = 0
            for row in range(committed):
                held = self.head.rows[self.head.slot(blocks, row)]
                position = len(held) - 1 - self.world.lookahead
                assert held == tokens[: len(held)], ("draft", id, row)
                assert position >= reached, ("draft", id, row)
                reached = position + 1
                if row >= self.began[id] or not draft.absent(id):
                    assert position == row + draft.absent(id), ("draft", id, row)

    def step(self) -> None:
        outputs = self.executor.step()
        for output in outputs:
            if output.error is not None:
                raise output.error
            request = output.request
            self.events["accepted"] += max(len(output.tokens) - 1, 0)
            if request.is_finished:
                del self.live[request.id]
        pending = self.drafter._pending
        running = self.live.keys() - {r.id for r in self.scheduler.waiting}
        assert set(pending) <= running, "states of nobody are held"
        assert not self.drafter._fed
        for id in running:
            is_off = not self.live[id].may_draft
            self.events["not drafted for"] += is_off
            assert not (is_off and id in pending), "states are kept that nobody reads"
        for id, parts in pending.items():
            states = parts.joined()
            assert len(states) == parts.num_rows
            request = self.live[id]
            rows = self.resources.draft_caches[0].committed(request) + len(states)
            assert rows == self.resources.target_committed(request)
        self.check()

    def run(self) -> Counter[str]:
        requests = list(self.arrivals)
        while self.arrivals or self.live:
            while self.arrivals and self.rng.random() < 0.5:
                request = self.arrivals.pop(0)
                self.live[request.id] = request
                stop = StopChecker(request.params, ())
                self.executor.add(request, stop)
            if self.live and self.rng.random() < 0.03:
                id = self.rng.choice(list(self.live))
                self.executor.abort(id)
                del self.live[id]
                self.events["aborted"] += 1
            if self.live:
                self.step()
        for request in requests:
            for position in range(request.num_prompt_tokens, len(request.tokens)):
                right = self.next_token(tuple(request.tokens[:position]))
                assert request.tokens[position] == right
        assert all(manager.num_free_blocks == manager.num_blocks for manager in self.resources.all)
        assert not self.drafter.live_requests
        return self.events
