"""``moe``: each row through the experts chosen for it, of which only those are read, with bits that
never depend on the other rows of the call."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from trtspec.ops.linear import linear_reference
from trtspec.ops.linear_quantised import QuantisedWeights, linear_quantised_reference

ACTIVATIONS = ("silu", "quick_gelu", "gelu_tanh", "relu", "relu2")
"""Those of a gate that the op has, in the order by which its argument counts them."""


class ExpertWeights(NamedTuple):
    """One linear layer of each of E experts.

    packed: [E, ...], each as a linear op of trtspec takes it; which op its dtype tells: that of x
    (`linear`), or uint8 (`linear_quantised`). scales, zeros, offsets, table: [E, ...] of the
    latter, where there are any. bias: [E, outputs], dtype of x, or None.
    """

    packed: Tensor
    scales: Tensor | None = None
    zeros: Tensor | None = None
    offsets: Tensor | None = None
    bias: Tensor | None = None
    table: Tensor | None = None

    def of(self, expert: int) -> ExpertWeights:
        """Those of one expert, without the first dimension."""
        packed, *rest = self
        return ExpertWeights(packed[expert], *(None if r is None else r[expert] for r in rest))


@dataclass(frozen=True)
class Coding:
    """What the linear ops ask of quantised weights, see `QuantisedWeights`; of floats nothing
    counts."""

    bits: int = 0
    group_size: int = 0
    input_bits: int = 0
    e4m3: bool = False


@dataclass(frozen=True)
class Gating:
    """``act(g) * (u + offset)`` of a gate g and u, in float32, rounded once. activation: one of
    `ACTIVATIONS`. limit: g is cut to at most this, u to both sides, before; 0: neither."""

    activation: str = "silu"
    limit: float = 0.0
    offset: float = 0.0


def moe(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    inner_features: int,
    up: ExpertWeights,
    down: ExpertWeights,
    coding: Coding,
    gating: Gating,
    residual: Tensor | None = None,
) -> Tensor:
    """residual + sum over a row's experts of weight * down(gating(up(x))).

    The products are those of the op for the weights' kind; that of ``down`` stays in float32. The
    sum is taken in float32 in the order of the experts' numbers and rounded once, and added to the
    residual, rounded again. So a row's bits depend on its rows of the arguments, and on its experts
    only. Only experts that a row chose are read.

    Args:
        x: [T, H] float32, bfloat16 or float16.
        chosen: [T, k] int64, different ones of 0 to E - 1 in a row; -1 is an expert that is not
            here, but at another rank, and adds nothing.
        weights: [T, k] float32.
        inner_features: I.
        up: of 2 I outputs, first the gates, and H inputs.
        down: of H outputs and I inputs.
        coding: of both.
        residual: [T, H], dtype of x, or None.
    Returns:
        [T, H], dtype of x.
    Raises:
        RuntimeError: shapes or dtypes do not fit.
        ValueError: an expert that is none, or that a row chose twice.
    """
    result: Tensor = torch.ops.trtspec.moe(
        x,
        chosen,
        weights,
        inner_features,
        *up,
        *down,
        coding.bits,
        coding.group_size,
        coding.input_bits,
        coding.e4m3,
        ACTIVATIONS.index(gating.activation),
        gating.limit,
        gating.offset,
        residual,
    )
    return result


def expert_bytes_read() -> int:
    """Bytes of experts' weights that calls of `moe` by this thread have read so far, each expert's
    once a call; padding of their last outputs included."""
    count: int = torch.ops.trtspec._expert_bytes_read()
    return count


def gate(x: Tensor, gating: Gating) -> Tensor:
    """``[T, I]`` of gates and u side by side ``[T, 2I]``."""
    g, u = x.float().chunk(2, dim=-1)
    if gating.limit:
        g, u = g.clamp(max=gating.limit), u.clamp(-gating.limit, gating.limit)
    # Written out: torch's own kernels round an array's tail differently from its body.
    factor = {"silu": 1.0, "quick_gelu": 1.702}.get(gating.activation)
    if factor is not None:
        g = g / (1 + torch.exp(-factor * g))
    elif gating.activation == "gelu_tanh":
        g = g / (1 + torch.exp(-1.5957691216057308 * (g + 0.044715 * g * g * g)))
    else:
        g = torch.relu(g)
        g = g * g if gating.activation == "relu2" else g
    return (g * (u + gating.offset)).to(x.dtype)


def moe_reference(
    x: Tensor,
    chosen: Tensor,
    weights: Tensor,
    inner_features: int,
    up: ExpertWeights,
    down: ExpertWeights,
    coding: Coding,
    gating: Gating,
    residual: Tensor | None = None,
) -> Tensor:
    """``moe`` in plain torch, one expert after the other."""
    sums = torch.zeros(x.shape, dtype=torch.float32)
    for expert in range(len(up.packed)):
        rows, place = (chosen == expert).nonzero(as_tuple=True)
        if not len(rows):
            continue
        inner = _product(x[rows], up.of(expert), 2 * inner_features, coding, x.dtype)
        y = _product(gate(inner, gating), down.of(expert), x.shape[1], coding, torch.float32)
        sums[rows] += y * weights[rows, place, None]
    return sums.to(x.dtype) if residual is None else residual + sums.to(x.dtype)


def _product(
    x: Tensor, weights: ExpertWeights, outputs: int, coding: Coding, dtype: torch.dtype
) -> Tensor:
    packed, scales, zeros, offsets, bias, table = weights
    if packed.dtype == x.dtype:
        return linear_reference(x, packed, bias, outputs, dtype)
    assert scales is not None, "quantised weights have scales"
    return linear_quantised_reference(
        x,
        QuantisedWeights(packed, scales, zeros, offsets, table=table, e4m3=coding.e4m3),
        bias,
        outputs,
        coding.bits,
        coding.group_size,
        coding.input_bits,
        dtype,
    )


@torch.library.register_fake("trtspec::moe")  # type: ignore[untyped-decorator]
def _moe_fake(x: Tensor, *_: object) -> Tensor:
    return torch.empty_like(x)
