"""FeedForwardSpec: what every feed-forward part says of itself."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

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

    @property
    def choice(self) -> tuple[int, int]:
        """Of a mixture, through how many experts a row goes, and of how many; else zeros."""
        return 0, 0
