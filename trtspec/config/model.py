"""The shape of a decoder-only language model, as the models and engines need it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from trtspec.config.embedding_spec import EmbeddingSpec, HeadSpec
from trtspec.config.kv import CacheDtype
from trtspec.config.layer import Layers
from trtspec.config.norm_spec import NormSpec
from trtspec.config.rope import RopeConfig
from trtspec.config.storage import NetworkStorage
from trtspec.config.strict import from_dict, strict_config, to_dict
from trtspec.errors import ConfigError

DTYPES = ("float32", "bfloat16", "float16")


@strict_config()
@dataclass(frozen=True)
class ModelConfig:
    """A decoder, layer by layer; what a family does differently is in its layers' specs, never in
    the architecture's name.

    Sizes are in elements. layers: a `LayerSpec` for each. norm: behind the last one.
    max_position_embeddings: tokens of the sequences that it was made for. ropes: tables of rotary
    embedding, which the layers name by index. ``dtype`` is that of the checkpoint, not of
    the engine. storage: how weights are quantised, in a checkpoint, or in an engine that keeps
    them so; None: they are floats. ranks: processes that the network is split over (tensor
    parallel): layers, and rows of embedding and head, are those of one of them (see `sharded`).
    Raises ConfigError when fields contradict each other.

    A language model may draft for another: it is a `DraftConfig` as well.
    """

    kind: ClassVar[str] = "model"
    capture_layers: ClassVar[tuple[int, ...]] = ()

    architecture: str
    vocab_size: int
    hidden_size: int
    layers: Layers
    norm: NormSpec
    max_position_embeddings: int
    ropes: tuple[RopeConfig, ...] = (RopeConfig(),)
    embedding: EmbeddingSpec = dataclasses.field(default_factory=EmbeddingSpec)
    head: HeadSpec = dataclasses.field(default_factory=HeadSpec)
    dtype: str = "float32"
    storage: NetworkStorage | None = None
    bos_token_id: int | None = None
    eos_token_ids: tuple[int, ...] = ()
    ranks: int = 1

    def __post_init__(self) -> None:
        for name in ("vocab_size", "hidden_size", "max_position_embeddings", "ranks"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.draft_vocab_size > self.vocab_size:
            raise ConfigError(
                f"the head has {self.draft_vocab_size} rows, more than {self.vocab_size} tokens"
            )
        given, mixers = self.embedding.per_layer, [layer.mixer for layer in self.layers]
        for index, layer in enumerate(self.layers):
            layer.mixer.check_in(index, mixers, len(self.ropes))
            sizes = [None if part is None else part.size for part in (layer.per_layer, given)]
            if sizes[0] != sizes[1]:
                raise ConfigError(
                    f"layer {index} reads per-layer embeddings of {sizes[0]} elements, the "
                    f"embedding has {sizes[1]}"
                )
        if self.dtype not in DTYPES:
            raise ConfigError(
                f"dtype {self.dtype!r} is not supported; supported: {', '.join(DTYPES)}"
            )
        if any(token < 0 for token in self.eos_token_ids):
            raise ConfigError(f"eos_token_ids are {self.eos_token_ids}; ids must not be negative")

    @property
    def num_layers(self) -> int:
        return len(self.layers)

    @property
    def usual_sequence(self) -> int:
        """Tokens of the longest sequence where nobody names a number: what all its rope tables are
        made for."""
        limit = self.max_position_embeddings
        return min((rope.usual(limit) for rope in self.ropes), default=limit)

    @property
    def draft_vocab_size(self) -> int:
        """Rows of its head: tokens that it can say."""
        return self.vocab_size if self.head.rows is None else self.head.rows

    @property
    def embedding_rows(self) -> int:
        """Rows of the embedding of one rank. Where they are too many for the last rank, it has its
        last one several times."""
        return -(-self.vocab_size // self.ranks)

    @property
    def head_rows(self) -> int:
        """Rows of the head of one rank, see `embedding_rows`."""
        return -(-self.draft_vocab_size // self.ranks)

    @property
    def maps_tokens(self) -> bool:
        """Whether its head has rows for some tokens only, and a map to their ids."""
        return self.head.rows is not None

    @property
    def max_sequence(self) -> int:
        """Tokens of the longest sequence that may be asked for: ``max_position_embeddings``, or
        what the rope tables may stretch positions to, all of them, where that is more."""
        limit = self.max_position_embeddings
        return min((rope.stretched(limit) for rope in self.ropes), default=limit)

    @property
    def decoder(self) -> ModelConfig:
        """The shape of its layers: its own."""
        return self

    def for_steps(self, num_steps: int) -> ModelConfig:
        """Itself: a language model drafts as deep as one likes."""
        return self

    def with_caches(self, dtype: CacheDtype | None) -> ModelConfig:
        """Itself, what its layers keep of tokens in 8 bits, or in the network's dtype.

        Raises:
            ConfigError: a layer cannot.
        """
        specs = (replace(spec, mixer=spec.mixer.with_cache(dtype)) for spec in self.layers)
        return replace(self, layers=Layers.of(specs))

    def sharded(self, ranks: int, by_expert: bool = False) -> ModelConfig:
        """What one of so many ranks has of it; ``by_expert``: of mixtures whole experts.

        Raises:
            ConfigError: see `LayerPart.sharded`.
        """
        if ranks == 1:
            return self
        layers = Layers.of(spec.sharded(ranks, by_expert) for spec in self.layers)
        return replace(self, layers=layers, ranks=ranks)

    def for_length(self, length: int) -> ModelConfig:
        """Itself in an engine whose sequences have at most so many tokens."""
        ropes = (rope.for_length(length) for rope in self.ropes)
        return dataclasses.replace(self, ropes=tuple(ropes))

    def describe(self) -> str:
        """The model in one line."""
        stored = self.storage.name if self.storage else self.dtype
        said = f"{self.draft_vocab_size} of " if self.maps_tokens else ""
        split = f", split over {self.ranks} ranks" if self.ranks > 1 else ""
        return (
            f"{self.architecture}, {self.num_layers} layers, hidden {self.hidden_size}, "
            f"vocabulary {said}{self.vocab_size}, checkpoint {stored}{split}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; `from_dict` takes them back."""
        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelConfig:
        """The inverse of `to_dict`, also after JSON; raises ConfigError on an unknown key."""
        return from_dict(cls, data)
