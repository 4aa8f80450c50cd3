"""LayerSpec, Layers: one decoder layer as plain data, and those of a model."""

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
"""The modules of all parts: those are known whose module was imported."""


@strict_config()
@dataclass(frozen=True)
class PerLayerInput:
    """``x = x + norm(out(act(gate(x)) * given))``, ``given`` being the layer's own row of ``size``
    elements of the token (see `PerLayerSpec`). activation: one of `ACTIVATIONS`. ConfigError for a
    value that is none."""

    size: int
    activation: str

    def __post_init__(self) -> None:
        check_sizes(self, "size")
        check_activation(self.activation)


@strict_config()
@dataclass(frozen=True)
class LayerSpec:
    """One decoder layer: ``x = x + s * mixer(x)``, then ``x = x + s * ffn(x)``.

    ffn: None where there is only a mixer. norm, norm_place: norms stand before mixer and
    feed-forward, behind each (before the sum), or at both places. parallel: both read the same x.
    residual_scale: s. per_layer: what it makes of ``EmbeddingSpec.per_layer``, behind the rest.
    output_scale: all of it is multiplied with a number of the checkpoint's in the end.
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
        """What one of so many ranks computes of its mixer and of its feed-forward part, each to be
        summed over the ranks. ``by_expert``: see `FeedForwardSpec.sharded_by_expert`. ConfigError:
        see `LayerPart.sharded`."""
        mixer, ffn = self.mixer.sharded(ranks), self.ffn
        if ffn is not None:
            ffn = ffn.sharded_by_expert(ranks) if by_expert else ffn.sharded(ranks)
        return dataclasses.replace(self, mixer=mixer, ffn=ffn)

    @property
    def window(self) -> int:
        """Newest tokens that its attention sees; 0: all, or it has none."""
        return self.mixer.window

    def with_mixer(self, **fields: Any) -> LayerSpec:
        """Itself with these fields of its mixer."""
        return dataclasses.replace(self, mixer=dataclasses.replace(self.mixer, **fields))

    def with_norms(self, place: Literal["before", "after", "both"]) -> LayerSpec:
        """Itself with its norms at that place."""
        return dataclasses.replace(self, norm_place=place)

    def in_parallel(self) -> LayerSpec:
        """Itself with both parts reading the same rows."""
        return dataclasses.replace(self, parallel=True)

    def scaled(self, residual_scale: float) -> LayerSpec:
        """Itself with that factor on what is added to a row."""
        return dataclasses.replace(self, residual_scale=residual_scale)

    def with_per_layer(self, size: int, activation: str) -> LayerSpec:
        """Itself, given a row of so many elements of every token."""
        return dataclasses.replace(self, per_layer=PerLayerInput(size, activation))

    def with_output_scale(self) -> LayerSpec:
        """Itself, multiplied with a number of the checkpoint's."""
        return dataclasses.replace(self, output_scale=True)

    def with_ffn(self, **fields: Any) -> LayerSpec:
        """Itself with these fields of its feed-forward part, which it has."""
        assert self.ffn is not None
        return dataclasses.replace(self, ffn=dataclasses.replace(self.ffn, **fields))


@strict_config()
@dataclass(frozen=True)
class Layers:
    """The layers of a model, as a sequence; written once where they are equal.

    specs: the different ones, in the order of their first layer. order: of each layer, its index
    there. Raises ConfigError for any other form, so that equal layers compare equal.
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
        """Of a spec for each layer."""
        listed = list(layers)
        specs = {spec: index for index, spec in enumerate(dict.fromkeys(listed))}
        return cls(tuple(specs), tuple(specs[spec] for spec in listed))

    @classmethod
    def repeat(cls, spec: LayerSpec, count: int) -> Layers:
        """So many equal layers; ConfigError if that is no number from 1 on."""
        if isinstance(count, bool) or not isinstance(count, int):
            raise ConfigError(
                f"ModelConfig: `num_layers` must be int, got {type(count).__name__} {count!r:.80}"
            )
        if count < 1:
            raise ConfigError(f"num_layers is {count}; it must be at least 1")
        return cls((spec,), (0,) * count)

    def times(self, count: int) -> Layers:
        """All layers, so many times over."""
        return Layers(self.specs, self.order * count)

    def __len__(self) -> int:
        return len(self.order)

    def __getitem__(self, layer: int) -> LayerSpec:
        return self.specs[self.order[layer]]

    def __iter__(self) -> Iterator[LayerSpec]:
        return (self.specs[index] for index in self.order)
