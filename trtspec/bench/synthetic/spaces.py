"""Weights of a larger network that computes the function of a smaller one.

A hidden vector x of H elements becomes ``[x] + [0] * rest`` of H' = r * H elements. The mean square
over it is that of x divided by r, so with ``eps / r`` a norm's factor is sqrt(r) times the old one,
and its weights divided by sqrt(r) give the old output. If r is a power of 4 these are powers of
two, and not one bit changes; else the weights of norms are rounded once.

Where an input is always zero its weights are random, as are all outputs that nothing reads further
on (heads and MLP features beyond the source's meet zero columns of o and down), so that every
weight is read and multiplied for real.

A larger vocabulary needs logits that never win. The first position behind x then holds the constant
2^-14 in every embedding, which no layer touches; its square vanishes beside those of x. The final
norm multiplies it by 2^15, and the head's new rows by -2^15: their logits lie near -2^16 / rms(x),
far below all others.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.errors import ConfigError

NOISE = 0.02  # standard deviation of the random weights
CONSTANT, CONSTANT_GAIN = 2.0**-14, 2.0**15


@dataclass(frozen=True)
class Axis:
    """How one dimension of a weight maps into a larger one: ``places[i]`` is the place of index i;
    ``zero`` indices have zero weights, all others random ones."""

    wide: int
    places: Tensor
    zero: Tensor

    @classmethod
    def at(cls, places: Tensor, wide: int, silent: bool = False) -> Axis:
        """``places [size] i64``; all else is zero if ``silent``, otherwise random."""
        others = torch.ones(wide, dtype=torch.bool)
        others[places] = False
        return cls(wide, places, others.nonzero().flatten() if silent else places[:0])


@dataclass(frozen=True)
class HiddenSpace:
    """The hidden vectors of a network and of its larger version; has_constant: see the module."""

    size: int
    wide: int
    has_constant: bool = False

    def __post_init__(self) -> None:
        if self.has_constant and self.size == self.wide:
            raise ConfigError(
                f"hidden_size {self.wide} has no room for the constant that a larger vocabulary "
                f"needs; choose one such as {4 * self.size}, or keep the vocabulary"
            )

    @property
    def ratio(self) -> float:
        """r of the module's docstring."""
        return self.wide / self.size

    @property
    def written(self) -> Axis:
        """For outputs into the residual stream."""
        return Axis.at(torch.arange(self.size), self.wide, silent=True)

    def read(self, count: int = 1) -> Axis:
        """For inputs of ``count`` vectors side by side. The constant must not count."""
        starts = torch.arange(count)[:, None] * self.wide
        places = (starts + torch.arange(self.size)).flatten()
        return Axis(count * self.wide, places, (starts + self.size)[: count * self.has_constant, 0])

    def norm(self, weight: Tensor, constant: float = 0.0) -> Tensor:
        """A norm's weight ``[H]`` -> ``[H']``. constant: the weight of the constant, if there is
        one."""
        wide = weight.new_zeros(self.wide)
        wide[: self.size] = weight * self.ratio**-0.5
        if self.has_constant:
            wide[self.size] = constant
        return wide

    def embedding(self, weight: Tensor, vocab_size: int, generator: torch.Generator) -> Tensor:
        """``[V, H]`` -> ``[V', H']``; the new ids' rows are random."""
        rows = Axis.at(torch.arange(len(weight)), vocab_size)
        wide = widen(weight, rows, self.written, generator)
        if self.has_constant:
            wide[:, self.size] = CONSTANT
        return wide

    def head(self, weight: Tensor, vocab_size: int, generator: torch.Generator) -> Tensor:
        """``[V, H]`` -> ``[V', H']``; the new ids' logits are the constant's."""
        rows = Axis.at(torch.arange(len(weight)), vocab_size)
        wide = widen(weight, rows, self.read(), generator)
        if self.has_constant:
            wide[len(weight) :, self.size] = -CONSTANT_GAIN
        return wide


def widen(weight: Tensor, rows: Axis, columns: Axis, generator: torch.Generator) -> Tensor:
    """A weight ``[N, K]`` -> ``[rows.wide, columns.wide]`` of the same dtype and device."""
    bound = NOISE * 3**0.5  # uniform, as that is quick
    wide = weight.new_empty(rows.wide, columns.wide).uniform_(-bound, bound, generator=generator)
    wide[:, columns.zero] = 0
    wide[rows.zero] = 0
    wide[rows.places[:, None], columns.places] = weight
    return wide
