"""NormSpec: one normalisation of a row, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError

Shape: TypeAlias = tuple[int, ...]


@strict_config()
@dataclass(frozen=True)
class NormSpec:
    """eps: added to the mean square (``rms``) or the variance (``layer``) of a row. one_plus:
    multiply by 1 + weight instead of weight. bias: whether it adds one.

    Raises ConfigError for a negative ``eps`` and for a bias of an RMS norm.
    """

    eps: float
    kind: Literal["rms", "layer"] = "rms"
    one_plus: bool = False
    bias: bool = False

    def __post_init__(self) -> None:
        if not self.eps >= 0:
            raise ConfigError(f"eps of a norm is {self.eps}; it must not be negative")
        if self.bias and self.kind == "rms":
            raise ConfigError("a norm of kind rms has no bias; use kind layer")

    def tensors(self, name: str, shape: Shape) -> dict[str, Shape]:
        """The tensors of a norm of that name and width."""
        parts = ("weight", "bias") if self.bias else ("weight",)
        return dict.fromkeys((f"{name}.{part}" for part in parts), shape)
