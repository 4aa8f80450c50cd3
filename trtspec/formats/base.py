"""WeightFormat: what every way of keeping a linear layer's weights answers for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import torch
from torch import Tensor

from trtspec.formats.stored import StoredWeight
from trtspec.ops.moe import Coding, ExpertWeights, Gating, gate, moe


class Norm(Protocol):
    """A norm that a product takes of its input first, as a module."""

    weight: Tensor
    eps: float

    def __call__(self, x: Tensor) -> Tensor: ...


@dataclass(frozen=True)
class BufferSpec:
    """One buffer of a layer's weights."""

    shape: tuple[int, ...]
    dtype: torch.dtype


@dataclass
class Rounding:
    """Sums of squares over weights: of what a format changed of them, and of themselves."""

    error: float = 0.0
    weight: float = 0.0

    @property
    def relative(self) -> float:
        """Root mean square of the change over that of the weights."""
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
        """Itself, its biases in a dtype."""
        return self if self.bias is None else replace(self, bias=self.bias.to(dtype))

    def of(self, expert: int) -> tuple[dict[str, Tensor], Tensor | None]:
        """Buffers and bias of one expert."""
        own = {name: buffer[expert] for name, buffer in self.buffers.items()}
        return own, None if self.bias is None else self.bias[expert]


@dataclass(frozen=True)
class Mixture:
    """Experts ``down(gating(up(x)))``, of ``inner`` elements between."""

    up: ExpertLayers
    down: ExpertLayers
    inner: int
    gating: Gating

    def biased_in(self, dtype: torch.dtype) -> Mixture:
        """Itself, its biases in a dtype."""
        return replace(self, up=self.up.biased_in(dtype), down=self.down.biased_in(dtype))

    def by_op(
        self,
        coding: Coding,
        x: Tensor,
        chosen: Tensor,
        weights: Tensor,
        residual: Tensor | None,
    ) -> Tensor:
        """`moe` over buffers that are called as the fields of `ExpertWeights`."""
        up, down = (ExpertWeights(**each.buffers, bias=each.bias) for each in (self.up, self.down))
        return moe(x, chosen, weights, self.inner, up, down, coding, self.gating, residual)


@dataclass(frozen=True)
class Place:
    """Where a product is to run: a backend by name, a device, and whether networks there call the
    ops of trtspec. ``with_ops`` names the backends that do, for messages."""

    backend: str
    device: str
    runs_ops: bool
    with_ops: tuple[str, ...] = ()


class WeightFormat(ABC):
    """How a linear layer of N outputs and K inputs keeps its weights. Formats are immutable values:
    one serves all layers of a network.

    name: as users write it. is_rounded: whether weights are rounded to fewer bits than floats have;
    the rows of an embedding are then kept beside a tied head. network_dtype: of networks with such
    weights where none is asked for; None: that of their floats. traits: what sets it apart from
    others of its name, groups aside. group_size: inputs that share a scale; 0: all of them, or
    there are none.
    """

    name: str
    network_dtype: str | None = None
    is_rounded: bool = False
    traits: tuple[str, ...] = ()
    group_size: int = 0

    def in_groups(self, size: int) -> WeightFormat:
        """Itself with groups of a size that divides its own: a scale stands for several of them."""
        return self

    @property
    def arranges_inputs(self) -> bool:
        """Whether inputs are scaled or put in another order first, as the weights at hand say."""
        return False

    @abstractmethod
    def storage(self, n: int, k: int, dtype: torch.dtype) -> Mapping[str, BufferSpec]:
        """The buffers of a layer in a network of ``dtype``, by the names that a ``state_dict`` has
        them under."""

    @abstractmethod
    def load(self, parts: Sequence[StoredWeight], buffers: Mapping[str, Tensor]) -> Rounding:
        """Fill ``buffers`` from weights ``[n_i, K]`` (sum of n_i = N) in the order of the outputs.

        Returns what rounding changed.

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
        """``residual`` plus what the experts ``chosen [T, k] i64`` make of ``x [T, H]``, times
        their ``weights [T, k] f32``: see `trtspec.ops.moe`, whose meaning this is.

        A format without a way of its own multiplies all rows with every expert.
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
        """Whether `mixture` reads those experts alone that rows chose, on a device."""
        return False

    @abstractmethod
    def dequantised(self, buffers: Mapping[str, Tensor], n: int, k: int) -> Tensor:
        """The weight ``[N, K] f32`` that the buffers stand for: the format's reference."""

    def rows(
        self, buffers: Mapping[str, Tensor], ids: Tensor, k: int, dtype: torch.dtype
    ) -> Tensor:
        """Rows ``W[ids]`` as ``[T, K]`` of ``dtype``, that of the network: of an embedding, which
        may be tied to a head. No others are dequantised."""
        raise NotImplementedError(f"weights in format {self.name} are not looked up by rows")

    @abstractmethod
    def bytes(self, n: int, k: int, dtype: torch.dtype) -> int:
        """What one pass over a layer's weights must read, padding left out."""

    def unsupported(self, place: Place) -> str | None:
        """Why the product cannot run there ("on device 'cuda', ..."), or None where it can."""
        return None

    def describe(self, dtype: str) -> str:
        """A network of ``dtype`` with such weights, in a few words."""
        return dtype


def op_arguments(norm: Norm | None, gated: bool, residual: Tensor | None) -> dict[str, Any]:
    """What stands around a product, as the ops of `trtspec.ops` for linear layers take it."""
    weight, eps = (None, 0.0) if norm is None else (norm.weight, norm.eps)
    return {"norm": weight, "eps": eps, "gated": gated, "residual": residual}
