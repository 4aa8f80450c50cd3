"""Sampler: the rows that it judges, and what it makes of those without a usable number."""

from __future__ import annotations

import pytest
import torch

from trtspec.config.sampling import SamplingParams
from trtspec.executor.request import Request
from trtspec.executor.sampler import Sampler
from trtspec.executor.sampling_rows import SamplingRows
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


def test_rows_of_roots_alone_are_those_of_empty_trees() -> None:
    """A step without drafts takes a shorter way to the same tensors, and not with one draft."""
    requests = [
        Request.create(i, [1] * (i + 1), SamplingParams(temperature=0.5, seed=i), i, 64)
        for i in range(3)
    ]
    requests[1].tokens.append(7)
    empty = [TokenTree.empty()] * 3
    columns, trees = SamplingRows().tensors(requests, empty)
    wanted, wanted_trees = TokenTree.verify_rows(empty, [0, 1, 0], columns[:6])
    for made, right in zip([*columns, *trees], [*wanted, *wanted_trees], strict=True):
        assert made.dtype == right.dtype and made.equal(right)
    drafted, _ = SamplingRows().tensors(requests, [TokenTree.chain([5]), *empty[:2]])
    assert drafted[6].tolist() == [0, 1, 1, 0]
