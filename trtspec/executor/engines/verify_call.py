"""What an engine that samples and accepts by itself is asked about rows, and what it says."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor

from trtspec.ops.sampling import SamplingColumns


class VerifyOutputs(NamedTuple):
    """What is said of a step's verified rows, where the target runs: `sample` of every row whose
    logits were wanted ``[R] i64``, and what `accept` returns of the requests, ``accepted_rows
    [J, P] i32`` and ``num_emitted [J] i32``; None where roots alone were verified, as there was
    nothing to walk."""

    sampled: Tensor
    accepted_rows: Tensor | None = None
    num_emitted: Tensor | None = None


class VerifyInputs(NamedTuple):
    """What is asked about a step's rows, of those whose logits are wanted: the sampling ``columns
    [R]``; ``tokens [R] i64``, 0 for roots, and ``parents [R] i32``, -1 for roots, of their trees;
    and ``row_start [B + 1] i32`` of the requests. An engine that samples and accepts by itself has
    the tokens among its rows."""

    columns: SamplingColumns
    tokens: Tensor
    parents: Tensor
    row_start: Tensor
