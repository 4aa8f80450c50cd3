"""All figures about speculation, computed in one place from one histogram, and engine timings.

Definitions (the same in Python, server and C++): a *step* is one target verification of one
request. It emits its accepted drafts and one more token, the target's own, unless the text ended
before; so accepted drafts = emitted tokens - 1, counted on emitted tokens only.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from trtspec.errors import TrtspecError
from trtspec.executor.overlap import Overlap
from trtspec.executor.step.drafter import Drafter


class SpeculativeMetrics:
    """Counts over verify steps, of one request or of many merged.

    `histogram[a]` is the number of steps that accepted a draft tokens; the token sampled by a
    prefill is not a step. `num_draft_tokens_per_source[s]` counts the draft tokens proposed by
    source s, the member s of a union, and `num_accepted_tokens_per_source` how many of them were
    accepted; other drafters are source 0. Tokens that processors force belong to none.
    """

    def __init__(self) -> None:
        self.histogram: list[int] = []
        self.num_draft_tokens = 0
        self.num_draft_tokens_per_source: list[int] = []
        self.num_accepted_tokens_per_source: list[int] = []
        self._drafted_depths: list[int] = []  # [d]: steps whose deepest draft node had depth d

    def __repr__(self) -> str:
        if not self.num_steps:
            return f"{type(self).__name__}(num_steps=0)"
        figures = (
            f"num_steps={self.num_steps}, num_draft_tokens={self.num_draft_tokens}, "
            f"num_accepted_tokens={self.num_accepted_tokens}, "
            f"acceptance_length={self.acceptance_length:.3g}"
        )
        return f"{type(self).__name__}({figures})"

    def record(
        self,
        emitted: int,
        drafted_nodes: int = 0,
        drafted_depth: int | None = None,
        by_source: tuple[Sequence[int], Sequence[int]] | None = None,
    ) -> None:
        """Record one step: tokens emitted (1 or more), nodes verified, depth of the deepest one
        (default: a chain), and how many of them each source proposed and had accepted (default: all
        belong to the first)."""
        depth = drafted_nodes if drafted_depth is None else drafted_depth
        assert 1 <= emitted <= depth + 1 and depth <= drafted_nodes, (emitted, depth, drafted_nodes)
        _count(self.histogram, emitted - 1)
        _count(self._drafted_depths, depth)
        self.num_draft_tokens += drafted_nodes
        if by_source is None:
            by_source = ([drafted_nodes], [emitted - 1]) if drafted_nodes else ([], [])
        self._add_sources(*by_source)

    @classmethod
    def merged(cls, parts: Iterable[SpeculativeMetrics]) -> SpeculativeMetrics:
        """The sum of several."""
        total = cls()
        for part in parts:
            total.merge(part)
        return total

    def merge(self, other: SpeculativeMetrics) -> None:
        """Add the counts of `other`."""
        for accepted, steps in enumerate(other.histogram):
            _count(self.histogram, accepted, steps)
        for depth, steps in enumerate(other._drafted_depths):
            _count(self._drafted_depths, depth, steps)
        self.num_draft_tokens += other.num_draft_tokens
        self._add_sources(other.num_draft_tokens_per_source, other.num_accepted_tokens_per_source)

    def _add_sources(self, drafted: Sequence[int], accepted: Sequence[int]) -> None:
        for source, (nodes, kept) in enumerate(zip(drafted, accepted, strict=True)):
            _count(self.num_draft_tokens_per_source, source, nodes)
            _count(self.num_accepted_tokens_per_source, source, kept)

    @property
    def num_steps(self) -> int:
        return sum(self.histogram)

    @property
    def num_drafts(self) -> int:
        """Steps that had any draft token to verify."""
        return self.num_steps - (self._drafted_depths[0] if self._drafted_depths else 0)

    @property
    def num_accepted_tokens(self) -> int:
        return sum(accepted * steps for accepted, steps in enumerate(self.histogram))

    @property
    def num_emitted_tokens(self) -> int:
        return self.num_accepted_tokens + self.num_steps

    @property
    def num_accepted_tokens_per_pos(self) -> list[int]:
        """[i]: steps that accepted a draft at depth i + 1, up to the deepest ever drafted."""
        return [sum(self.histogram[i + 1 :]) for i in range(len(self._drafted_depths) - 1)]

    @property
    def num_drafts_per_pos(self) -> list[int]:
        """[i]: steps that had a draft at depth i + 1. Steps near the end of a text draft less."""
        depth = len(self._drafted_depths) - 1
        return [sum(self._drafted_depths[i + 1 :]) for i in range(depth)]

    @property
    def acceptance_rate_per_pos(self) -> list[float]:
        """Unconditional: accepted at that depth per step that drafted to that depth."""
        pairs = zip(self.num_accepted_tokens_per_pos, self.num_drafts_per_pos, strict=True)
        return [accepted / drafts for accepted, drafts in pairs]

    @property
    def acceptance_length(self) -> float:
        """Emitted tokens per step (accepted + 1); 0 before the first step."""
        return self.num_emitted_tokens / self.num_steps if self.num_steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted per drafted token; 0 if nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    def to_dict(self) -> dict[str, Any]:
        """All figures, under the names of `LLM.get_metrics()`."""
        return {
            "acceptance_length": self.acceptance_length,
            "acceptance_rate": self.acceptance_rate,
            "num_steps": self.num_steps,
            "num_drafts": self.num_drafts,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "num_emitted_tokens": self.num_emitted_tokens,
            "num_accepted_tokens_per_pos": self.num_accepted_tokens_per_pos,
            "num_drafts_per_pos": self.num_drafts_per_pos,
            "acceptance_rate_per_pos": self.acceptance_rate_per_pos,
            "num_draft_tokens_per_source": list(self.num_draft_tokens_per_source),
            "num_accepted_tokens_per_source": list(self.num_accepted_tokens_per_source),
            "histogram": list(self.histogram),
        }


class EngineClock(Protocol):
    """What is read from an engine: its calls, the seconds spent in them, the bytes of weights and
    K/V that they had to read, and texts that became too long for it."""

    @property
    def num_calls(self) -> int: ...

    @property
    def seconds(self) -> float: ...

    @property
    def weight_bytes(self) -> int: ...

    @property
    def kv_bytes(self) -> int: ...

    @property
    def num_texts_over(self) -> int: ...


@dataclass(slots=True)
class Use:
    """Seconds of the executor and of its engines, and bytes that the engines read."""

    seconds: float = 0.0
    target_seconds: float = 0.0
    draft_seconds: float = 0.0
    weight_bytes: int = 0
    kv_bytes: int = 0

    def __add__(self, other: Use) -> Use:
        return Use(
            self.seconds + other.seconds,
            self.target_seconds + other.target_seconds,
            self.draft_seconds + other.draft_seconds,
            self.weight_bytes + other.weight_bytes,
            self.kv_bytes + other.kv_bytes,
        )

    def __sub__(self, other: Use) -> Use:
        return Use(
            self.seconds - other.seconds,
            self.target_seconds - other.target_seconds,
            self.draft_seconds - other.draft_seconds,
            self.weight_bytes - other.weight_bytes,
            self.kv_bytes - other.kv_bytes,
        )

    @property
    def host_seconds(self) -> float:
        """Time outside the engines."""
        return max(self.seconds - self.target_seconds - self.draft_seconds, 0.0)


class ExecutorMetrics:
    """Figures of a whole executor: verify steps per request and in total, where time went, and what
    was read.

    Steps in which every request generated are counted separately as *verify steps*: prefills are
    compute-bound, so they do not show how close a step comes to the memory's bandwidth.
    """

    def __init__(
        self,
        target: EngineClock | None = None,
        drafts: Sequence[EngineClock] = (),
        overlap: Overlap | None = None,
        drafter: Drafter | None = None,
    ) -> None:
        """``target`` and ``drafts``: the engines that the executor drives, whose own counts are
        reported; without them (in tests) all time is the host's. ``overlap``: runs other work
        beside them. ``drafter``: reports on its drafts."""
        self.total = SpeculativeMetrics()
        self.num_engine_steps = 0
        self.num_failed_steps = 0
        self.num_failed_steps_in_a_row = 0
        self.last_failure: TrtspecError | None = None
        self.num_preemptions = 0
        self.num_prefix_cache_queries = 0
        self.num_prefix_cache_hits = 0
        self._target = [] if target is None else [target]
        self._drafts = list(drafts)
        self._overlap = overlap
        self._drafter = drafter
        self._step_seconds = 0.0
        self._verify_steps = 0
        self._verify = Use()
        self._began = Use()
        self._requests: dict[int, SpeculativeMetrics] = {}
        self._adapters: dict[str, SpeculativeMetrics] = {}

    def start_step(self) -> None:
        """An executor step begins."""
        self._began = self._now()

    def end_step(self, verifies: bool, failure: TrtspecError | None = None) -> None:
        """The current step ends; ``verifies``: every request in it generated. ``failure``: why the
        step failed as a whole; the failure of a single request does not count."""
        used = self._now() - self._began
        self.num_engine_steps += 1
        self._step_seconds += used.seconds
        if failure is None:
            self.num_failed_steps_in_a_row = 0
        else:
            self.num_failed_steps += 1
            self.last_failure = failure
            self.num_failed_steps_in_a_row += 1
        if verifies:
            self._verify_steps += 1
            self._verify += used

    def record_preemptions(self, number: int) -> None:
        """That many requests were preempted and will be recomputed."""
        self.num_preemptions += number

    def record_prefix(self, queried: int, found: int) -> None:
        """A request with ``queried`` prompt tokens begins on ``found`` of them from the caches."""
        self.num_prefix_cache_queries += queried
        self.num_prefix_cache_hits += found

    def record_verify(
        self,
        request_id: int,
        emitted: int,
        drafted_nodes: int,
        drafted_depth: int | None = None,
        by_source: tuple[Sequence[int], Sequence[int]] | None = None,
        adapter: str | None = None,
    ) -> None:
        """One verify step of one request, read by an adapter of that name; see
        `SpeculativeMetrics.record`."""
        counted = [self.of(request_id), self.total]
        if adapter is not None:
            counted.append(self._adapters.setdefault(adapter, SpeculativeMetrics()))
        for metrics in counted:
            metrics.record(emitted, drafted_nodes, drafted_depth, by_source)

    def of(self, request_id: int) -> SpeculativeMetrics:
        """The live figures of one request; empty for a request without verify steps."""
        return self._requests.setdefault(request_id, SpeculativeMetrics())

    def release(self, request_id: int) -> None:
        """Forget a request; its figures stay in the total. Unknown ids are ignored."""
        self._requests.pop(request_id, None)

    def to_dict(self) -> dict[str, Any]:
        """Everything since the start. Times are totals in milliseconds; `step_ms` is the mean of an
        executor step, `host_ms` what steps took outside the engines, `host_share` its share; names
        with `verify_` are of the `num_verify_steps` only. `num_texts_over_draft` counts requests
        whose texts became too long for a draft, which then stops drafting for them.
        `num_prefix_cache_queries` are the prompt tokens of requests that began while prefixes are
        reused, `num_prefix_cache_hits` those of them that need no computation. `overlap_ms` is the
        time of work done while engine calls ran, `overlap_wait_ms` how much of it steps waited for.
        `drafts` has the alarms and costs of each draft network, `adapters` the `SpeculativeMetrics`
        of each adapter's requests, by its name."""
        used = self._now()
        adapters = list(self._adapters.items())  # other threads ask, and the worker adds to them
        engines = Use(self._step_seconds, used.target_seconds, used.draft_seconds)
        step_ms, host_ms = self._step_seconds * 1e3, engines.host_seconds * 1e3
        calls = [sum(e.num_calls for e in group) for group in (self._target, self._drafts)]
        verify = self._verify
        return {
            **self.total.to_dict(),
            "num_engine_calls": sum(calls),
            "num_target_calls": calls[0],
            "num_draft_calls": calls[1],
            "num_engine_steps": self.num_engine_steps,
            "num_failed_steps": self.num_failed_steps,
            "num_preemptions": self.num_preemptions,
            "num_texts_over_draft": sum(each.num_texts_over for each in self._drafts),
            "num_prefix_cache_queries": self.num_prefix_cache_queries,
            "num_prefix_cache_hits": self.num_prefix_cache_hits,
            "step_ms": step_ms / self.num_engine_steps if self.num_engine_steps else 0.0,
            "target_ms": used.target_seconds * 1e3,
            "draft_ms": used.draft_seconds * 1e3,
            "host_ms": host_ms,
            "host_share": host_ms / step_ms if step_ms else 0.0,
            "overlap_ms": self._overlap.seconds * 1e3 if self._overlap else 0.0,
            "overlap_wait_ms": self._overlap.waited_seconds * 1e3 if self._overlap else 0.0,
            "num_verify_steps": self._verify_steps,
            "verify_ms": verify.seconds * 1e3,
            "verify_target_ms": verify.target_seconds * 1e3,
            "verify_draft_ms": verify.draft_seconds * 1e3,
            "verify_host_ms": verify.host_seconds * 1e3,
            "verify_weight_bytes": verify.weight_bytes,
            "verify_kv_bytes": verify.kv_bytes,
            "drafts": [*self._drafter.reports()] if self._drafter else [],
            "adapters": {name: each.to_dict() for name, each in adapters},
        }

    def _now(self) -> Use:
        now = Use(time.perf_counter())
        for engine in self._target:
            now.target_seconds += engine.seconds
            now.weight_bytes += engine.weight_bytes
            now.kv_bytes += engine.kv_bytes
        for engine in self._drafts:
            now.draft_seconds += engine.seconds
            now.weight_bytes += engine.weight_bytes
            now.kv_bytes += engine.kv_bytes
        return now


def _count(bins: list[int], index: int, by: int = 1) -> None:
    if index >= len(bins):
        bins.extend([0] * (index + 1 - len(bins)))
    bins[index] += by
