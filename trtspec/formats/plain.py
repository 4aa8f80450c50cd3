"""Weights as floats: in panels for the ops for CPUs, or in rows for torch."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.formats.base import (
    BufferSpec,
    ExpertLayers,
    Mixture,
    Norm,
    Rounding,
    WeightFormat,
    op_arguments,
    prologue,
)
from trtspec.formats.stored import StoredWeight
from trtspec.ops.few_row_linear import few_row_linear, unwoven, woven
from trtspec.ops.linear import PANEL, linear, pack_linear, packed_rows, unpack_linear
from trtspec.ops.moe import Coding, gate

NAME = "plain"


@dataclass(frozen=True)
class PlainFormat(WeightFormat):
    """Weights as floats.

    dtype: one of fewer bits than the network's, to which products round their inputs but not their
    outputs; None: the network's.
    """

    dtype: torch.dtype | None = None

    name = NAME

    def bytes(self, n: int, k: int, dtype: torch.dtype) -> int:
        return n * k * (self.dtype or dtype).itemsize

    def describe(self, dtype: str) -> str:
        own = str(self.dtype).removeprefix("torch.")
        return dtype if self.dtype is None else f"{dtype} with {own} weights"

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
        if self.dtype is None:
            return self._product(
                buffers, x, bias, n, out_dtype, norm=norm, gated=gated, residual=residual
            )
        wide = out_dtype or x.dtype
        x = prologue(x, norm, gated).to(self.dtype)
        y = self._product(buffers, x, None, n, wide, norm=None, gated=False, residual=None)
        y = y if bias is None else y + bias
        return y if residual is None else residual + y

    def mixture(
        self,
        experts: Mixture,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        residual: Tensor | None,
    ) -> Tensor:
        if self.dtype is None:
            return self._mixture(experts, x, chosen, weights, residual)
        y = self._mixture(experts.biased_in(self.dtype), x.to(self.dtype), chosen, weights, None)
        return y.to(x.dtype) if residual is None else residual + y.to(x.dtype)

    @abstractmethod
    def _product(
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
        """`product` of weights in the dtype of x."""

    @abstractmethod
    def _mixture(
        self,
        experts: Mixture,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        residual: Tensor | None,
    ) -> Tensor:
        """`mixture` of weights in the dtype of x."""


@dataclass(frozen=True)
class PanelFormat(PlainFormat):
    """``packed [ceil(N / 64), K, 64]``: ``packed[p, k, c] = W[64 p + c, k]``, zero beyond N, for
    `trtspec.ops.linear`, whose row sums are taken in float32 in the order of k."""

    def storage(self, n: int, k: int, dtype: torch.dtype) -> Mapping[str, BufferSpec]:
        return {"packed": BufferSpec((-(-n // PANEL), k, PANEL), self.dtype or dtype)}

    def load(self, parts: Sequence[StoredWeight], buffers: Mapping[str, Tensor]) -> Rounding:
        packed = buffers["packed"]
        packed.copy_(pack_linear(_joined(parts).to(packed.dtype)))
        return Rounding()

    def _product(
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
        return linear(
            x,
            buffers["packed"],
            bias,
            n,
            out_dtype,
            **op_arguments(norm, gated, residual),
        )

    def _mixture(
        self,
        experts: Mixture,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        residual: Tensor | None,
    ) -> Tensor:
        return experts.by_op(Coding(), x, chosen, weights, residual)

    def reads_chosen_experts(self, device: str) -> bool:
        return True

    def rows(
        self, buffers: Mapping[str, Tensor], ids: Tensor, k: int, dtype: torch.dtype
    ) -> Tensor:
        return packed_rows(buffers["packed"], ids).to(dtype)

    def dequantised(self, buffers: Mapping[str, Tensor], n: int, k: int) -> Tensor:
        return unpack_linear(buffers["packed"], n).float()


@dataclass(frozen=True)
class RowFormat(PlainFormat):
    """``weight [N, K]``, for torch's own product and for exported graphs."""

    def storage(self, n: int, k: int, dtype: torch.dtype) -> Mapping[str, BufferSpec]:
        return {"weight": BufferSpec((n, k), self.dtype or dtype)}

    def load(self, parts: Sequence[StoredWeight], buffers: Mapping[str, Tensor]) -> Rounding:
        buffers["weight"].copy_(_joined(parts))
        return Rounding()

    def _product(
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
        y = _product(prologue(x, norm, gated), buffers["weight"], bias, out_dtype)
        return y if residual is None else residual + y

    def _mixture(
        self,
        experts: Mixture,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        residual: Tensor | None,
    ) -> Tensor:
        """On a GPU torch's grouped product, which reads the chosen experts; elsewhere, and in
        exported graphs, one of all rows with all experts."""
        run = _grouped if x.is_cuda else _everywhere
        y = run(experts, x, chosen, weights).to(x.dtype)
        return y if residual is None else residual + y

    def reads_chosen_experts(self, device: str) -> bool:
        return device == "cuda"

    def rows(
        self, buffers: Mapping[str, Tensor], ids: Tensor, k: int, dtype: torch.dtype
    ) -> Tensor:
        return buffers["weight"][ids].to(dtype)

    def dequantised(self, buffers: Mapping[str, Tensor], n: int, k: int) -> Tensor:
        return buffers["weight"].float()


def _grouped(experts: Mixture, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    ids, order = torch.sort(chosen.flatten(), stable=True)
    every = torch.arange(len(experts.up), device=x.device)
    ends = torch.searchsorted(ids, every, right=True).int()

    def product(rows: Tensor, layers: ExpertLayers) -> Tensor:
        y = F.grouped_mm(rows, layers.buffers["weight"].transpose(1, 2), offs=ends)
        return y if layers.bias is None else y + layers.bias[ids]

    y = product(x[order // chosen.shape[1]], experts.up)
    y = product(gate(y, experts.gating), experts.down)
    back = torch.empty_like(order).scatter(0, order, torch.arange(len(order), device=x.device))
    return (y[back].float().view(*chosen.shape, -1) * weights.unsqueeze(-1)).sum(1)


def _everywhere(experts: Mixture, x: Tensor, chosen: Tensor, weights: Tensor) -> Tensor:
    def product(rows: Tensor, layers: ExpertLayers) -> Tensor:
        y = rows @ layers.buffers["weight"].transpose(1, 2)
        return y if layers.bias is None else y + layers.bias.unsqueeze(1)

    y = product(gate(product(x, experts.up), experts.gating), experts.down)  # [E, T, H]
    factors = torch.zeros(x.shape[0], len(experts.up), device=x.device).scatter(1, chosen, weights)
    return torch.einsum("eth,te->th", y.float(), factors)


@dataclass(frozen=True)
class FewRowFormat(RowFormat):
    """``weight [N, K]``, for `trtspec.ops.few_row_linear`.

    may_gate: whether a layer may take its SwiGLU along. gates: whether this one does, and its
    outputs are `woven`.
    """

    may_gate: bool = False
    gates: bool = False

    def with_swiglu(self) -> WeightFormat | None:
        return replace(self, gates=True) if self.may_gate else None

    def load(self, parts: Sequence[StoredWeight], buffers: Mapping[str, Tensor]) -> Rounding:
        rounding, weight = super().load(parts, buffers), buffers["weight"]
        if self.gates:
            weight.copy_(woven(weight))
        return rounding

    def dequantised(self, buffers: Mapping[str, Tensor], n: int, k: int) -> Tensor:
        weight = super().dequantised(buffers, n, k)
        return unwoven(weight) if self.gates else weight

    def _product(
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
        return few_row_linear(
            prologue(x, norm, gated),
            buffers["weight"],
            woven(bias) if self.gates and bias is not None else bias,
            n,
            out_dtype,
            swiglu=self.gates,
            residual=residual,
        )


PANELS = PanelFormat()
ROWS = RowFormat()


def _joined(parts: Sequence[StoredWeight]) -> Tensor:
    return torch.cat([part.floats() for part in parts])


def _product(
    x: Tensor, weight: Tensor, bias: Tensor | None, out_dtype: torch.dtype | None
) -> Tensor:
    if out_dtype in (None, x.dtype):
        return F.linear(x, weight, bias)
    if not x.is_cuda:
        wide_bias = None if bias is None else bias.to(out_dtype)
        return F.linear(x.to(out_dtype), weight.to(out_dtype), wide_bias)
    # Logits of 16-bit weights: a product that is not rounded to 16 bits on its way.
    assert out_dtype is not None
    y = torch.mm(x, weight.t(), out_dtype=out_dtype)
    return y if bias is None else y + bias
