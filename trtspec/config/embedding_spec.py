"""EmbeddingSpec, PerLayerSpec, HeadSpec: how a model embeds tokens and computes logits, as plain
data."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.config.norm_spec import NormSpec
from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError


@strict_config()
@dataclass(frozen=True)
class PerLayerSpec:
    """A second embedding with ``size`` elements for every layer. With e the token's row after
    ``EmbeddingSpec.scale``, layer i receives ``sum_scale * (norm(projection_scale * (projection
    e)_i) + scale * row_i)``. rows: tokens with such rows, None: all; other tokens, which are
    padding, read the first row. ConfigError for invalid values."""

    size: int
    norm: NormSpec
    scale: float = 1.0
    projection_scale: float = 1.0
    sum_scale: float = 1.0
    rows: int | None = None

    def __post_init__(self) -> None:
        for name, number in (("size", self.size), ("rows", self.rows)):
            if number is not None and number < 1:
                raise ConfigError(
                    f"{name} of a per-layer embedding is {number}; it must be above 0"
                )
        for name in ("scale", "projection_scale", "sum_scale"):
            if not getattr(self, name) > 0:
                raise ConfigError(
                    f"{name} of a per-layer embedding is {getattr(self, name)}; it must be above 0"
                )


@strict_config()
@dataclass(frozen=True)
class EmbeddingSpec:
    """scale: factor on embedding rows. per_layer: a second embedding, for every layer.
    scales_borrowed: whether a draft that borrows rows through the family's own embedding module
    gets them scaled. ConfigError for invalid values."""

    scale: float = 1.0
    per_layer: PerLayerSpec | None = None
    scales_borrowed: bool = False

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ConfigError(f"scale of the embedding is {self.scale}; it must be above 0")


@strict_config()
@dataclass(frozen=True)
class HeadSpec:
    """tied: its matrix is the embedding's. scale: factor on logits. soft_cap: logits l become ``cap
    * tanh(l / cap)``; None: no cap. bias: added after that. rows: number of rows of a draft's
    reduced head; None: one for each token. ConfigError for invalid values, or for a reduced head
    that is tied."""

    tied: bool = False
    scale: float = 1.0
    soft_cap: float | None = None
    bias: bool = False
    rows: int | None = None

    def __post_init__(self) -> None:
        if self.rows is not None and (self.rows < 1 or self.tied):
            raise ConfigError(
                f"rows={self.rows} of a head must be at least 1, and of no embedding (tied)"
            )
        if not self.scale > 0:
            raise ConfigError(f"scale of the logits is {self.scale}; it must be above 0")
        if self.soft_cap is not None and not self.soft_cap > 0:
            raise ConfigError(f"soft_cap of the logits is {self.soft_cap}; it must be above 0")
