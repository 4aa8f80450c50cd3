"""Drafter: the protocol between the executor and whatever drafts."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Any, Protocol

from trtspec.config.draft_window import DraftWindow
from trtspec.errors import ConfigError
from trtspec.executor.engines.counted_engine import CountedEngine
from trtspec.executor.step.device_rollout import DeviceRollout
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch


@dataclass(frozen=True)
class DraftCacheNeeds:
    """What a drafter needs from one KV cache of its own.

    slots: rows that a rollout writes beyond the request's own tokens. lookahead: how many tokens
    after its position a kept row depends on (`KVCacheManager`): 1 for a row computed from the
    target's hidden state at its position and from the next token. from_tokens: rows are computed
    from the request's tokens alone, so missing rows can be fed at any time. window: the rows that
    are kept; None: all, or as the sliding windows of the network's layers say.
    """

    slots: int = 0
    lookahead: int = 0
    from_tokens: bool = False
    window: DraftWindow | None = None

    def __post_init__(self) -> None:
        for name in ("slots", "lookahead"):
            value = getattr(self, name)
            if value < 0:
                raise ConfigError(f"{name}={value} of a draft cache must be 0 or more")


@dataclass(frozen=True)
class DrafterNeeds:
    """What a drafter may use in a step, per request; all are maxima, all 0 for no speculation.

    max_nodes: nodes in its tree, without the root. max_depth: depth of the deepest node. caches:
    the drafter's own KV caches, in the order in which `on_accepted` reports on them. reads_hidden:
    whether it reads the target's hidden states. reads_every_row: whether it needs the hidden states
    of every row of a request, and keeps them while the request runs; then no row may come from the
    prefix cache. has_draft_engine: whether it drafts with a network of the engine folder.
    """

    max_nodes: int = 0
    max_depth: int = 0
    caches: tuple[DraftCacheNeeds, ...] = ()
    reads_hidden: bool = False
    reads_every_row: bool = False
    has_draft_engine: bool = False

    def __post_init__(self) -> None:
        for name in ("max_nodes", "max_depth"):
            value = getattr(self, name)
            if value < 0:
                raise ConfigError(f"{name}={value} of a drafter must be 0 or more")
        if (self.max_nodes == 0) != (self.max_depth == 0):
            raise ConfigError(
                f"a drafter's max_nodes={self.max_nodes} and max_depth={self.max_depth} must be "
                f"both 0 (no drafts) or both positive"
            )
        if self.max_depth > self.max_nodes:
            raise ConfigError(
                f"max_depth={self.max_depth} needs at least as many nodes, max_nodes is "
                f"{self.max_nodes}"
            )

    @classmethod
    def of_all(cls, members: Sequence[DrafterNeeds], max_nodes: int) -> DrafterNeeds:
        """The needs of drafters whose trees are merged into one of at most ``max_nodes`` nodes."""
        nodes = min(max_nodes, sum(needs.max_nodes for needs in members))
        return cls(
            max_nodes=nodes,
            max_depth=min(max(needs.max_depth for needs in members), nodes),
            caches=tuple(cache for needs in members for cache in needs.caches),
            reads_hidden=any(needs.reads_hidden for needs in members),
            reads_every_row=any(needs.reads_every_row for needs in members),
            has_draft_engine=any(needs.has_draft_engine for needs in members),
        )


class Drafter(Protocol):
    """A source of draft tokens. The executor asks `needs`, never which method it is.

    Drafters inherit `profile` and `skips_drafts` unless they consider the cost of drafting,
    `needs_host` and `device_rollout` unless a device can draft for them, and `reports` unless they
    are watched.
    """

    needs: DrafterNeeds

    def profile(self, target: CountedEngine, max_requests: int, max_rows: int) -> None:
        """Measure the cost of engine calls before there are requests: calls of steps of at most
        ``max_requests`` requests and ``max_rows`` rows in all. Inherited: measures nothing."""
        return

    def skips_drafts(self, num_requests: int) -> bool:
        """Whether a step in which that many requests generate is to have no drafts. Asked once per
        step, before rows and blocks are reserved for them. Inherited: never."""
        return False

    def needs_host(self) -> bool:
        """Whether the next step's drafts are made on the host, from tokens that must be known by
        then; asked once per step by executors whose engine otherwise drafts by itself. Inherited:
        always."""
        return True

    def device_rollout(self) -> DeviceRollout | None:
        """What drafts on the device for an engine that advances by itself; it does so in every step
        for which nothing `needs_host`. None, as inherited: nothing can."""
        return None

    def reports(self) -> Sequence[Mapping[str, Any]]:
        """Findings about each draft that is watched, for metrics; any thread may ask. Inherited:
        nothing."""
        return ()

    @abstractmethod
    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        """The draft nodes of `batch.items`, in order: at most max_nodes for each, none deeper than
        request.draft_depth."""

    @abstractmethod
    def on_accepted(self, batch: StepPlan, result: StepResult) -> Sequence[tuple[int, ...]]:
        """The result for `batch.items`, in order, prefill chunks included. Called after
        `request.tokens` was extended and before finished requests are released.

        Returns for each item how many rows are now valid in each of `needs.caches`: no fewer than
        before, at most start + num_kept (the target's new committed length). If the device drafts,
        that is ``result.drafted``, and there are no hidden states.
        """

    @abstractmethod
    def release(self, request_id: int) -> None:
        """Forget a finished, aborted or preempted request; unknown ids are ignored."""

    @property
    @abstractmethod
    def live_requests(self) -> Set[int]:
        """The ids of requests of which the drafter or its members hold anything; none of a released
        request."""


class NoDrafter(Drafter):
    """No speculation: every step emits the target's own token."""

    needs = DrafterNeeds()
    live_requests: Set[int] = frozenset()

    def skips_drafts(self, num_requests: int) -> bool:
        return True

    def needs_host(self) -> bool:
        return False

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        return DraftBatch.none(len(batch.items))

    def on_accepted(self, batch: StepPlan, result: StepResult) -> list[tuple[int, ...]]:
        return [()] * len(batch.items)

    def release(self, request_id: int) -> None:
        pass
