"""Inputs and outputs of engines that sample and accept within their call."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trtspec.executor.engines.buckets import greedy_sampling
from trtspec.ops.sampling import SamplingColumns


class VerifyOutputs(NamedTuple):
    """The result for a step's verified rows, on the target's device: `sample` of every row whose
    logits were wanted ``[R] i64``, and the results of `accept` per request, ``accepted_rows [J, P]
    i32`` and ``num_emitted [J] i32``; None if only roots were verified, so there was nothing to
    walk."""

    sampled: Tensor
    accepted_rows: Tensor | None = None
    num_emitted: Tensor | None = None


class VerifyInputs(NamedTuple):
    """The inputs for a step's rows whose logits are wanted: the sampling ``columns [R]``; ``tokens
    [R] i64``, 0 for roots, and ``parents [R] i32``, -1 for roots, of their trees; and ``row_start
    [B + 1] i32`` of the requests. An engine that samples and accepts within its call has the tokens
    among its rows."""

    columns: SamplingColumns
    tokens: Tensor
    parents: Tensor
    row_start: Tensor


NOTHING_TO_VERIFY = VerifyInputs(
    greedy_sampling(0),
    torch.zeros(0, dtype=torch.int64),
    torch.zeros(0, dtype=torch.int32),
    torch.zeros(1, dtype=torch.int32),
)
