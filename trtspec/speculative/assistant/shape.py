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
    """Decoder layers with queries alone, which attend to K and V of the target.

    body: the layers and the norm behind them, ``vocab_size`` being the target's; the K and V that
    its layers have are those they read. sources: for each layer, the target's layer that keeps
    these. target_hidden_size: width of the target's state. capture_layers: the state that is read,
    the output of the target's final norm (its number of layers). embedding_scale: what the target's
    rows of its embedding are multiplied with. num_clusters: the tokens lie in so many clusters of
    one size, and only those of the best ``top_clusters`` can be drafted; 0: all can.

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
        """The target's layers whose K and V are read, each once, rising."""
        return tuple(sorted(set(self.sources)))

    @property
    def read_caches(self) -> ModelConfig:
        """A decoder that keeps what the assistant reads: a layer for each of `target_layers`."""
        specs = [self.body.layers[self.sources.index(layer)] for layer in self.target_layers]
        return dataclasses.replace(self.body, layers=Layers.of(specs))

    @property
    def layers(self) -> list[LayerSpec]:
        """Its layers as they run: they have no K and V."""
        pairs = zip(self.body.layers, self.sources, strict=True)
        return [spec.with_mixer(kv_from=source) for spec, source in pairs]

    def with_caches(self, dtype: CacheDtype | None) -> AssistantConfig:
        """Itself beside a target that keeps its K and V so; see `ModelConfig.with_caches`."""
        return dataclasses.replace(self, body=self.body.with_caches(dtype))

    def for_steps(self, num_steps: int) -> AssistantConfig:
        """Itself: it drafts as deep as one likes."""
        return self

    def describe(self) -> str:
        """The network in one line."""
        head = f", {self.top_clusters} of {self.num_clusters} clusters" if self.num_clusters else ""
        return (
            f"assistant, {self.body.num_layers} layers of queries, hidden {self.body.hidden_size}, "
            f"over K/V of the target's layers {', '.join(map(str, self.target_layers))}{head}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` takes them back."""
        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> AssistantConfig:
        """The inverse of `to_dict`, also after JSON; raises ConfigError on an unknown key."""
        return from_dict(cls, data)
