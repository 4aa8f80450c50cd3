"""WeightStorage: how the quantised weights of linear layers are stored, as plain data."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError

SCALE_DTYPES = ("float32", "float16")


@strict_config()
@dataclass(frozen=True)
class WeightStorage:
    """A scheme of quantised weights, see `trtspec.config.quantised.QuantisedTensor`.

    bits: of a value, 8 or 4. group_size: input features of an output that share a scale, a zero
    point and a minimum; 0: all of them. scale_dtype: of scales and minima. zero_points, minima,
    input_scales: whether there are such. permuted: whether groups hold inputs in another order than
    the layer's.

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

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise ConfigError(f"bits={self.bits} of a quantised weight must be between 1 and 8")
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
        return f"int{self.bits}"


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
