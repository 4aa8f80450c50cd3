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
    """What an engine that samples and accepts by itself is asked about a step's rows: the sampling
    ``columns [R]`` of those whose logits are wanted, their ``parents [R] i32`` in their trees, and
    ``row_start [J + 1] i32`` of the requests to verify; on the host."""

    columns: SamplingColumns
    parents: Tensor
    row_start: Tensor
