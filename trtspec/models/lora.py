"""Lora: the low-rank adapters beside one linear layer."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from trtspec.config.adapters import AdapterSizes
from trtspec.formats.base import Norm
from trtspec.ops.linear import swiglu
from trtspec.ops.lora import lora, lora_grouped


class Lora(nn.Module):
    """Buffers ``a [L, K, P * R]`` and ``b [L, R, N]`` hold the adapters; see
    `trtspec.ops.lora.lora`. ``parts`` are the numbers of outputs of the layers that a fused one
    combines."""

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
        """``residual`` (or zeros) plus what each row's adapter adds to the layer's output: the
        residual to pass to the product of ``x``. Arguments other than ``index [T] i32`` are those
        of that product."""
        if not x.is_cuda:
            weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
            around = {"norm": weight, "eps": eps, "gated": gated, "residual": residual}
            return lora(x, self.a, self.b, index, self.parts, out_dtype, **around)  # type: ignore[arg-type]
        x = x if norm is None else norm(x)
        x = swiglu(x) if gated else x
        return lora_grouped(x, self.a, self.b, index, self.parts, out_dtype, residual=residual)

    def fill(self, slot: int, part: int, a: Tensor | None, b: Tensor | None) -> None:
        """Write ``a [r, K]`` and ``b [n, r]`` of one part, scaled, into an adapter's slot; None
        clears it. The rank may be any up to R; the rest of the slot becomes zero."""
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
