"""MixerSpec: the base of all mixer specs."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import ClassVar, NamedTuple, Self

from trtspec.config.cache_buffer import CacheBuffer
from trtspec.config.kv import CacheDtype
from trtspec.config.layer_part import LayerPart
from trtspec.config.norm_spec import NormSpec, Shape
from trtspec.errors import ConfigError


class Turn(NamedTuple):
    """How a layer rotates rows: a table of ``ModelConfig.ropes``, over the first ``rotary_dim``
    elements of a head; ``interleaved`` pairs neighbours, otherwise the halves are paired."""

    rope: int
    rotary_dim: int
    interleaved: bool


class MixerSpec(LayerPart):
    """The mixer of a layer; see `LayerPart`."""

    title: ClassVar[str] = "a mixer of kind"

    def tensors(self, hidden: int, width: int) -> Iterator[tuple[str, Shape]]:
        """Shapes by name, in a network of width ``hidden``; it reads rows of ``width``.

        Raises:
            ConfigError: its tensors have no names.
        """
        raise self.unnamed()

    @property
    def window(self) -> int:
        """Newest tokens that its rows see; 0: all."""
        return 0

    @property
    def turn(self) -> Turn | None:
        """How rows are rotated; None: not at all."""
        return None

    @property
    def buffers(self) -> tuple[CacheBuffer, ...]:
        """The buffers of its cache; empty if it has none of its own. With a buffer of kind ``slot``
        the mixer's module has a ``replay`` (see `trtspec.models.replay`)."""
        return ()

    def with_cache(self, dtype: CacheDtype | None) -> Self:
        """The spec with its K and V in that dtype (None: the network's). A state is not K/V and
        stays as it is."""
        return self

    @property
    def norms_over_ranks(self) -> int:
        """Of a rank's part, its norms over elements that other ranks have."""
        return 0

    @property
    def kv_from(self) -> int | None:
        """The earlier layer whose cache it reads; None: its own, or it needs none."""
        return None

    def check_in(self, index: int, mixers: Sequence[MixerSpec], num_ropes: int) -> None:
        """Raise ConfigError if layer ``index`` refers to a layer (among ``mixers``) or a rope table
        that does not exist."""
        if self.turn is not None and not 0 <= self.turn.rope < num_ropes:
            raise ConfigError(
                f"layer {index} names rope table {self.turn.rope}, there are {num_ropes}"
            )

    def as_stored(self, has: Callable[[str], bool], norm: NormSpec) -> Self:
        """The spec as stored by a checkpoint that `has` these tensors (see `layer_tensors`),
        without a window; ``norm``: for heads, where the checkpoint has such norms."""
        return self
