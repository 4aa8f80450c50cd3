"""EmbeddingSpec, PerLayerSpec, HeadSpec: how a model reads tokens and says them, as plain data."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.config.norm_spec import NormSpec
from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError


@strict_config()
@dataclass(frozen=True)
class PerLayerSpec:
    """A second embedding of each token, of ``size`` elements for every layer. With e the token's
    row behind ``EmbeddingSpec.scale``, layer i is given ``sum_scale * (norm(projection_scale *
    (projection e)_i) + scale * row_i)``. rows: tokens that have such rows, None: all; any others,
    which are padding, read the first one's. ConfigError for a value that is none."""

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
    """scale: what rows of the embedding are multiplied with. per_layer: a second embedding, for
    every layer. scales_borrowed: whether a draft that borrows rows through the family's own
    embedding module gets them scaled. ConfigError for a value that is none."""

    scale: float = 1.0
    per_layer: PerLayerSpec | None = None
    scales_borrowed: bool = False

    def __post_init__(self) -> None:
        if not self.scale > 0:
            raise ConfigError(f"scale of the embedding is {self.scale}; it must be above 0")


@strict_config()
@dataclass(frozen=True)
class HeadSpec:
    """tied: its matrix is the embedding's. scale: what logits are multiplied with. soft_cap: logits
    l become ``cap * tanh(l / cap)``; None: they stay. bias: it adds one to what comes of this.
    rows: of a draft's that is cut to some of the tokens, how many; None: it has one for each.
    ConfigError for a value that is none, or for a cut head that is the embedding."""

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
