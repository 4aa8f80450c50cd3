"""AssistantConfig: the shape of an assistant."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

from trtspec.config.embedding_spec import HeadSpec
from trtspec.config.kv import CacheDtype
from trtspec.config.layer import Layers, LayerSpec
from trtspec.config.model import ModelConfig
from trtspec.config.strict import from_dict, strict_config, to_dict
from trtspec.errors import ConfigError


@strict_config()
@dataclass(frozen=True)
class AssistantConfig:
    """Decoder layers with queries only, which attend to the target's K and V.

    body: the layers and the norm after them, with the target's ``vocab_size``; the K and V of its
    layers are those that they read. sources: for each layer, the target's layer that stores these.
    target_hidden_size: width of the target's hidden state. capture_layers: the state that is read,
    the output of the target's final norm (its number of layers). embedding_scale: factor on the
    target's embedding rows. num_clusters: the tokens form that many clusters of one size, and only
    those of the best ``top_clusters`` can be drafted; 0: all can.

    Raises ConfigError when fields contradict each other.
    """

    kind: ClassVar[str] = "assistant"
    decoder: ClassVar[None] = None

    body: ModelConfig
    sources: tuple[int, ...]
    target_hidden_size: int
    capture_layers: tuple[int, ...]
    embedding_scale: float = 1.0
    num_clusters: int = 0
    top_clusters: int = 0

    def __post_init__(self) -> None:
        if len(self.sources) != self.body.num_layers:
            raise ConfigError(
                f"sources name {len(self.sources)} layers of the target, the assistant has "
                f"{self.body.num_layers}"
            )
        if self.body.embedding.per_layer is not None:
            raise ConfigError("an assistant has no per-layer embeddings")
        if len(self.capture_layers) != 1:
            raise ConfigError(
                f"an assistant reads one state, not those of layers {list(self.capture_layers)}"
            )
        clusters, vocab = self.num_clusters, self.body.vocab_size
        if clusters and (clusters < 0 or vocab % clusters):
            raise ConfigError(
                f"num_clusters is {clusters}; the vocabulary of {vocab} tokens must be a multiple"
            )
        if not (1 <= self.top_clusters <= clusters if clusters else self.top_clusters == 0):
            raise ConfigError(f"top_clusters is {self.top_clusters}, there are {clusters} clusters")

    @property
    def ranks(self) -> int:
        """See `DraftConfig.ranks`."""
        return self.body.ranks

    @property
    def decoders(self) -> Mapping[str, ModelConfig]:
        """See `DraftConfig.decoders`."""
        return {"": dataclasses.replace(self.body, head=HeadSpec())}

    def sharded(self, ranks: int) -> AssistantConfig:
        """See `ModelConfig.sharded`: a rank's queries read what it has of the target's K and V,
        which are split alike."""
        return dataclasses.replace(self, body=self.body.sharded(ranks))

    @property
    def target_layers(self) -> tuple[int, ...]:
        """The target's layers whose K and V are read, each once, ascending."""
        return tuple(sorted(set(self.sources)))

    @property
    def read_caches(self) -> ModelConfig:
        """A decoder with the caches that the assistant reads: a layer for each of
        `target_layers`."""
        specs = [self.body.layers[self.sources.index(layer)] for layer in self.target_layers]
        return dataclasses.replace(self.body, layers=Layers.of(specs))

    @property
    def layers(self) -> list[LayerSpec]:
        """Its layers as they run: without K and V."""
        pairs = zip(self.body.layers, self.sources, strict=True)
        return [spec.with_mixer(kv_from=source) for spec, source in pairs]

    def with_caches(self, dtype: CacheDtype | None) -> AssistantConfig:
        """The config for a target with such K/V caches; see `ModelConfig.with_caches`."""
        return dataclasses.replace(self, body=self.body.with_caches(dtype))

    def for_steps(self, num_steps: int) -> AssistantConfig:
        """The config itself: it drafts to any depth."""
        return self

    def describe(self) -> str:
        """A one-line description."""
        head = f", {self.top_clusters} of {self.num_clusters} clusters" if self.num_clusters else ""
        return (
            f"assistant, {self.body.num_layers} layers of queries, hidden {self.body.hidden_size}, "
            f"over K/V of the target's layers {', '.join(map(str, self.target_layers))}{head}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` is the inverse."""
        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AssistantConfig:
        """The inverse of `to_dict`, also after a round trip through JSON; ConfigError for an
        unknown key."""
        return from_dict(cls, data)
