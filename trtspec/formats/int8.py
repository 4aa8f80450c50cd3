"""Weights in 8 bits with scales of groups of inputs, for the ops of a CPU."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.formats.base import (
    BufferSpec,
    Mixture,
    Norm,
    Place,
    Rounding,
    WeightFormat,
    op_arguments,
)
from trtspec.formats.stored import StoredWeight
from trtspec.ops.linear import PANEL, unpack_linear
from trtspec.ops.linear_int8 import (
    dequantize_int8,
    linear_int8,
    num_groups,
    pack_linear_int8,
    quantize_int8,
)
from trtspec.ops.moe import Coding

_ROWS_AT_ONCE = 4096  # quantised together: a head's floats are not all copied several times


@dataclass(frozen=True)
class Int8Format(WeightFormat):
    """``packed [ceil(N / 64), K, 64] int8`` in panels and ``scales [ceil(N / 64), G, 64] f32``, for
    `trtspec.ops.linear_int8`. group_size: input features of an output that share a scale; 0: all.

    Floats are rounded symmetrically; a weight of whole numbers whose groups are no smaller, and
    which has no more than scales, is taken as it is.
    """

    group_size: int = 0

    name = "int8"
    is_rounded = True

    def storage(self, n: int, k: int, dtype: torch.dtype) -> Mapping[str, BufferSpec]:
        panels, groups = -(-n // PANEL), num_groups(k, self.group_size)
        return {
            "scales": BufferSpec((panels, groups, PANEL), torch.float32),
            "packed": BufferSpec((panels, k, PANEL), torch.int8),
        }

    def load(self, parts: Sequence[StoredWeight], buffers: Mapping[str, Tensor]) -> Rounding:
        rounding, quantised = Rounding(), []
        for part in parts:
            part.require_finite(f"quantised to {self.name}")
            kept = self._kept(part)
            if kept is not None:
                rounding += Rounding(0.0, _squares(part.floats()))
                quantised.append(kept)
                continue
            for rows in torch.split(part.floats(), _ROWS_AT_ONCE):
                values, scales = quantize_int8(rows, self.group_size)
                change = dequantize_int8(values, scales, self.group_size) - rows.float()
                rounding += Rounding(_squares(change), _squares(rows.float()))
                quantised.append((values, scales))
        values, scales = (torch.cat(tensors) for tensors in zip(*quantised, strict=True))
        packed, panels = pack_linear_int8(values, scales)
        buffers["packed"].copy_(packed)
        buffers["scales"].copy_(panels)
        return rounding

    def _kept(self, part: StoredWeight) -> tuple[Tensor, Tensor] | None:
        """Values and scales of a quantised weight, if these say all of it and fit the groups."""
        more = (part.zeros, part.offsets, part.input_scales, part.permutation)
        if part.scales is None or any(each is not None for each in more):
            return None
        depth, runs = part.values.shape[1], part.scales.numel() // len(part.values)
        if runs > 1 and (not self.group_size or depth // runs % self.group_size):
            return None
        return part.values, part.grouped(part.scales, self.group_size).float()

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
        return linear_int8(
            x,
            buffers["packed"],
            buffers["scales"],
            bias,
            n,
            self.group_size,
            out_dtype,
            **op_arguments(norm, gated, residual),
        )

    def mixture(
        self,
        experts: Mixture,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        residual: Tensor | None,
    ) -> Tensor:
        coding = Coding(group_size=self.group_size)
        return experts.by_op(coding, x, chosen, weights, residual)

    def dequantised(self, buffers: Mapping[str, Tensor], n: int, k: int) -> Tensor:
        values, scales = (unpack_linear(buffers[name], n) for name in ("packed", "scales"))
        return dequantize_int8(values, scales, self.group_size)

    def bytes(self, n: int, k: int, dtype: torch.dtype) -> int:
        return n * k + n * num_groups(k, self.group_size) * torch.float32.itemsize

    def unsupported(self, place: Place) -> str | None:
        if not place.runs_ops:
            return f"on backend {place.backend!r}, but on {' and '.join(place.with_ops)}"
        if place.device != "cpu":
            return f"on device {place.device!r}, its kernels are for CPUs"
        return None

    def describe(self, dtype: str) -> str:
        scale = f"{self.group_size} input features" if self.group_size else "output"
        return f"{dtype} with {self.name} weights (a scale for each {scale})"


def _squares(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) ** 2
