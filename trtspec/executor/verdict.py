"""Verdict: what the target says of a request's rows, and the tensors that it is made of."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from trtspec.ops.sampling import SamplingColumns


@dataclass(frozen=True)
class TokenLogprobs:
    """Raw-model log probabilities at one output position: the sampled token and the best ones."""

    token: int
    logprob: float
    top: dict[int, float]


@dataclass(frozen=True)
class Verdict:
    """What the target says about one request's rows.

    ``rows`` are the accepted row indices (root first) and ``tokens`` what each of them emits; the
    last token is the bonus. ``failed``: the model gave no usable number for the root's row. A path
    ends before a later row of that kind, which is the root's in the next step, and where the text
    ends by its tokens alone: ``reason``, 'stop' or 'length'; None if it goes on.
    """

    rows: list[int]
    tokens: list[int]
    logprobs: list[TokenLogprobs] | None
    failed: bool
    reason: str | None = None


class Judgement(NamedTuple):
    """What is said of a step's judged rows, where the target runs: `sample` of every row whose
    logits were wanted ``[R] i64``, and what `accept` returns of the requests, ``accepted_rows
    [J, P] i32`` and ``num_emitted [J] i32``; None where roots alone were judged, as there was
    nothing to walk."""

    sampled: Tensor
    accepted_rows: Tensor | None = None
    num_emitted: Tensor | None = None


class Questions(NamedTuple):
    """What an engine that samples and accepts by itself is asked about a step's rows: the sampling
    ``columns [R]`` of those whose logits are wanted, their ``parents [R] i32`` in their trees, and
    ``row_start [J + 1] i32`` of the requests to judge; on the host."""

    columns: SamplingColumns
    parents: Tensor
    row_start: Tensor
