"""Every figure about speculation, computed in one place from one histogram, and engine timings.

Definitions (the same in Python, server and C++): a *step* is one target verification of one
request. It emits its accepted drafts and one token more, the target's own, unless the text ended
before; so accepted drafts = emitted tokens - 1, counted on emitted tokens only.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Protocol


class SpeculativeMetrics:
    """Counts over verify steps, of one request or of many merged.

    `histogram[a]` is the number of steps that accepted a draft tokens; the token sampled by a
    prefill is not a step.
    """

    def __init__(self) -> None:
        self.histogram: list[int] = []
        self.num_draft_tokens = 0
        self._drafted_depths: list[int] = []  # [d]: steps whose deepest draft node had depth d

    def record(
        self, emitted: int, drafted_nodes: int = 0, drafted_depth: int | None = None
    ) -> None:
        """One step: tokens emitted (1 or more), nodes verified, depth of the deepest of them
        (left out: a chain)."""
        depth = drafted_nodes if drafted_depth is None else drafted_depth
        assert 1 <= emitted <= depth + 1 and depth <= drafted_nodes, (emitted, depth, drafted_nodes)
        _count(self.histogram, emitted - 1)
        _count(self._drafted_depths, depth)
        self.num_draft_tokens += drafted_nodes

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
        depth = max(len(self._drafted_depths), len(self.histogram)) - 1
        return [sum(self.histogram[i + 1 :]) for i in range(depth)]

    @property
    def acceptance_rate_per_pos(self) -> list[float]:
        """Unconditional: accepted at that depth per step that had any draft."""
        drafts = self.num_drafts
        return [n / drafts for n in self.num_accepted_tokens_per_pos] if drafts else []

    @property
    def acceptance_length(self) -> float:
        """Emitted tokens per step (accepted + 1); 0 before the first step."""
        return self.num_emitted_tokens / self.num_steps if self.num_steps else 0.0

    @property
    def acceptance_rate(self) -> float:
        """Accepted per drafted token; 0 if nothing was drafted."""
        return self.num_accepted_tokens / self.num_draft_tokens if self.num_draft_tokens else 0.0

    def to_dict(self) -> dict[str, Any]:
        """All of it under the names of `LLM.get_metrics()`."""
        return {
            "acceptance_length": self.acceptance_length,
            "acceptance_rate": self.acceptance_rate,
            "num_steps": self.num_steps,
            "num_drafts": self.num_drafts,
            "num_draft_tokens": self.num_draft_tokens,
            "num_accepted_tokens": self.num_accepted_tokens,
            "num_emitted_tokens": self.num_emitted_tokens,
            "num_accepted_tokens_per_pos": self.num_accepted_tokens_per_pos,
            "acceptance_rate_per_pos": self.acceptance_rate_per_pos,
            "histogram": list(self.histogram),
        }


class EngineClock(Protocol):
    """What is read of an engine: its calls, and the seconds spent in them."""

    @property
    def num_calls(self) -> int: ...

    @property
    def seconds(self) -> float: ...


class ExecutorMetrics:
    """Figures of a whole executor: verify steps per request and in all, and where time went."""

    def __init__(self) -> None:
        self.total = SpeculativeMetrics()
        self.num_engine_steps = 0
        self._step_seconds = 0.0
        self._requests: dict[int, SpeculativeMetrics] = {}

    def record_step(self, seconds: float) -> None:
        """One executor step, whole: the verify steps and prefill chunks of all its requests."""
        self.num_engine_steps += 1
        self._step_seconds += seconds

    def record_verify(
        self, request_id: int, emitted: int, drafted_nodes: int, drafted_depth: int | None = None
    ) -> None:
        """One verify step of one request; see `SpeculativeMetrics.record`."""
        for metrics in (self.of(request_id), self.total):
            metrics.record(emitted, drafted_nodes, drafted_depth)

    def of(self, request_id: int) -> SpeculativeMetrics:
        """The live figures of one request; empty ones for a request without verify steps."""
        return self._requests.setdefault(request_id, SpeculativeMetrics())

    def release(self, request_id: int) -> None:
        """Forget a request; its figures stay in the total. Unknown ids are ignored."""
        self._requests.pop(request_id, None)

    def to_dict(self, target: EngineClock, draft: EngineClock | None = None) -> dict[str, Any]:
        """Everything, since the start. Times are milliseconds in all, `step_ms` the mean of an
        executor step, `host_ms` what steps took outside the engines, `host_share` its part."""
        step_ms = self._step_seconds * 1e3
        target_ms, draft_ms = target.seconds * 1e3, draft.seconds * 1e3 if draft else 0.0
        host_ms = max(step_ms - target_ms - draft_ms, 0.0)
        draft_calls = draft.num_calls if draft else 0
        return {
            **self.total.to_dict(),
            "num_engine_calls": target.num_calls + draft_calls,
            "num_target_calls": target.num_calls,
            "num_draft_calls": draft_calls,
            "num_engine_steps": self.num_engine_steps,
            "step_ms": step_ms / self.num_engine_steps if self.num_engine_steps else 0.0,
            "target_ms": target_ms,
            "draft_ms": draft_ms,
            "host_ms": host_ms,
            "host_share": host_ms / step_ms if step_ms else 0.0,
        }


def _count(bins: list[int], index: int, by: int = 1) -> None:
    bins.extend([0] * (index + 1 - len(bins)))
    bins[index] += by
