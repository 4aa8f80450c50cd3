"""WeightStorage: how the quantised weights of linear layers are stored, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError

SCALE_DTYPES = ("float32", "float16", "bfloat16")
_MAGNITUDES = (0, 1, 2, 3, 4, 6, 8, 12)
TABLES: Mapping[str, tuple[int, ...]] = {
    "float4": (*_MAGNITUDES, *(-value for value in _MAGNITUDES)),
    "iq4": (-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113),
}
"""What the 16 patterns of 4 bits stand for, by name, where these are no integers: twice the floats
of OCP's E2M1 (FP4), and the values of ggml's IQ4 types."""
_FLOATS = "float8"
KINDS = {"int": range(1, 9), "float": (4, 8), "iq": (4,)}
"""Of values, and of how many bits they are: integers, floats (E4M3 of 8 bits, E2M1 of 4), and
places in ggml's table."""


@strict_config()
@dataclass(frozen=True)
class WeightStorage:
    """A scheme of quantised weights, see `trtspec.config.quantised.QuantisedTensor`.

    kind, bits: of the values, see `KINDS`. group_size: input features of an output that share a
    scale, a zero point and a minimum; 0: all of them. scale_dtype: of scales and minima.
    zero_points, minima, input_scales: whether there are such. permuted: whether groups hold inputs
    in another order than the layer's.

    Raises:
        ConfigError: a size or a dtype that is none.
    """

    bits: int
    group_size: int = 0
    scale_dtype: str = "float32"
    zero_points: bool = False
    minima: bool = False
    input_scales: bool = False
    permuted: bool = False
    kind: str = "int"

    def __post_init__(self) -> None:
        if self.bits not in KINDS.get(self.kind, ()):
            raise ConfigError(
                f"bits={self.bits} of a quantised weight of kind {self.kind!r}; there are int of 1 "
                "to 8 bits, float of 4 or 8, and iq of 4"
            )
        if self.group_size < 0:
            raise ConfigError(f"group_size={self.group_size} must not be negative")
        if self.scale_dtype not in SCALE_DTYPES:
            raise ConfigError(
                f"scale_dtype {self.scale_dtype!r} must be one of {', '.join(SCALE_DTYPES)}"
            )
        if self.zero_points and self.minima:
            raise ConfigError("zero_points and minima of a quantised weight exclude each other")

    @property
    def name(self) -> str:
        """That of the weight format which takes such weights as they are."""
        return f"{self.kind}{self.bits}"

    @property
    def is_float8(self) -> bool:
        return self.name == _FLOATS

    @property
    def table(self) -> tuple[int, ...] | None:
        """What patterns of 4 bits stand for; None: values are no places in a table."""
        return TABLES.get(self.name)


@strict_config()
@dataclass(frozen=True)
class NetworkStorage:
    """How the weights of a network are quantised, by their names in its checkpoint less
    ``.weight``.

    usual: the scheme of all that are not named. others: the named ones, each with its scheme; None:
    floats.
    """

    usual: WeightStorage
    others: tuple[tuple[str, WeightStorage | None], ...] = ()

    @classmethod
    def of(cls, weights: Mapping[str, WeightStorage | None]) -> NetworkStorage | None:
        """That of a network's weights; None where all are floats."""
        counts = Counter(scheme for scheme in weights.values() if scheme is not None)
        if not counts:
            return None
        usual = counts.most_common(1)[0][0]
        others = tuple(each for each in weights.items() if each[1] != usual)
        return cls(usual, others)

    def scheme(self, name: str) -> WeightStorage | None:
        """That of a weight; None: floats."""
        return self._by_name.get(name, self.usual)

    @property
    def schemes(self) -> tuple[WeightStorage, ...]:
        """All that there are, the usual one first."""
        named = (scheme for _, scheme in self.others if scheme is not None)
        return tuple(dict.fromkeys((self.usual, *named)))

    @property
    def name(self) -> str:
        """Those of the formats that take such weights as they are."""
        return " and ".join(dict.fromkeys(scheme.name for scheme in self.schemes))

    @cached_property
    def _by_name(self) -> Mapping[str, WeightStorage | None]:
        return dict(self.others)
