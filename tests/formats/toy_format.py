"""A weight format of another package, as its entry point names it: rows of half precision."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.formats.base import BufferSpec, Norm, Rounding, WeightFormat
from trtspec.formats.registry import FormatKind
from trtspec.formats.stored import StoredWeight
from trtspec.ops.linear import swiglu


@dataclass(frozen=True)
class HalfFormat(WeightFormat):
    """``halves [N, K] f16``, multiplied in float32 by plain torch, row by row."""

    name = "toy"
    is_rounded = True

    def storage(self, n: int, k: int, dtype: torch.dtype) -> Mapping[str, BufferSpec]:
        return {"halves": BufferSpec((n, k), torch.float16)}

    def load(self, parts: Sequence[StoredWeight], buffers: Mapping[str, Tensor]) -> Rounding:
        exact = torch.cat([part.floats() for part in parts])
        buffers["halves"].copy_(exact)
        change = buffers["halves"].float() - exact
        return Rounding(float(change.square().sum()), float(exact.square().sum()))

    def product(
        self,
        buffers: Mapping[str, Tensor],
        x: Tensor,
        bias: Tensor | None,
        n: int,
        out_dtype: torch.dtype | None,
        *,
        norm: Norm | None,
        gated: bool,
        residual: Tensor | None,
    ) -> Tensor:
        x = x if norm is None else norm(x)
        wide = (swiglu(x) if gated else x).float()
        y = (wide[:, None] * buffers["halves"].float()).sum(-1)
        y = (y if bias is None else y + bias.float()).to(out_dtype or x.dtype)
        return y if residual is None else residual + y

    def dequantised(self, buffers: Mapping[str, Tensor], n: int, k: int) -> Tensor:
        return buffers["halves"].float()

    def bytes(self, n: int, k: int, dtype: torch.dtype) -> int:
        return 2 * n * k


TOY = FormatKind("toy", lambda group, input_bits: HalfFormat())
INT8_AGAIN = FormatKind("int8", lambda group, input_bits: HalfFormat())
