"""MixerSpec: what every mixer says of itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, NamedTuple, Self

from trtspec.config.cache_buffer import CacheBuffer
from trtspec.config.kv import CacheDtype
from trtspec.config.layer_part import LayerPart
from trtspec.config.norm_spec import NormSpec, Shape
from trtspec.errors import ConfigError


class Turn(NamedTuple):
    """How a layer rotates rows: by a table of ``ModelConfig.ropes``, the first ``rotary_dim``
    elements of a head, neighbours with each other if ``interleaved``, else its halves."""

    rope: int
    rotary_dim: int
    interleaved: bool


class MixerSpec(LayerPart):
    """The mixer of a layer; see `LayerPart`."""

    title: ClassVar[str] = "a mixer of kind"

    def tensors(self, hidden: int, width: int) -> Iterator[tuple[str, Shape]]:
        """Shapes by name, in a network of ``hidden`` elements a row, of which it reads ``width``.

        Raises:
            ConfigError: they have no names.
        """
        raise self.unnamed()

    @property
    def window(self) -> int:
        """Newest tokens that its rows see; 0: all."""
        return 0

    @property
    def turn(self) -> Turn | None:
        """How rows are rotated; None: they are not."""
        return None

    @property
    def buffers(self) -> tuple[CacheBuffer, ...]:
        """What its cache is made of; empty where it has none of its own. With one of kind ``slot``
        the mixer's module has a ``replay`` (see `trtspec.models.replay`)."""
        return ()

    def with_cache(self, dtype: CacheDtype | None) -> Self:
        """Itself, its cache in 8 bits, or in the network's dtype.

        Raises:
            ConfigError: it has none that could be.
        """
        raise ConfigError(f"{self.words} keeps nothing in {dtype}; leave kv_cache_dtype out")

    @property
    def kv_from(self) -> int | None:
        """The earlier layer whose cache it reads; None: its own, or none."""
        return None

    def check_in(self, index: int, mixers: Sequence[MixerSpec], num_ropes: int) -> None:
        """ConfigError unless what layer ``index`` names outside itself is there: among the
        ``mixers`` of all layers, and the rope tables."""
        if self.turn is not None and not 0 <= self.turn.rope < num_ropes:
            raise ConfigError(
                f"layer {index} names rope table {self.turn.rope}, there are {num_ropes}"
            )

    def as_stored(self, has: Callable[[str], bool], norm: NormSpec) -> Self:
        """Itself as a checkpoint that `has` these tensors (see `layer_tensors`) keeps it, without a
        window; ``norm``: of heads, where there are such."""
        return self
