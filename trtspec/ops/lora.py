"""``lora``: what each row's own low-rank adapter adds to a product, beside which it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.ops import native  # noqa: F401  registers the op
from trtspec.ops.linear import output_like, rms_norm, swiglu


def lora(
    x: Tensor,
    a: Tensor,
    b: Tensor,
    index: Tensor,
    parts: Sequence[int],
    out_dtype: torch.dtype | None = None,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """residual + f(x) A B of the row's adapter, where f is as in `trtspec.ops.linear.linear`, so
    that this can be the residual of that product. A row without an adapter has its residual, or
    zeros.

    Several layers that are fused along their outputs have adapters of their own: part p takes the
    elements ``p * R`` to ``(p + 1) * R`` of f(x) A. Scales of adapters are in B. Arithmetic is in
    float32, rounded once, and the sum with the residual again. The bits of a row depend on its rows
    of the arguments and on its adapter only; adapters of no row are not read.

    Args:
        x: [T, K] float32, bfloat16 or float16; with ``gated`` [T, 2K].
        a: [L, K, P * R], dtype of x: A of each of L adapters.
        b: [L, R, N], dtype of x: B of each.
        index: [T] int32: the adapter of a row; -1: none.
        parts: outputs of each of P parts; their sum is N.
        out_dtype: float32, bfloat16 or float16; dtype of x if None.
        norm, eps: of `rms_norm`, if it is to be taken of x first.
        gated: whether `swiglu` is; not with ``norm``.
        residual: [T, N] of out_dtype, or None.
    Returns:
        [T, N] of out_dtype.
    Raises:
        RuntimeError: shapes or dtypes do not fit.
        ValueError: an adapter that is none.
    """
    result: Tensor = torch.ops.trtspec.lora(
        x, a, b, index, parts, out_dtype, norm=norm, eps=eps, gated=gated, residual=residual
    )
    return result


def lora_reference(
    x: Tensor,
    a: Tensor,
    b: Tensor,
    index: Tensor,
    parts: Sequence[int],
    out_dtype: torch.dtype | None = None,
    *,
    norm: Tensor | None = None,
    eps: float = 0.0,
    gated: bool = False,
    residual: Tensor | None = None,
) -> Tensor:
    """``lora`` in plain torch, one adapter after the other."""
    if norm is not None:
        x = rms_norm(x, norm, eps)
    x = swiglu(x) if gated else x
    y = x.new_zeros((len(x), b.shape[2]), dtype=torch.float32)
    for adapter in range(len(a)):
        own = index == adapter
        inner = torch.split(x[own].float() @ a[adapter].float(), b.shape[1], dim=1)
        weights = torch.split(b[adapter].float(), list(parts), dim=1)
        y[own] = torch.cat([h @ w for h, w in zip(inner, weights, strict=True)], dim=1)
    rounded = y.to(out_dtype or x.dtype)
    return rounded if residual is None else residual + rounded


def lora_grouped(
    x: Tensor,
    a: Tensor,
    b: Tensor,
    index: Tensor,
    parts: Sequence[int],
    out_dtype: torch.dtype | None = None,
    *,
    residual: Tensor | None = None,
) -> Tensor:
    """``lora`` without a prologue by torch's grouped product, for CUDA: of a fixed shape whatever
    the index says, so that a CUDA graph can hold it. f(x) A is rounded to the dtype of x."""
    key, order = torch.sort(torch.where(index < 0, len(a), index), stable=True)
    every = torch.arange(len(a), device=x.device)
    ends = torch.searchsorted(key, every, right=True).int()
    inner = torch.split(F.grouped_mm(x[order], a, offs=ends), b.shape[1], dim=1)
    weights = torch.split(b, list(parts), dim=2)
    made = [F.grouped_mm(h.contiguous(), w, offs=ends) for h, w in zip(inner, weights, strict=True)]
    # Rows behind the last group are those without an adapter, and were not written.
    y = torch.where((key < len(a)).unsqueeze(1), torch.cat(made, dim=1), 0)
    back = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=x.device))
    rounded = y[back].to(out_dtype or x.dtype)
    return rounded if residual is None else residual + rounded


@torch.library.register_fake("trtspec::lora")  # type: ignore[untyped-decorator]
def _lora_fake(
    x: Tensor,
    a: Tensor,
    b: Tensor,
    index: Tensor,
    parts: Sequence[int],
    out_dtype: torch.dtype | None = None,
    **_: Any,
) -> Tensor:
    return output_like(x, b.shape[2], out_dtype)
