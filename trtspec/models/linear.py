"""Linear layers, their weights as they are, packed in panels, or packed in 8 bits.

As in every layer of the models, weights are buffers, not parameters: engines only infer, and a
builder carries them as constants. Fresh layers hold uninitialised memory until weights are loaded.
On CPUs all layers are row-invariant: a row's bits ignore its neighbours.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from trtspec.models.norm import RMSNorm
from trtspec.ops.linear import PANEL, linear, pack_linear, packed_rows, swiglu
from trtspec.ops.linear_int8 import (
    dequantize_int8,
    linear_int8,
    num_groups,
    pack_linear_int8,
    quantize_int8,
)

_ROWS_AT_ONCE = 4096  # quantised together: a head's floats are not all copied several times


@dataclass(frozen=True)
class WeightLayout:
    """How a network's linear layers keep their weights.

    packed: in panels, for the ops of a CPU. int8_group: packed in 8 bits, with a scale for so many
    input features of an output, or (0) for all of them; None: in the network's dtype.
    """

    packed: bool = True
    int8_group: int | None = None

    @property
    def quantizes(self) -> bool:
        """Whether weights are rounded; rows of an embedding are then kept beside a tied head."""
        return self.int8_group is not None


PACKED = WeightLayout()


@dataclass
class Rounding:
    """Sums of squares over weights: of what 8 bits changed of them, and of themselves."""

    error: float = 0.0
    weight: float = 0.0

    @property
    def relative(self) -> float:
        """Root mean square of the change over that of the weights."""
        return float((self.error / self.weight) ** 0.5) if self.weight else 0.0

    def __add__(self, other: Rounding) -> Rounding:
        return Rounding(self.error + other.error, self.weight + other.weight)


class Linear(nn.Module):
    """A linear layer, or several fused along their outputs.

    The weight is a buffer in one of three layouts. ``packed``, for CPUs: ``packed [ceil(N / 64), K,
    64]`` with ``packed[p, k, c] = W[64 p + c, k]``, zero beyond N, for `trtspec.ops.linear`, whose
    row sums are taken in float32 in the order of k. The same in int8 with ``scales [ceil(N / 64),
    G, 64]`` float32 for `trtspec.ops.linear_int8`; ``rounding`` is what that changed, once weights
    are loaded. Otherwise ``weight [N, K]``, for torch's own product. With ``bias`` there is
    ``bias [N]`` too.
    """

    packed: Tensor
    weight: Tensor
    scales: Tensor | None
    bias: Tensor | None

    def __init__(
        self,
        in_features: int,
        out_features: int,
        dtype: torch.dtype,
        bias: bool = False,
        *,
        layout: WeightLayout = PACKED,
    ) -> None:
        super().__init__()
        self.in_features = in_features
        self.out_features = out_features
        self.layout = layout
        self.rounding = Rounding()
        panels, group = -(-out_features // PANEL), layout.int8_group
        if group is not None:
            groups = num_groups(in_features, group)
            self.register_buffer("scales", torch.empty(panels, groups, PANEL))
        else:
            self.register_buffer("scales", None)
        if layout.packed:
            stored = torch.int8 if layout.quantizes else dtype
            self.register_buffer("packed", torch.empty(panels, in_features, PANEL, dtype=stored))
        else:
            self.register_buffer("weight", torch.empty(out_features, in_features, dtype=dtype))
        self.register_buffer("bias", torch.empty(out_features, dtype=dtype) if bias else None)

    def forward(
        self,
        x: Tensor,
        out_dtype: torch.dtype | None = None,
        *,
        norm: RMSNorm | None = None,
        gated: bool = False,
        residual: Tensor | None = None,
    ) -> Tensor:
        """``x [T, K]`` -> ``[T, N]`` in ``out_dtype`` (x's dtype if None), rounded once.

        What stands around the layer runs with it: ``norm`` of x, or with ``gated`` the `swiglu` of
        ``x [T, 2K]``, before it, and the sum with ``residual [T, N]`` of the same dtype behind it.
        """
        if not self.layout.packed:
            x = x if norm is None else norm(x)
            y = self._plain(swiglu(x) if gated else x, out_dtype)
            return y if residual is None else residual + y
        width, weight, eps = self.out_features, None, 0.0
        if norm is not None:
            weight, eps = norm.weight, norm.eps
        around: dict[str, Any] = {"norm": weight, "eps": eps, "gated": gated, "residual": residual}
        group = self.layout.int8_group
        if self.scales is None or group is None:
            return linear(x, self.packed, self.bias, width, out_dtype, **around)
        return linear_int8(
            x, self.packed, self.scales, self.bias, width, group, out_dtype, **around
        )

    def _plain(self, x: Tensor, out_dtype: torch.dtype | None) -> Tensor:
        """The product by torch's own, of weights that are not packed."""
        if out_dtype in (None, x.dtype):
            return F.linear(x, self.weight, self.bias)
        if not x.is_cuda:
            bias = None if self.bias is None else self.bias.to(out_dtype)
            return F.linear(x.to(out_dtype), self.weight.to(out_dtype), bias)
        # Logits of 16-bit weights: a product that is not rounded to 16 bits on its way.
        assert out_dtype is not None
        y = torch.mm(x, self.weight.t(), out_dtype=out_dtype)
        return y if self.bias is None else y + self.bias

    def gather_rows(self, ids: Tensor) -> Tensor:
        """Rows ``W[ids]`` as ``[T, K]``: the embedding of a model that ties it to its head. Not of
        weights in 8 bits."""
        assert self.scales is None, "an embedding is not quantised"
        if self.layout.packed:
            return packed_rows(self.packed, ids)
        return self.weight[ids]

    def load(
        self,
        weights: Sequence[Tensor],
        biases: Sequence[Tensor] = (),
        scales: Sequence[Tensor | None] = (),
    ) -> None:
        """Fill from weights ``[n_i, K]`` (sum of n_i = N) in output order, and their biases.

        A weight may be int8 with ``scales`` of its own, one for each output ``[n_i]``, None for one
        of floats; a layer in 8 bits takes it as it is.
        """
        pairs = list(zip(weights, scales or [None] * len(weights), strict=True))
        if self.scales is not None:
            self.rounding = Rounding()
            parts = [part for weight, own in pairs for part in self._quantized(weight, own)]
            values, factors = (torch.cat(tensors) for tensors in zip(*parts, strict=True))
            packed, panels = pack_linear_int8(values, factors)
            self.packed.copy_(packed)
            self.scales.copy_(panels)
        else:
            weight = torch.cat([w if s is None else dequantized(w, s) for w, s in pairs])
            if self.layout.packed:
                self.packed.copy_(pack_linear(weight.to(self.packed.dtype)))
            else:
                self.weight.copy_(weight)
        if self.bias is not None:
            self.bias.copy_(torch.cat(list(biases)))

    def _quantized(self, weight: Tensor, scales: Tensor | None) -> list[tuple[Tensor, Tensor]]:
        """Parts of values ``[n, K]`` and scales ``[n, G]``."""
        group = self.layout.int8_group
        assert group is not None
        if scales is not None:
            self.rounding += Rounding(0.0, _squares(dequantized(weight, scales)))
            groups = num_groups(self.in_features, group)
            return [(weight, scales.float()[:, None].expand(-1, groups))]
        parts = []
        for rows in torch.split(weight, _ROWS_AT_ONCE):
            values, factors = quantize_int8(rows, group)
            change = dequantize_int8(values, factors, group) - rows.float()
            self.rounding += Rounding(_squares(change), _squares(rows.float()))
            parts.append((values, factors))
        return parts


def dequantized(weight: Tensor, scales: Tensor) -> Tensor:
    """Floats ``[N, K]`` of an int8 weight with one scale for each output ``[N]``."""
    return dequantize_int8(weight, scales[:, None], 0)


def _squares(tensor: Tensor) -> float:
    return float(torch.linalg.vector_norm(tensor, dtype=torch.float64)) ** 2
