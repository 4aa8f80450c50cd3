"""WeightFormat: the interface of all ways to keep the weights of a linear layer."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from trtspec.formats.stored import StoredWeight
from trtspec.ops.linear import swiglu
from trtspec.ops.moe import Coding, ExpertWeights, Gating, gate, moe


class Norm(Protocol):
    """A norm that a product applies to its input first, as a module."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor: ...


def prologue(x: Tensor, norm: Norm | None, gated: bool) -> Tensor:
    """The input that a product multiplies; see `WeightFormat.product`."""
    return swiglu(x) if gated else x if norm is None else norm(x)


@dataclass(frozen=True)
class BufferSpec:
    """One buffer of a layer's weights."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class Rounding:
    """What a format changed of weights by rounding them.

    error: sum of the squares of all changes. weight: sum of the squares of all weights.
    """

    error: float = 0.0
    weight: float = 0.0

    @property
    def relative(self) -> float:
        """The root mean square of the changes, relative to that of the weights."""
        return float((self.error / self.weight) ** 0.5) if self.weight else 0.0

    def __add__(self, other: Rounding) -> Rounding:
        return Rounding(self.error + other.error, self.weight + other.weight)


@dataclass(frozen=True)
class ExpertLayers:
    """The same linear layer of each of E experts: a format's buffers with the experts as their
    first dimension, ``bias [E, N]`` or None, and the number N of its outputs."""

    buffers: Mapping[str, Tensor]
    bias: Tensor | None
    outputs: int

    def __len__(self) -> int:
        return len(next(iter(self.buffers.values())))

    def biased_in(self, dtype: torch.dtype) -> ExpertLayers:
        """A copy with biases of this dtype."""
        return self if self.bias is None else replace(self, bias=self.bias.to(dtype))

    def of(self, expert: int) -> tuple[dict[str, Tensor], Tensor | None]:
        """The buffers and the bias of one expert."""
        own = {name: buffer[expert] for name, buffer in self.buffers.items()}
        return own, None if self.bias is None else self.bias[expert]


@dataclass(frozen=True)
class Mixture:
    """Experts ``down(gating(up(x)))`` with ``inner`` features between the two products."""

    up: ExpertLayers
    down: ExpertLayers
    inner: int
    gating: Gating

    def biased_in(self, dtype: torch.dtype) -> Mixture:
        """A copy with biases of this dtype."""
        return replace(self, up=self.up.biased_in(dtype), down=self.down.biased_in(dtype))

    def by_op(
        self,
        coding: Coding,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        residual: Tensor | None,
    ) -> Tensor:
        """Call `moe`, for formats whose buffers are named as the fields of `ExpertWeights`."""
        up, down = (ExpertWeights(**each.buffers, bias=each.bias) for each in (self.up, self.down))
        return moe(x, chosen, weights, self.inner, up, down, coding, self.gating, residual)


@dataclass(frozen=True)
class Place:
    """Where products run.

    backend: by name. runs_ops: whether networks call the ops of trtspec there. with_ops: the names
    of the backends where they do, for messages. few_rows: whether products are
    `trtspec.ops.few_row_linear`.
    """

    backend: str
    device: str
    runs_ops: bool
    with_ops: tuple[str, ...] = ()
    few_rows: bool = False


class WeightFormat(ABC):
    """How a linear layer of N outputs and K inputs keeps its weights. Formats are immutable; one
    serves all layers of a network.

    name: as users write it. network_dtype: the default dtype of networks with such weights; None:
    that of their floats. is_rounded: whether weights have fewer bits than floats; an embedding
    is read from such a head only if both have this format. traits: what tells it from other formats
    of its name, except groups. group_size: inputs that share a scale; 0: all of them, or there are
    no scales.
    """

    name: str
    network_dtype: str | None = None
    is_rounded: bool = False
    traits: tuple[str, ...] = ()
    group_size: int = 0

    def in_groups(self, size: int) -> WeightFormat:
        """A copy with groups of a size that divides its own; several then have equal scales."""
        return self

    @property
    def arranges_inputs(self) -> bool:
        """Whether products scale or reorder their inputs first, as each layer's weights say."""
        return False

    def with_swiglu(self) -> WeightFormat | None:
        """The format of a layer whose products of gates, followed by as many outputs that they are
        for, give the `swiglu` of both, half as wide; None: there is none."""
        return None

    @abstractmethod
    def storage(self, n: int, k: int, dtype: torch.dtype) -> Mapping[str, BufferSpec]:
        """The buffers of a layer in a network of ``dtype``, by their names in a ``state_dict``."""

    @abstractmethod
    def load(self, parts: Sequence[StoredWeight], buffers: Mapping[str, Tensor]) -> Rounding:
        """Fill ``buffers`` from weights ``[n_i, K]`` (sum of n_i = N), in the order of the outputs;
        returns what rounding changed.

        Raises:
            CheckpointError: values that the format cannot hold.
        """

    @abstractmethod
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
        """``residual + (f(x) W^T + bias)`` as ``[T, N]`` in ``out_dtype`` (that of x if None).

        f is ``norm``, with ``gated`` the `swiglu` of ``x [T, 2K]``, or the identity. On CPUs a
        row's bits depend on its own rows of x and of the residual, and on W only.
        """

    def mixture(
        self,
        experts: Mixture,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        residual: Tensor | None,
    ) -> Tensor:
        """``residual`` plus the sum of the outputs of the experts ``chosen [T, k] i64`` for ``x [T,
        H]``, weighted by ``weights [T, k] f32``, as `trtspec.ops.moe` defines it.

        By default every expert multiplies all rows.
        """
        sums = torch.zeros(x.shape, dtype=torch.float32, device=x.device)
        around: dict[str, Any] = {"norm": None, "gated": False, "residual": None}
        for expert in range(len(experts.up)):
            buffers, bias = experts.up.of(expert)
            y = self.product(buffers, x, bias, experts.up.outputs, None, **around)
            buffers, bias = experts.down.of(expert)
            y = gate(y, experts.gating)
            y = self.product(buffers, y, bias, experts.down.outputs, torch.float32, **around)
            factor = (weights * (chosen == expert)).sum(-1, keepdim=True)
            sums = sums + torch.where(factor == 0, 0.0, y * factor)
        return sums.to(x.dtype) if residual is None else residual + sums.to(x.dtype)

    def reads_chosen_experts(self, device: str) -> bool:
        """Whether `mixture` reads only chosen experts on this device."""
        return False

    @abstractmethod
    def dequantised(self, buffers: Mapping[str, Tensor], n: int, k: int) -> Tensor:
        """The weight ``[N, K] f32`` that the buffers hold: the reference of the format."""

    def rows(
        self, buffers: Mapping[str, Tensor], ids: Tensor, k: int, dtype: torch.dtype
    ) -> Tensor:
        """The rows ``W[ids]`` of an embedding, or of the head that it is tied to, as ``[T, K]`` in
        the network's ``dtype``. Only these rows are dequantised."""
        raise NotImplementedError(f"weights in format {self.name} are not looked up by rows")

    @abstractmethod
    def bytes(self, n: int, k: int, dtype: torch.dtype) -> int:
        """Bytes that one pass over a layer's weights reads, without padding."""

    def unsupported(self, place: Place) -> str | None:
        """Why products cannot run there, as in "on device 'cuda', ..."; None: they can."""
        return None

    def describe(self, dtype: str) -> str:
        """A short description of a network of ``dtype`` with such weights."""
        return dtype


def op_arguments(norm: Norm | None, gated: bool, residual: Tensor | None) -> dict[str, Any]:
    """Arguments of the linear ops of `trtspec.ops` for what a product does before and after."""
    weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
    return {"norm": weight, "eps": eps, "gated": gated, "residual": residual}
