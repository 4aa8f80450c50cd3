"""EmbeddingSpec, HeadSpec: how a model reads tokens and says them, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError


@strict_config()
@dataclass(frozen=True)
class EmbeddingSpec:
    """scale: what rows of the embedding are multiplied with. per_layer_size: width of a second
    embedding of each token for every layer, in elements; 0: none. scales_borrowed: whether a draft
    that borrows rows through the family's own embedding module gets them scaled. ConfigError for a
    value that is none."""

    scale: float = 1.0
    per_layer_size: int = 0
    scales_borrowed: bool = False

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ConfigError(f"scale of the embedding is {self.scale}; it must be above 0")
        if self.per_layer_size < 0:
            raise ConfigError(f"per_layer_size is {self.per_layer_size}; it must not be negative")


@strict_config()
@dataclass(frozen=True)
class HeadSpec:
    """tied: its matrix is the embedding's. scale: what logits are multiplied with. soft_cap: logits
    l become ``cap * tanh(l / cap)``; None: they stay. bias: it adds one. ConfigError for a value
    that is none."""

    tied: bool = False
    scale: float = 1.0
    soft_cap: float | None = None
    bias: bool = False

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ConfigError(f"scale of the logits is {self.scale}; it must be above 0")
        if self.soft_cap is not None and not self.soft_cap > 0:
            raise ConfigError(f"soft_cap of the logits is {self.soft_cap}; it must be above 0")
