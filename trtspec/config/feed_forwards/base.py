"""FeedForwardSpec: the base of all feed-forward specs."""

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
        """Shapes by name, in a network of width ``hidden``.

        Raises:
            ConfigError: its tensors have no names.
        """
        raise self.unnamed()

    def sharded_by_expert(self, ranks: int) -> Self:
        """Like `LayerPart.sharded`, but a rank has some experts of a mixture, each whole."""
        return self.sharded(ranks)

    @property
    def choice(self) -> tuple[float, int]:
        """For a mixture: how many local experts a row is expected to go through, and how many there
        are; zeros otherwise."""
        return 0, 0
