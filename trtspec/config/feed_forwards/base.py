"""FeedForwardSpec: what every feed-forward part says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, Self

from trtspec.config.layer_part import LayerPart
from trtspec.config.norm_spec import Shape


class FeedForwardSpec(LayerPart):
    """The feed-forward part of a layer; see `LayerPart`. activation: of its hidden elements."""

    activation: str

    title: ClassVar[str] = "a feed-forward part of kind"

    def tensors(self, hidden: int) -> Iterator[tuple[str, Shape]]:
        """Shapes by name, in a network of ``hidden`` elements a row.

        Raises:
            ConfigError: they have no names.
        """
        raise self.unnamed()

    def sharded_by_expert(self, ranks: int) -> Self:
        """See `LayerPart.sharded`; of a mixture, a rank has some of the experts, whole."""
        return self.sharded(ranks)

    @property
    def choice(self) -> tuple[float, int]:
        """Of a mixture, through how many experts a row is expected to go here, and how many are
        here; else zeros."""
        return 0, 0
