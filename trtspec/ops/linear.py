"""``linear``: x W^T + bias for few rows, at the speed of reading W, with bits that never depend on
the other rows of the call."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.errors import ConfigError
from trtspec.ops import native  # noqa: F401  registers the op

PANEL = 64
"""Output features that are packed together."""


def pack_linear(weight: Tensor) -> Tensor:
    """Pack a weight matrix for ``linear``.

    Args:
        weight: [N, K], as torch.nn.Linear has it; any dtype.
    Returns:
        packed [ceil(N / 64), K, 64] with packed[p, k, c] = weight[64 p + c, k]; zero beyond N.
    """
    if weight.dim() != 2:
        raise ConfigError(f"pack_linear: weight must be [N, K], got shape {list(weight.shape)}")
    rows, depth = weight.shape
    padded = F.pad(weight, (0, 0, 0, -rows % PANEL))
    return padded.view(-1, PANEL, depth).transpose(1, 2).contiguous()


def unpack_linear(packed: Tensor, out_features: int) -> Tensor:
    """The weight [out_features, K] that ``pack_linear`` packed."""
    return packed.transpose(1, 2).reshape(-1, packed.shape[1])[:out_features]


def linear(
    x: Tensor,
    packed: Tensor,
    bias: Tensor | None,
    out_features: int,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """x W^T + bias.

    Each output is one chain of float32 multiply-adds over k = 0 .. K - 1, plus the bias in float32,
    rounded once. So its bits depend on its row of x and on W only.

    Args:
        x: [T, K] float32, bfloat16 or float16.
        packed: [ceil(out_features / 64), K, 64] from ``pack_linear``, dtype of x.
        bias: [out_features], dtype of x, or None.
        out_features: N.
        out_dtype: float32, bfloat16 or float16; dtype of x if None.
    Returns:
        [T, out_features] of out_dtype.
    Raises:
        RuntimeError: shapes or dtypes do not fit.
    """
    result: Tensor = torch.ops.trtspec.linear(x, packed, bias, out_features, out_dtype)
    return result


def linear_reference(
    x: Tensor,
    packed: Tensor,
    bias: Tensor | None,
    out_features: int,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    """``linear`` in plain torch; the same but for the order of the additions."""
    y = x.float() @ unpack_linear(packed, out_features).float().t()
    if bias is not None:
        y = y + bias.float()
    return y.to(out_dtype or x.dtype)


@torch.library.register_fake("trtspec::linear")  # type: ignore[untyped-decorator]
def _linear_fake(
    x: Tensor,
    packed: Tensor,
    bias: Tensor | None,
    out_features: int,
    out_dtype: torch.dtype | None = None,
) -> Tensor:
    return x.new_empty((x.shape[0], out_features), dtype=out_dtype or x.dtype)
