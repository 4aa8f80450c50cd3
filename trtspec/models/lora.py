"""Lora: the low-rank adapters that stand beside one linear layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trtspec.config.adapters import AdapterSizes
from trtspec.formats.base import Norm
from trtspec.ops.linear import swiglu
from trtspec.ops.lora import lora, lora_grouped


class Lora(nn.Module):
    """Its buffers are ``a [L, K, P * R]`` and ``b [L, R, N]`` of the adapters that there is room
    for, see `trtspec.ops.lora.lora`; ``parts`` are the outputs of each layer of a fused one."""

    a: Tensor
    b: Tensor

    def __init__(
        self, sizes: AdapterSizes, in_features: int, parts: tuple[int, ...], dtype: torch.dtype
    ) -> None:
        super().__init__()
        self.parts = parts
        wide = len(parts) * sizes.rank
        self.register_buffer("a", torch.empty(sizes.number, in_features, wide, dtype=dtype))
        self.register_buffer("b", torch.empty(sizes.number, sizes.rank, sum(parts), dtype=dtype))

    def forward(
        self,
        x: Tensor,
        index: Tensor,
        out_dtype: torch.dtype | None,
        *,
        norm: Norm | None,
        gated: bool,
        residual: Tensor | None,
    ) -> Tensor:
        """The ``residual`` (or zeros) with what each row's adapter adds to the layer: the residual
        of the product of ``x``, whose other arguments these are, ``index [T] i32`` apart."""
        if not x.is_cuda:
            weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
            around = {"norm": weight, "eps": eps, "gated": gated, "residual": residual}
            return lora(x, self.a, self.b, index, self.parts, out_dtype, **around)  # type: ignore[arg-type]
        x = x if norm is None else norm(x)
        x = swiglu(x) if gated else x
        return lora_grouped(x, self.a, self.b, index, self.parts, out_dtype, residual=residual)

    def fill(self, slot: int, part: int, a: Tensor | None, b: Tensor | None) -> None:
        """Put ``a [r, K]`` and ``b [n, r]`` of one part, scaled, into the place of an adapter;
        None: it has none there. Of whatever rank up to R they are, all else there becomes zero."""
        rank, first = self.b.shape[1], sum(self.parts[:part])
        down = self.a[slot, :, part * rank : (part + 1) * rank]
        up = self.b[slot, :, first : first + self.parts[part]]
        used = 0
        if a is not None and b is not None:
            used = len(a)
            down[:, :used].copy_(a.t())
            up[:used].copy_(b.t())
        down[:, used:].zero_()
        up[used:].zero_()
