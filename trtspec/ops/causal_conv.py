"""``causal_conv``: a short convolution over the newest rows of each path, then SiLU."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import silu

from trtspec.ops import native  # noqa: F401  registers the op
from trtspec.ops.state_walk import StateWalk


def causal_conv(
    x: Tensor, weight: Tensor, bias: Tensor | None, tail: Tensor, kept: Tensor, walk: StateWalk
) -> Tensor:
    """For every channel ``silu(bias + sum over j of weight[j] * the input W - 1 - j rows before)``,
    along each row's own path: its ancestors in the call, preceded by the newest committed inputs.

    Args:
        x: [T, C] float32, bfloat16 or float16; arithmetic is in float32, rounded once.
        weight: [W, C], a row's own weight last; bias: [C]; dtype of x.
        tail: [S, W - 1, C], dtype of x: a state is the newest inputs, oldest first. Written.
        kept: [>= T, 1, C], dtype of x. The inputs of draft rows are written.
        walk: see `StateWalk`.
    Returns:
        [T, C], dtype of x; padding is zero. The bits of a row depend only on its own path.
    Raises:
        RuntimeError: shapes or dtypes do not fit.
        ValueError: a slot, a row or a mask of the walk is out of range, or a state is named twice.
    """
    result: Tensor = torch.ops.trtspec.causal_conv(x, weight, bias, tail, kept, *walk)
    return result


def causal_conv_reference(
    x: Tensor, weight: Tensor, bias: Tensor | None, tail: Tensor, kept: Tensor, walk: StateWalk
) -> Tensor:
    """``causal_conv`` in plain torch, in float64 if that is the dtype of x."""
    wide = torch.promote_types(x.dtype, torch.float32)
    out, parents, newest = torch.zeros_like(x), walk.parents().tolist(), dict[int, Tensor]()
    for b, slot, rows, certain in walk.spans():
        committed = tail[slot] if walk.context_lens[b] else torch.zeros_like(tail[slot])
        for row in rows:
            before = committed if parents[row] < 0 else newest[parents[row]]
            inputs = torch.cat([before, x[row : row + 1]])
            newest[row] = inputs[1:]
            total = (inputs.to(wide) * weight.to(wide)).sum(0)
            out[row] = silu(total if bias is None else total + bias.to(wide)).to(x.dtype)
            if row not in certain:
                kept[row, 0] = x[row]
        tail[slot] = newest[certain[-1]]
    return out


@torch.library.register_fake("trtspec::causal_conv")  # type: ignore[untyped-decorator]
def _causal_conv_fake(x: Tensor, *others: Tensor) -> Tensor:
    return x.new_empty(x.shape)
