"""Sampler: what it makes of rows without a usable number."""

from __future__ import annotations

import pytest
import torch

from trtspec.config.sampling import SamplingParams
from trtspec.executor.request import Request
from trtspec.executor.sampler import Sampler
from trtspec.ops.tree import TokenTree

from .judging import judge

V = 12


@pytest.mark.parametrize("bad", [0, 1, 2, 3], ids=["root", "first", "last", "beside"])
def test_an_unusable_row_takes_nothing_from_those_before_it(bad: int) -> None:
    """As if the step had ended there: the row fails when it is the first of the next one."""
    request = Request.create(
        7, [1, 2], SamplingParams(max_tokens=9, temperature=0, logprobs=1), 0, 100
    )
    tree = TokenTree([5, 6, 3], [-1, 0, -1])
    logits = torch.zeros(4, V)
    for row, token in enumerate((5, 6, 4, 8)):
        logits[row, token] = 9.0
    logits[bad] = torch.nan
    (verdict,) = judge(Sampler(), [request], [tree], logits)
    assert verdict.failed == (bad == 0)
    if not verdict.failed:
        whole = [5, 6, 4]
        assert verdict.tokens == (whole if bad == 3 else whole[:bad])
        assert verdict.rows == [0, 1, 2][: len(verdict.tokens)]
        assert [entry.token for entry in verdict.logprobs or ()] == verdict.tokens
