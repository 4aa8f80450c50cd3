"""What a step makes of logits that a test makes up."""

from __future__ import annotations

from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any, NamedTuple

from torch import Tensor

from trtspec.config.kv import CacheLayout
from trtspec.executor.step.request import Request
from trtspec.executor.step.sampler import Sampler
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import TokenLogprobs
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree


class Verified(NamedTuple):
    """What became of one request: the rows that emit its tokens, and why it ends."""

    rows: list[int]
    tokens: list[int]
    logprobs: list[TokenLogprobs] | None
    reason: str | None

    @property
    def failed(self) -> bool:
        return self.reason == "error"


class _Unpacked(StepPlan):
    def pack(self, layout: CacheLayout, drafts: DraftBatch) -> Any:
        return None


def unpacked(requests: Sequence[Request]) -> StepPlan:
    """A plan in which all of them generate, for a target that reads no rows."""
    items = [ScheduledRequest(r, len(r.tokens) - 1, 1, True, 99, True) for r in requests]
    return _Unpacked(tuple(items))


def verify_trees(
    sampler: Sampler, requests: Sequence[Request], trees: Sequence[TokenTree], logits: Tensor
) -> list[Verified]:
    """Of each request, in a step that verifies these trees; ``logits [R, V]`` are of all rows."""
    for request in requests:
        sampler.begin(request)
    target: Any = SimpleNamespace(
        verifies=False, layout=None, forward=lambda packed: (logits, None)
    )
    result = sampler.launch(target, unpacked(requests), DraftBatch.of(trees)).read()
    return [
        Verified(result.accepted_rows(i), result.emitted(i), result.logprobs.get(i), end)
        for i, end in enumerate(result.ends)
    ]
