"""RolloutDrafter: drafts with an engine that rolls out a whole tree for the batch in one call."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence, Set
from typing import Self

from torch import Tensor

from trtspec.backends.packing import RowGroup
from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.executor.engines.model_engine import ModelEngine
from trtspec.executor.engines.pass_rollout import StopRule
from trtspec.executor.schedule.resources import DraftCache
from trtspec.executor.step.device_rollout import DeviceRollout
from trtspec.executor.step.drafter import DraftCacheNeeds, Drafter, DrafterNeeds
from trtspec.executor.step.request import Request
from trtspec.executor.step.sampling_rows import root_columns
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.log import logger
from trtspec.ops.draft_batch import DraftBatch
from trtspec.speculative.draft_runtime import DraftRuntime


class RolloutDrafter(Drafter):
    """The base of drafters with an engine: one rollout drafts for all requests of a step.

    Trees are cut to ``needs``, which may ask for fewer steps or nodes than the engine rolls out,
    and to what each request can use. ``p_min``: see `StopRule`. longest: tokens of the longest text
    that may have drafts; None: any.
    """

    longest: int | None = None

    def __init__(self, needs: DrafterNeeds, p_min: float = 0.0) -> None:
        self.needs, self._p_min = needs, p_min

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        """The trees of all items that may have nodes, from one rollout."""
        places, items = [-1] * len(batch.items), list[ScheduledRequest]()
        for i, item in enumerate(batch.items):
            request = item.request
            if item.max_nodes > 0 and not self._is_over(request) and self._can_draft(request):
                places[i] = len(items)
                items.append(item)
        if not items:
            return DraftBatch.none(len(batch.items))
        requests = [item.request for item in items]
        depths = [min(self.needs.max_depth, self._room(request)) for request in requests]
        # A tree of fewer depths would have other nodes, so that drafts depended on the batch.
        is_chain = self.needs.max_nodes == self.needs.max_depth
        wanted = max(depths) if is_chain else self.needs.max_depth
        rule = StopRule(wanted, batch.pace, batch.gains, self._p_min)
        return DraftBatch.cut(
            places,
            self._roll_out(requests, root_columns(requests), rule),
            [request.end_tokens for request in requests],
            depths,
            [min(self.needs.max_nodes, item.max_nodes) for item in items],
        )

    def _room(self, request: Request) -> int:
        """How deep a request's drafts may be: as deep as it allows, and not beyond the longest
        text."""
        room = request.draft_depth
        return room if self.longest is None else min(room, self.longest - len(request.tokens))

    def _is_over(self, request: Request) -> bool:
        """Whether the text is too long for drafts."""
        return self.longest is not None and len(request.tokens) >= self.longest

    @abstractmethod
    def _can_draft(self, request: Request) -> bool:
        """Whether there is something to draft from for a generating request."""

    @abstractmethod
    def _roll_out(
        self, requests: Sequence[Request], sampling: Sequence[Tensor], rule: StopRule
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``tokens``, ``parents`` and ``scores [B, N-1]`` of the trees of these requests, fewer by
        the ``rule``; ``sampling`` are their columns of `SamplingColumns`."""


class CachedRolloutDrafter(RolloutDrafter):
    """A drafter whose engine keeps K/V.

    The rollout's own rows are discarded. The first pass of the next rollout feeds every row that
    the draft cache lacks: feeding an accepted token again costs one more row in a pass that reads
    all weights anyway. A text that has become too long for the network is neither drafted for nor
    fed any more.
    """

    def __init__(
        self,
        engine: ModelEngine,
        cache: DraftCache,
        needs: DrafterNeeds,
        p_min: float = 0.0,
    ) -> None:
        super().__init__(needs, p_min)
        self._engine = engine
        self._cache = cache
        self._over: set[int] = set()

    @classmethod
    def of(cls, config: TreeDecodingConfig, draft: DraftRuntime) -> Self:
        """The drafter for a draft of an open engine."""
        drafter = cls(*draft.cached, cls.needs_of(config), config.least_probability)
        drafter.longest = config.max_model_len or draft.longest
        return drafter

    @staticmethod
    @abstractmethod
    def needs_of(config: TreeDecodingConfig) -> DrafterNeeds:
        """What it needs for a config."""

    def needs_host(self) -> bool:
        """Whether the network cannot be rolled out where the target is; see `Drafter`."""
        return self.device_rollout() is None

    def device_rollout(self) -> DeviceRollout | None:
        """See `Drafter`. None for a network rolled out pass by pass, or whose cache releases rows
        or keeps states."""
        cache = self._cache
        if not self._engine.rolls_out_at_once or cache.books.drops_rows or cache.keeps_states:
            return None
        return self._on_device()

    @abstractmethod
    def _on_device(self) -> DeviceRollout:
        """The rollout, if a device can take it."""

    def _drafted_on_device(
        self, batch: StepPlan, drafted: list[tuple[int, ...]]
    ) -> list[tuple[int, ...]]:
        """What `on_accepted` returns if the device drafts, which does not say which texts have
        become too long for it."""
        for item in batch.items:
            request = item.request
            if item.samples and not request.is_finished and request.draft_depth > 0:
                self._is_over(request)
        return drafted

    def release(self, request_id: int) -> None:
        self._over.discard(request_id)

    @property
    def live_requests(self) -> Set[int]:
        return self._over

    def _is_over(self, request: Request) -> bool:
        if not super()._is_over(request):
            return False
        if request.id not in self._over:
            self._over.add(request.id)
            if not self._engine.num_texts_over:
                logger.warning(
                    "a text of %d tokens goes on without drafts: the draft's network is for %d, by "
                    "its max_position_embeddings; max_model_len says otherwise",
                    len(request.tokens),
                    self.longest,
                )
            self._engine.num_texts_over += 1
        return True

    @abstractmethod
    def _first_pass(self, requests: Sequence[Request]) -> tuple[list[RowGroup], Tensor | None]:
        """The rows that the draft cache lacks, and the target's hidden states for them if they are
        read."""

    def _roll_out(
        self, requests: Sequence[Request], sampling: Sequence[Tensor], rule: StopRule
    ) -> tuple[Tensor, Tensor, Tensor]:
        groups, hidden = self._first_pass(requests)
        return self._engine.rollout(groups, sampling, hidden, rule)


def rollout_needs(
    config: TreeDecodingConfig, *, reads_hidden: bool = False, lookahead: int | None = None
) -> DrafterNeeds:
    """The needs, known before any engine is loaded. ``lookahead``: of its cache, None without
    one."""
    tree = config.tree
    cache: tuple[DraftCacheNeeds, ...] = ()
    if lookahead is not None:
        rows = tree.num_rollout_rows
        cache = (DraftCacheNeeds(rows, lookahead, not reads_hidden, config.window),)
    return DrafterNeeds(
        max_nodes=tree.num_nodes,
        max_depth=min(tree.num_steps, tree.num_nodes),
        caches=cache,
        reads_hidden=reads_hidden,
        has_draft_engine=True,
    )
