"""A rule of acceptance has no say in steps without drafts, which take the way of all others."""

from __future__ import annotations

from typing import Any

import torch

from trtspec.config.sampling import SamplingParams
from trtspec.executor.engines.verify_call import VerifyOutputs
from trtspec.executor.step.request import Request
from trtspec.executor.step.sampler import Sampler
from trtspec.executor.step.simulation import SimulatedAcceptance
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree

from .verifying import unpacked


class Target:
    """Verifies in its own call, where it is asked to."""

    verifies = True
    layout = None

    def __init__(self) -> None:
        self.calls: list[str] = []

    def verify(self, packed: Any, inputs: Any) -> tuple[Any, None, VerifyOutputs]:
        self.calls.append("verify")
        return torch.zeros(1, 8), None, VerifyOutputs(torch.tensor([3]))

    def forward(self, packed: Any) -> tuple[Any, None]:
        self.calls.append("forward")
        return torch.zeros(3, 8), None


def test_a_rule_is_asked_of_drafts_alone() -> None:
    target, sampler = Target(), Sampler(SimulatedAcceptance([1.0, 1.0]))
    request = Request.create(0, [1], SamplingParams(max_tokens=4), seed=0, max_seq_len=16)
    sampler.begin(request)
    none, drafts = DraftBatch.none(1), DraftBatch.of([TokenTree([5, 6], [-1, 0])])
    result = sampler.launch(target, unpacked([request]), none).read()  # type: ignore[arg-type]
    assert target.calls == ["verify"] and result.tokens == [3]
    result = sampler.launch(target, unpacked([request]), drafts).read()  # type: ignore[arg-type]
    assert target.calls == ["verify", "forward"] and result.tokens[:2] == [5, 6]
