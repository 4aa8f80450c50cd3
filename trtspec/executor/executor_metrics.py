"""Figures of a whole executor: verify steps, where time went, and what was read."""

from __future__ import annotations

import operator
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from functools import reduce
from itertools import chain
from typing import Any, Protocol

from trtspec.errors import TrtspecError
from trtspec.executor.engines.buckets import Bucket
from trtspec.executor.engines.timer import CallTimes
from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.executor.overlap import Overlap
from trtspec.executor.step.drafter import Drafter


class EngineClock(Protocol):
    """What is read from an engine: its calls, the seconds spent in them, also by what they were
    padded to, the bytes of weights and K/V that they had to read, and texts that became too long
    for it."""

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

    @property
    def bucket_times(self) -> Mapping[Bucket, CallTimes]: ...


@dataclass(frozen=True, slots=True)
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


@dataclass(frozen=True)
class ExecutorFigures:
    """Figures of an executor since its start, or the sum of those of several.

    used: by all steps, without the bytes. verify: by the `num_verify_steps` in which every request
    generated. num_texts_over_draft: requests whose texts became too long for a draft, which then
    stops drafting for them. num_prefix_cache_queries: prompt tokens of requests that began while
    prefixes are reused; num_prefix_cache_hits: those of them that need no computation.
    overlap_seconds: of work done while engine calls ran; overlap_wait_seconds: how long steps
    waited for it. buckets: the target's padded calls, by what they were padded to. drafts: alarms
    and costs of each draft network, of each executor. adapters: the figures of each adapter's
    requests, by its name.
    """

    speculation: SpeculativeMetrics = field(default_factory=SpeculativeMetrics)
    used: Use = field(default_factory=Use)
    verify: Use = field(default_factory=Use)
    num_verify_steps: int = 0
    num_target_calls: int = 0
    num_draft_calls: int = 0
    num_engine_steps: int = 0
    num_failed_steps: int = 0
    num_preemptions: int = 0
    num_texts_over_draft: int = 0
    num_prefix_cache_queries: int = 0
    num_prefix_cache_hits: int = 0
    overlap_seconds: float = 0.0
    overlap_wait_seconds: float = 0.0
    buckets: Mapping[Bucket, CallTimes] = field(default_factory=dict)
    drafts: tuple[Mapping[str, Any], ...] = ()
    adapters: Mapping[str, SpeculativeMetrics] = field(default_factory=dict)

    @classmethod
    def merged(cls, parts: Sequence[ExecutorFigures]) -> ExecutorFigures:
        """The sum of several, or of none."""
        names = {name for part in parts for name in part.adapters}
        of_adapters = {
            name: SpeculativeMetrics.merged(
                part.adapters[name] for part in parts if name in part.adapters
            )
            for name in sorted(names)
        }
        zero = cls()
        sums = {
            each.name: reduce(
                operator.add, (getattr(p, each.name) for p in parts), getattr(zero, each.name)
            )
            for each in fields(cls)
            if each.name not in ("speculation", "buckets", "adapters")
        }
        whole = SpeculativeMetrics.merged(part.speculation for part in parts)
        buckets: dict[Bucket, CallTimes] = {}
        for bucket, times in chain.from_iterable(part.buckets.items() for part in parts):
            buckets[bucket] = buckets.get(bucket, CallTimes()) + times
        return cls(speculation=whole, buckets=buckets, adapters=of_adapters, **sums)

    def to_dict(self) -> dict[str, Any]:
        """Everything, under the names of `LLM.get_metrics()`. Times are totals in milliseconds;
        `step_ms` is the mean of a step, `host_ms` what steps took outside the engines, `host_share`
        its share; names with `verify_` are of the `num_verify_steps` only. `target_buckets` is a
        cost table: for each size that calls of the target are padded to, how many there were and
        the mean of their milliseconds, on CUDA of the device's."""
        step_ms, host_ms = self.used.seconds * 1e3, self.used.host_seconds * 1e3
        return {
            **self.speculation.to_dict(),
            "num_engine_calls": self.num_target_calls + self.num_draft_calls,
            "num_target_calls": self.num_target_calls,
            "num_draft_calls": self.num_draft_calls,
            "num_engine_steps": self.num_engine_steps,
            "num_failed_steps": self.num_failed_steps,
            "num_preemptions": self.num_preemptions,
            "num_texts_over_draft": self.num_texts_over_draft,
            "num_prefix_cache_queries": self.num_prefix_cache_queries,
            "num_prefix_cache_hits": self.num_prefix_cache_hits,
            "step_ms": step_ms / self.num_engine_steps if self.num_engine_steps else 0.0,
            "target_ms": self.used.target_seconds * 1e3,
            "draft_ms": self.used.draft_seconds * 1e3,
            "host_ms": host_ms,
            "host_share": host_ms / step_ms if step_ms else 0.0,
            "overlap_ms": self.overlap_seconds * 1e3,
            "overlap_wait_ms": self.overlap_wait_seconds * 1e3,
            "num_verify_steps": self.num_verify_steps,
            "verify_ms": self.verify.seconds * 1e3,
            "verify_target_ms": self.verify.target_seconds * 1e3,
            "verify_draft_ms": self.verify.draft_seconds * 1e3,
            "verify_host_ms": self.verify.host_seconds * 1e3,
            "verify_weight_bytes": self.verify.weight_bytes,
            "verify_kv_bytes": self.verify.kv_bytes,
            "target_buckets": [
                {
                    **asdict(bucket),
                    "num_calls": times.count,
                    "ms": times.seconds * 1e3 / times.count,
                }
                for bucket, times in sorted(self.buckets.items())
            ],
            "drafts": list(self.drafts),
            "adapters": {name: each.to_dict() for name, each in self.adapters.items()},
        }


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

    def end_launch(self) -> Use:
        """A step is launched, and in flight from now on; returns what was used for it. Another is
        collected next."""
        now, began = self._now(), self._began
        self._began = now
        return now - began

    def end_step(
        self, verifies: bool, failure: TrtspecError | None = None, launch: Use | None = None
    ) -> None:
        """The current step ends; ``verifies``: every request in it generated. ``failure``: why the
        step failed as a whole; the failure of a single request does not count. ``launch``: of a
        step that was in flight, what `end_launch` returned."""
        used = self._now() - self._began + (launch or Use())
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

    def figures(self) -> ExecutorFigures:
        """Everything since the start; any thread may ask."""
        used = self._now()
        adapters = list(self._adapters.items())  # the worker adds to them meanwhile
        return ExecutorFigures(
            speculation=SpeculativeMetrics.merged([self.total]),
            used=Use(self._step_seconds, used.target_seconds, used.draft_seconds),
            verify=self._verify,
            num_verify_steps=self._verify_steps,
            num_target_calls=sum(each.num_calls for each in self._target),
            num_draft_calls=sum(each.num_calls for each in self._drafts),
            num_engine_steps=self.num_engine_steps,
            num_failed_steps=self.num_failed_steps,
            num_preemptions=self.num_preemptions,
            num_texts_over_draft=sum(each.num_texts_over for each in self._drafts),
            num_prefix_cache_queries=self.num_prefix_cache_queries,
            num_prefix_cache_hits=self.num_prefix_cache_hits,
            overlap_seconds=self._overlap.seconds if self._overlap else 0.0,
            overlap_wait_seconds=self._overlap.waited_seconds if self._overlap else 0.0,
            buckets={k: v for each in self._target for k, v in list(each.bucket_times.items())},
            drafts=tuple(self._drafter.reports()) if self._drafter else (),
            adapters={name: SpeculativeMetrics.merged([each]) for name, each in adapters},
        )

    def to_dict(self) -> dict[str, Any]:
        """`figures`, under their names."""
        return self.figures().to_dict()

    def _now(self) -> Use:
        engines = [*self._target, *self._drafts]
        return Use(
            time.perf_counter(),
            sum(engine.seconds for engine in self._target),
            sum(engine.seconds for engine in self._drafts),
            sum(engine.weight_bytes for engine in engines),
            sum(engine.kv_bytes for engine in engines),
        )
