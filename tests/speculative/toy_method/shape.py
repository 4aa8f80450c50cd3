"""ToyConfig: the shape of the toy's network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trtspec.config.strict import from_dict, strict_config, to_dict
from trtspec.errors import ConfigError


@strict_config()
@dataclass(frozen=True)
class ToyConfig:
    """hidden_size: of a state, the target's. vocab_size: the target's. capture_layers: the one
    state that it begins with."""

    kind: ClassVar[str] = "toy"
    decoder: ClassVar[None] = None
    ranks: ClassVar[int] = 1

    hidden_size: int
    vocab_size: int
    capture_layers: tuple[int, ...]

    def __post_init__(self) -> None:
        if len(self.capture_layers) != 1:
            raise ConfigError(f"a toy reads one layer, not {list(self.capture_layers)}")

    def with_caches(self, dtype: object) -> ToyConfig:
        return self

    def for_steps(self, num_steps: int) -> ToyConfig:
        return self

    def describe(self) -> str:
        return f"toy, hidden {self.hidden_size}, reads layer {self.capture_layers[0]}"

    def to_dict(self) -> dict[str, Any]:
        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ToyConfig:
        return from_dict(cls, data)
