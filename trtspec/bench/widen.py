"""Widening of weights: a larger model that computes the function of a smaller one.

A hidden vector x of H numbers becomes ``[x] * m + [0] * rest`` of H' = m * 4^n * H numbers. The
mean square over it is that of x divided by 4^n, so with ``eps / 4^n`` a norm's factor is 2^n times
the old one, and weights divided by 2^n give the old output: powers of two, so every dtype holds
them exactly. If H' / H is a power of 4, m is 1 and not one bit changes in float32; else m copies
keep the weights exact and only the sum of squares may round otherwise.

What reads a hidden vector reads its first copy. Where an input is always zero its weights are
random, as are all outputs that nothing reads further on (heads and MLP features beyond the source's
meet zero columns of o_proj and down_proj), so that every weight is read and multiplied for real.

A wider vocabulary needs logits that never win. The first position behind the copies then holds the
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
CONSTANT = 2.0**-14
CONSTANT_GAIN = 2.0**15


@dataclass(frozen=True)
class Axis:
    """How one dimension of a weight lies in a wider one.

    ``copies[c][i]`` is where index i lies in copy c. ``zero`` are positions whose weights must be
    zero; those in neither are free.
    """

    wide: int
    copies: tuple[Tensor, ...]
    zero: Tensor

    @classmethod
    def prefix(cls, size: int, wide: int, silent: bool) -> Axis:
        """The first ``size`` positions; the others are zero if ``silent``, else free."""
        return cls.at(torch.arange(size), wide, silent)

    @classmethod
    def at(cls, places: Tensor, wide: int, silent: bool) -> Axis:
        """One copy at the positions ``places [size] i64``."""
        return cls(wide, (places,), _others(places, wide) if silent else places[:0])

    @classmethod
    def joined(cls, axes: Sequence[Axis]) -> Axis:
        """Several one after another (q, k, v of EAGLE-3 read two hidden vectors side by side); of
        each only the first copy is used, so the joined axis serves for reading."""
        starts = [sum(axis.wide for axis in axes[:i]) for i in range(len(axes) + 1)]
        places = [axis.copies[0] + start for axis, start in zip(axes, starts, strict=False)]
        zero = [axis.zero + start for axis, start in zip(axes, starts, strict=False)]
        return cls(starts[-1], (torch.cat(places),), torch.cat(zero))


@dataclass(frozen=True)
class HiddenSpace:
    """The hidden vectors of a model and of its wider one; ``has_constant``: see the module."""

    size: int
    wide: int
    has_constant: bool = False

    def __post_init__(self) -> None:
        if self.wide % self.size:
            raise ConfigError(
                f"a hidden size of {self.size} cannot be widened to {self.wide}, which is not a "
                "multiple of it"
            )
        if self.has_constant and self.copies * self.size == self.wide:
            raise ConfigError(
                f"hidden size {self.size} widened to {self.wide} leaves no room for the constant "
                "that a wider vocabulary needs; keep the vocabulary"
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
        """m of the module's docstring; 1 = exact."""
        return self.wide // self.size // (1 << 2 * self.exponent)

    @property
    def eps_factor(self) -> float:
        return 0.25**self.exponent

    def _places(self) -> tuple[Tensor, ...]:
        return tuple(torch.arange(self.size) + c * self.size for c in range(self.copies))

    @property
    def written(self) -> Axis:
        """For outputs into the residual stream: every copy; nothing but zeros elsewhere."""
        places = self._places()
        return Axis(self.wide, places, _others(torch.cat(places), self.wide))

    @property
    def read(self) -> Axis:
        """For inputs: the first copy. Other copies and the constant must not count."""
        used = self.copies * self.size + self.has_constant
        return Axis(self.wide, self._places()[:1], torch.arange(self.size, used))

    def norm(self, weight: Tensor, constant: float = 0.0, copies: int | None = None) -> Tensor:
        """A norm's weight ``[H]`` -> ``[H']``; with ``copies`` only the first ones get an output.
        ``constant``: the weight of the constant, if there is one."""
        wide = torch.zeros(self.wide, dtype=weight.dtype)
        for places in self._places()[:copies]:
            wide[places] = weight * 0.5**self.exponent
        if self.has_constant:
            wide[self.copies * self.size] = constant
        return wide


@dataclass(frozen=True)
class HeadSpace:
    """Attention heads: every group of the source becomes the beginning of a wider group."""

    heads: int
    kv_heads: int
    head_dim: int
    wide_heads: int
    wide_kv_heads: int

    def __post_init__(self) -> None:
        group, wide_group = self.heads // self.kv_heads, self.wide_heads // self.wide_kv_heads
        if self.wide_heads % self.wide_kv_heads or wide_group < group:
            raise ConfigError(
                f"{self.heads} heads over {self.kv_heads} K/V heads do not fit into "
                f"{self.wide_heads} over {self.wide_kv_heads}: the wider model needs at least "
                f"{group} heads a K/V head"
            )
        if self.wide_kv_heads < self.kv_heads:
            raise ConfigError(
                f"{self.kv_heads} K/V heads cannot be widened to {self.wide_kv_heads}"
            )

    def queries(self, silent: bool) -> Axis:
        """Rows of q_proj; ``silent`` for the columns of o_proj."""
        group, wide_group = self.heads // self.kv_heads, self.wide_heads // self.wide_kv_heads
        head = torch.arange(self.heads)
        place = head // group * wide_group + head % group
        places = (place[:, None] * self.head_dim + torch.arange(self.head_dim)).flatten()
        return Axis.at(places, self.wide_heads * self.head_dim, silent)

    def keys(self) -> Axis:
        """Rows of k_proj and v_proj."""
        kv = self.kv_heads * self.head_dim
        return Axis.prefix(kv, self.wide_kv_heads * self.head_dim, silent=False)


def noise(shape: Sequence[int], dtype: torch.dtype, generator: torch.Generator) -> Tensor:
    """Random weights: uniform, as that is quick, with the standard deviation NOISE."""
    bound = NOISE * 3**0.5
    return torch.empty(*shape, dtype=dtype).uniform_(-bound, bound, generator=generator)


def widen_matrix(weight: Tensor, rows: Axis, columns: Axis, generator: torch.Generator) -> Tensor:
    """A weight ``[N, K]`` -> ``[rows.wide, columns.wide]`` of the same dtype."""
    wide = noise((rows.wide, columns.wide), weight.dtype, generator)
    wide[:, columns.zero] = 0
    wide[rows.zero] = 0
    for places in rows.copies:
        wide[places[:, None], columns.copies[0]] = weight
    return wide


def widen_embedding(
    weight: Tensor, space: HiddenSpace, vocab_size: int, generator: torch.Generator
) -> Tensor:
    """An embedding ``[V, H]`` -> ``[V', H']``; the new ids' rows are random."""
    vocab, size = weight.shape
    rows = torch.cat((weight, noise((vocab_size - vocab, size), weight.dtype, generator)))
    wide = torch.zeros(vocab_size, space.wide, dtype=weight.dtype)
    for places in space.written.copies:
        wide[:, places] = rows
    if space.has_constant:
        wide[:, space.copies * space.size] = CONSTANT
    return wide


def widen_head(
    weight: Tensor, space: HiddenSpace, vocab_size: int, generator: torch.Generator
) -> Tensor:
    """A head ``[V, H]`` -> ``[V', H']``; the new ids' logits are the constant's."""
    vocab = Axis.prefix(weight.shape[0], vocab_size, silent=False)
    wide = widen_matrix(weight, vocab, space.read, generator)
    if vocab_size > weight.shape[0]:
        wide[weight.shape[0] :, space.copies * space.size] = -CONSTANT_GAIN
    return wide


def _others(places: Tensor, wide: int) -> Tensor:
    free = torch.ones(wide, dtype=torch.bool)
    free[places] = False
    return free.nonzero().flatten()
