"""Weights of a larger network that computes the function of a smaller one.

A hidden vector x of H elements becomes ``[x] * m + [0] * rest`` of H' = m * 4^n * H elements. The
mean square over it is that of x divided by 4^n, so with ``eps / 4^n`` a norm's factor is 2^n times
the old one, and weights divided by 2^n give the old output: powers of two, so every dtype holds
them exactly. If H' / H is a power of 4, m is 1 and not one bit changes in float32; else m copies
keep the weights exact and only the sum of squares may round otherwise.

What reads a hidden vector reads its first copy. Where an input is always zero its weights are
random, as are all outputs that nothing reads further on (heads and MLP features beyond the source's
meet zero columns of o and down), so that every weight is read and multiplied for real.

A larger vocabulary needs logits that never win. The first position behind the copies then holds the
constant 2^-14 in every embedding, which no layer touches; its square vanishes beside those of x.
The final norm multiplies it by 2^15, and the head's new rows by -2^15: their logits lie near
-2^16 / rms(x), far below all others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.errors import ConfigError

NOISE = 0.02  # standard deviation of the random weights
CONSTANT, CONSTANT_GAIN = 2.0**-14, 2.0**15


@dataclass(frozen=True)
class Axis:
    """How one dimension of a weight lies in a larger one: ``copies[c][i]`` is where index i lies in
    copy c; positions that are ``zero`` have zero weights; those in neither have random ones."""

    wide: int
    copies: tuple[Tensor, ...]
    zero: Tensor

    @classmethod
    def at(cls, places: Tensor, wide: int, silent: bool = False) -> Axis:
        """One copy at ``places [size] i64``; all else is zero if ``silent``, else random."""
        return cls(wide, (places,), _others(places, wide) if silent else places[:0])


@dataclass(frozen=True)
class HiddenSpace:
    """The hidden vectors of a network and of its larger one; has_constant: see the module."""

    size: int
    wide: int
    has_constant: bool = False

    def __post_init__(self) -> None:
        if self.wide < self.size or self.wide % self.size:
            raise ConfigError(
                f"hidden_size {self.wide} is no multiple of the source's {self.size}; choose one"
            )
        if self.has_constant and self.copies * self.size == self.wide:
            raise ConfigError(
                f"hidden_size {self.wide} has no room for the constant that a larger vocabulary "
                f"needs; choose one such as {4 * self.size}, or keep the vocabulary"
            )

    @property
    def exponent(self) -> int:
        """n of the module's docstring."""
        ratio, n = self.wide // self.size, 0
        while ratio % 4 == 0:
            ratio, n = ratio // 4, n + 1
        return n

    @property
    def copies(self) -> int:
        """m of the module's docstring; 1: exact."""
        return self.wide // self.size // (1 << 2 * self.exponent)

    @property
    def written(self) -> Axis:
        """For outputs into the residual stream: every copy; nothing but zeros elsewhere."""
        places = tuple(torch.arange(self.size) + c * self.size for c in range(self.copies))
        return Axis(self.wide, places, _others(torch.cat(places), self.wide))

    def read(self, count: int = 1) -> Axis:
        """For inputs of ``count`` vectors side by side: the first copy of each. Other copies and
        the constant must not count."""
        starts = torch.arange(count)[:, None] * self.wide
        used = self.copies * self.size + self.has_constant
        first = (starts + torch.arange(self.size)).flatten()
        return Axis(count * self.wide, (first,), (starts + torch.arange(self.size, used)).flatten())

    def norm(self, weight: Tensor, constant: float = 0.0, copies: int | None = None) -> Tensor:
        """A norm's weight ``[H]`` -> ``[H']``; with ``copies`` only the first ones get an output.
        constant: the weight of the constant, if there is one."""
        wide = weight.new_zeros(self.wide)
        for places in self.written.copies[:copies]:
            wide[places] = weight * 0.5**self.exponent
        if self.has_constant:
            wide[self.copies * self.size] = constant
        return wide

    def embedding(self, weight: Tensor, vocab_size: int, generator: torch.Generator) -> Tensor:
        """``[V, H]`` -> ``[V', H']``; the new ids' rows are random."""
        more = noise((vocab_size - len(weight), self.size), weight.dtype, generator)
        wide = weight.new_zeros(vocab_size, self.wide)
        for places in self.written.copies:
            wide[:, places] = torch.cat((weight, more))
        if self.has_constant:
            wide[:, self.copies * self.size] = CONSTANT
        return wide

    def head(self, weight: Tensor, vocab_size: int, generator: torch.Generator) -> Tensor:
        """``[V, H]`` -> ``[V', H']``; the new ids' logits are the constant's."""
        rows = Axis.at(torch.arange(len(weight)), vocab_size)
        wide = widen(weight, rows, self.read(), generator)
        if self.has_constant:
            wide[len(weight) :, self.copies * self.size] = -CONSTANT_GAIN
        return wide


def noise(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Random weights on the generator's device: uniform, as that is quick."""
    bound = NOISE * 3**0.5
    empty = torch.empty(*shape, dtype=dtype, device=generator.device)
    return empty.uniform_(-bound, bound, generator=generator)


def widen(weight: Tensor, rows: Axis, columns: Axis, generator: torch.Generator) -> Tensor:
    """A weight ``[N, K]`` -> ``[rows.wide, columns.wide]`` of the same dtype and device."""
    wide = noise((rows.wide, columns.wide), weight.dtype, generator)
    wide[:, columns.zero] = 0
    wide[rows.zero] = 0
    for places in rows.copies:
        wide[places[:, None], columns.copies[0]] = weight
    return wide


def _others(places: Tensor, wide: int) -> Tensor:
    free = torch.ones(wide, dtype=torch.bool)
    free[places] = False
    return free.nonzero().flatten()
