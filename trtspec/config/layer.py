"""LayerSpec, Layers: decoder layers as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Literal

from trtspec.config.feed_forwards import dense, experts
from trtspec.config.feed_forwards.base import FeedForwardSpec
from trtspec.config.feed_forwards.dense import check_activation
from trtspec.config.layer_part import check_sizes
from trtspec.config.mixers import attention, gated_delta, latent_attention, mamba2
from trtspec.config.mixers.base import MixerSpec
from trtspec.config.norm_spec import NormSpec
from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError

MIXERS = (attention, latent_attention, gated_delta, mamba2)
FEED_FORWARDS = (dense, experts)
"""The modules of all parts; a part is known once its module is imported."""


@strict_config()
@dataclass(frozen=True)
class PerLayerInput:
    """``x = x + norm(out(act(gate(x)) * given))``, where ``given`` is the layer's own row of the
    token, with ``size`` elements (see `PerLayerSpec`). activation: one of `ACTIVATIONS`.
    ConfigError for invalid values."""

    size: int
    activation: str

    def __post_init__(self) -> None:
        check_sizes(self, "size")
        check_activation(self.activation)


@strict_config()
@dataclass(frozen=True)
class LayerSpec:
    """One decoder layer: ``x = x + s * mixer(x)``, then ``x = x + s * ffn(x)``.

    ffn: None if there is only a mixer. norm, norm_place: norms are applied before mixer and
    feed-forward, after each (before the sum), or both. parallel: both parts read the same x.
    residual_scale: s. per_layer: uses ``EmbeddingSpec.per_layer``, after the rest. output_scale:
    the output is multiplied by a number from the checkpoint.
    """

    mixer: MixerSpec
    ffn: FeedForwardSpec | None
    norm: NormSpec
    norm_place: Literal["before", "after", "both"] = "before"
    parallel: bool = False
    residual_scale: float = 1.0
    per_layer: PerLayerInput | None = None
    output_scale: bool = False

    def sharded(self, ranks: int, by_expert: bool = False) -> LayerSpec:
        """One rank's share of mixer and feed-forward, whose outputs are to be summed over the
        ranks. ``by_expert``: see `FeedForwardSpec.sharded_by_expert`. ConfigError: see
        `LayerPart.sharded`."""
        mixer, ffn = self.mixer.sharded(ranks), self.ffn
        if ffn is not None:
            ffn = ffn.sharded_by_expert(ranks) if by_expert else ffn.sharded(ranks)
        return dataclasses.replace(self, mixer=mixer, ffn=ffn)

    @property
    def window(self) -> int:
        """Newest tokens that its attention sees; 0: all, or it has no attention."""
        return self.mixer.window

    def with_mixer(self, **fields: Any) -> LayerSpec:
        """The layer with these fields of its mixer replaced."""
        return dataclasses.replace(self, mixer=dataclasses.replace(self.mixer, **fields))

    def with_norms(self, place: Literal["before", "after", "both"]) -> LayerSpec:
        """The layer with its norms at that place."""
        return dataclasses.replace(self, norm_place=place)

    def in_parallel(self) -> LayerSpec:
        """The layer with both parts reading the same rows."""
        return dataclasses.replace(self, parallel=True)

    def scaled(self, residual_scale: float) -> LayerSpec:
        """The layer with that residual scale."""
        return dataclasses.replace(self, residual_scale=residual_scale)

    def with_per_layer(self, size: int, activation: str) -> LayerSpec:
        """The layer with a per-layer embedding of ``size`` elements."""
        return dataclasses.replace(self, per_layer=PerLayerInput(size, activation))

    def with_output_scale(self) -> LayerSpec:
        """The layer with a scale on its output."""
        return dataclasses.replace(self, output_scale=True)

    def with_ffn(self, **fields: Any) -> LayerSpec:
        """The layer with these fields of its feed-forward part replaced."""
        assert self.ffn is not None
        return dataclasses.replace(self, ffn=dataclasses.replace(self.ffn, **fields))


@strict_config()
@dataclass(frozen=True)
class Layers:
    """The layers of a model as a sequence, in which equal layers are stored once.

    specs: the distinct layers, in order of first use. order: the index into ``specs`` for each
    layer. Raises ConfigError for any other form, so that equal models compare equal.
    """

    specs: tuple[LayerSpec, ...]
    order: tuple[int, ...]

    def __post_init__(self) -> None:
        if not self.order:
            raise ConfigError("num_layers is 0; it must be at least 1")
        first_uses = list(dict.fromkeys(self.order))
        if first_uses != list(range(len(self.specs))):
            raise ConfigError(
                f"order of layers uses the specs {first_uses}; it must use all of "
                f"{len(self.specs)}, counted from 0 in the order of their first layer"
            )
        if len(set(self.specs)) < len(self.specs):
            raise ConfigError(f"{len(self.specs)} specs of layers are not all different")

    @classmethod
    def of(cls, layers: Iterable[LayerSpec]) -> Layers:
        """From one spec per layer."""
        listed = list(layers)
        specs = {spec: index for index, spec in enumerate(dict.fromkeys(listed))}
        return cls(tuple(specs), tuple(specs[spec] for spec in listed))

    @classmethod
    def repeat(cls, spec: LayerSpec, count: int) -> Layers:
        """That many equal layers; ConfigError unless it is a positive number."""
        if isinstance(count, bool) or not isinstance(count, int):
            raise ConfigError(
                f"ModelConfig: `num_layers` must be int, got {type(count).__name__} {count!r:.80}"
            )
        if count < 1:
            raise ConfigError(f"num_layers is {count}; it must be at least 1")
        return cls((spec,), (0,) * count)

    def times(self, count: int) -> Layers:
        """All layers, repeated that many times."""
        return Layers(self.specs, self.order * count)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, layer: int) -> LayerSpec:
        return self.specs[self.order[layer]]

    def __iter__(self) -> Iterator[LayerSpec]:
        return (self.specs[index] for index in self.order)
