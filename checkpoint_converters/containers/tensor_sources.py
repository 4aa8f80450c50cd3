"""Tensors that no safetensors file holds as they are: unpickled ones, and ones derived from a
file's tensor."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from checkpoint_converters.containers.safetensors_files import TensorHeader
from trtspec.config.quantised import QuantisedTensor, Weight
from trtspec.config.storage import WeightStorage

SPELLING = {
    torch.float32: "F32",
    torch.bfloat16: "BF16",
    torch.float16: "F16",
    torch.float64: "F64",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
    torch.float8_e4m3fn: "F8_E4M3",
    torch.float8_e5m2: "F8_E5M2",
}
"""The name of each dtype in a safetensors header."""


@dataclass(frozen=True, eq=False)
class HeldTensor(TensorHeader):
    """A tensor that is already in memory or mapped into it; reading copies it."""

    tensor: Tensor

    def read(self) -> Tensor:
        """A contiguous copy that shares no memory."""
        return self.tensor.clone(memory_format=torch.contiguous_format)


@dataclass(frozen=True, eq=False)
class Merged(TensorHeader):
    """A matrix ``[N, K]`` of floats with ``b @ a`` added to it, of ``b [N, r]`` and ``a [r, K]``;
    computed in float32 when asked for."""

    whole: TensorHeader
    a: Tensor
    b: Tensor

    @classmethod
    def of(cls, whole: TensorHeader, a: Tensor, b: Tensor) -> Merged:
        return cls(whole.name, whole.file, whole.dtype, whole.shape, whole, a, b)

    def read(self) -> Tensor:
        weight = self.whole.read()
        return (weight.float() + self.b @ self.a).to(weight.dtype)


@dataclass(frozen=True, eq=False)
class _RowsOf(TensorHeader, ABC):
    """Rows of a tensor in a different order, read on demand; quantised rows stay quantised."""

    whole: TensorHeader

    @abstractmethod
    def rows(self, whole: Tensor) -> Tensor:
        """The rows of a tensor with the same number of rows, as a copy."""

    def read(self) -> Tensor:
        return self.rows(self.whole.read())

    def weight(self) -> Weight:
        found = self.whole.weight()
        return (
            found.with_rows(self.rows) if isinstance(found, QuantisedTensor) else self.rows(found)
        )

    @property
    def storage(self) -> WeightStorage | None:
        return self.whole.storage


@dataclass(frozen=True, eq=False)
class PickedRows(_RowsOf):
    """Rows ``[n]`` of a matrix ``[V, H]`` as a matrix ``[n, H]``."""

    picked: Tensor

    @classmethod
    def of(cls, whole: TensorHeader, rows: Tensor) -> PickedRows:
        """``rows`` must be int64 and in range."""
        shape = (len(rows), *whole.shape[1:])
        return cls(whole.name, whole.file, whole.dtype, shape, whole, rows)

    def rows(self, whole: Tensor) -> Tensor:
        return whole.index_select(0, self.picked)


@dataclass(frozen=True, eq=False)
class RowRange(_RowsOf):
    """Consecutive rows of a tensor: one of the tensors that a fused one holds."""

    first: int

    @classmethod
    def of(cls, whole: TensorHeader, first: int, count: int) -> RowRange:
        shape = (count, *whole.shape[1:])
        return cls(whole.name, whole.file, whole.dtype, shape, whole, first)

    def rows(self, whole: Tensor) -> Tensor:
        return whole.narrow(0, self.first, self.shape[0]).clone()


@dataclass(frozen=True, eq=False)
class RotaryHalves(_RowsOf):
    """A projection to ``heads`` heads, ``[N, K]`` or ``[N]``. Its file stores the two numbers that
    rotate together side by side; here they are half a head apart."""

    heads: int

    @classmethod
    def of(cls, whole: TensorHeader, heads: int) -> RotaryHalves:
        return cls(whole.name, whole.file, whole.dtype, whole.shape, whole, heads)

    def rows(self, whole: Tensor) -> Tensor:
        """The even rows of each head, then its odd ones."""
        pairs = whole.reshape(self.heads, -1, 2, *whole.shape[1:])
        return pairs.transpose(1, 2).flatten(0, 2).contiguous()


@dataclass(frozen=True, eq=False)
class SwappedHalves(TensorHeader):
    """A matrix ``[N, 2 K]`` with the two halves of its inputs exchanged, read on demand."""

    whole: TensorHeader

    @classmethod
    def of(cls, whole: TensorHeader) -> SwappedHalves:
        return cls(whole.name, whole.file, whole.dtype, whole.shape, whole)

    def read(self) -> Tensor:
        """Inputs K .. 2 K - 1, then 0 .. K - 1."""
        first, second = self.whole.read().chunk(2, dim=1)
        return torch.cat((second, first), dim=1)


@dataclass(frozen=True, eq=False)
class Flattened(TensorHeader):
    """A tensor of any shape as a vector, read on demand."""

    whole: TensorHeader

    @classmethod
    def of(cls, whole: TensorHeader) -> Flattened:
        return cls(whole.name, whole.file, whole.dtype, (math.prod(whole.shape),), whole)

    def read(self) -> Tensor:
        return self.whole.read().flatten()


@dataclass(frozen=True, eq=False)
class Shifted(TensorHeader):
    """A float tensor plus a number, in float32, read on demand."""

    whole: TensorHeader
    by: float

    @classmethod
    def of(cls, whole: TensorHeader, by: float) -> Shifted:
        return cls(whole.name, whole.file, "F32", whole.shape, whole, by)

    def read(self) -> Tensor:
        return self.whole.read().float() + self.by


@dataclass(frozen=True, eq=False)
class Computed(TensorHeader):
    """The result of a function of a float tensor, in float32, computed on demand."""

    whole: TensorHeader
    function: Callable[[Tensor], Tensor]

    @classmethod
    def of(
        cls, whole: TensorHeader, shape: tuple[int, ...], function: Callable[[Tensor], Tensor]
    ) -> Computed:
        """``shape``: of the result, with as many elements as the tensor."""
        return cls(whole.name, whole.file, "F32", shape, whole, function)

    def read(self) -> Tensor:
        return self.function(self.whole.read().float()).reshape(self.shape)
