"""WeightStorage: how a checkpoint stores the quantised weights of its linear layers, as plain
data."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError

SCALE_SUFFIX = "_scale"
"""Behind the name of a quantised weight: the name of its scales."""


@strict_config()
@dataclass(frozen=True)
class WeightStorage:
    """A checkpoint's scheme of quantised weights.

    bits: of one weight, a whole number times its scale. group_size: input features that share a
    scale; 0: all of an output. ConfigError for sizes that are none.
    """

    bits: int
    group_size: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.bits <= 8:
            raise ConfigError(f"bits={self.bits} of a quantised weight must be between 1 and 8")
        if self.group_size < 0:
            raise ConfigError(f"group_size={self.group_size} must not be negative")

    @property
    def name(self) -> str:
        """That of the weight format which takes such weights as they are."""
        return f"int{self.bits}"
