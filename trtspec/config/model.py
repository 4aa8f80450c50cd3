"""ModelConfig: the shape of a decoder-only language model."""

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
    """A decoder, layer by layer. What a family does differently is stated in its layers' specs,
    never by the architecture's name.

    Sizes are in elements. layers: a `LayerSpec` for each layer. norm: after the last one.
    max_position_embeddings: length of the sequences it was made for, in tokens. ropes: rotary
    embedding tables, to which layers refer by index. ``dtype`` is that of the checkpoint, not of
    the engine. storage: how weights are quantised, in a checkpoint or in an engine that keeps them
    so; None: floats. ranks: processes that the network is split over (tensor parallel): layers, and
    rows of embedding and head, are those of one rank (see `sharded`). Raises ConfigError when
    fields contradict each other.

    A language model can draft for another, so it is a `DraftConfig` as well.
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
        """Default length of the longest sequence, in tokens: the range of all its rope tables."""
        limit = self.max_position_embeddings
        return min((rope.usual(limit) for rope in self.ropes), default=limit)

    @property
    def draft_vocab_size(self) -> int:
        """Rows of its head: how many tokens it can propose."""
        return self.vocab_size if self.head.rows is None else self.head.rows

    @property
    def embedding_rows(self) -> int:
        """Rows of the embedding of one rank, see `rows_of_rank`."""
        return rows_of_rank(self.vocab_size, self.ranks)

    @property
    def head_rows(self) -> int:
        """Rows of the head of one rank, see `rows_of_rank`."""
        return rows_of_rank(self.draft_vocab_size, self.ranks)

    @property
    def maps_tokens(self) -> bool:
        """Whether its head covers only some tokens, with a map to their ids."""
        return self.head.rows is not None

    @property
    def max_sequence(self) -> int:
        """Length of the longest sequence that may be requested, in tokens:
        ``max_position_embeddings``, or the range to which all rope tables may stretch positions, if
        that is longer."""
        limit = self.max_position_embeddings
        return min((rope.stretched(limit) for rope in self.ropes), default=limit)

    @property
    def decoder(self) -> ModelConfig:
        """The shape of its layers: the config itself."""
        return self

    @property
    def decoders(self) -> Mapping[str, ModelConfig]:
        """See `DraftConfig.decoders`."""
        return {"": self}

    def for_steps(self, num_steps: int) -> ModelConfig:
        """The config itself: a language model drafts to any depth."""
        return self

    def with_caches(self, dtype: CacheDtype | None) -> ModelConfig:
        """The config with its layers' token caches in that dtype (None: the network's)."""
        specs = (replace(spec, mixer=spec.mixer.with_cache(dtype)) for spec in self.layers)
        return replace(self, layers=Layers.of(specs))

    def sharded(self, ranks: int, by_expert: bool = False) -> ModelConfig:
        """One rank's share of the network; ``by_expert``: mixtures are split by whole experts.

        Raises:
            ConfigError: see `LayerPart.sharded`.
        """
        if ranks == 1:
            return self
        layers = Layers.of(spec.sharded(ranks, by_expert) for spec in self.layers)
        return replace(self, layers=layers, ranks=ranks)

    def for_length(self, length: int) -> ModelConfig:
        """The config for an engine with sequences of at most this many tokens."""
        ropes = (rope.for_length(length) for rope in self.ropes)
        return dataclasses.replace(self, ropes=tuple(ropes))

    def describe(self) -> str:
        """A one-line description."""
        stored = self.storage.name if self.storage else self.dtype
        said = f"{self.draft_vocab_size} of " if self.maps_tokens else ""
        split = f", split over {self.ranks} ranks" if self.ranks > 1 else ""
        return (
            f"{self.architecture}, {self.num_layers} layers, hidden {self.hidden_size}, "
            f"vocabulary {said}{self.vocab_size}, checkpoint {stored}{split}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` is the inverse."""
        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> ModelConfig:
        """The inverse of `to_dict`, also after a round trip through JSON; ConfigError for an
        unknown key."""
        return from_dict(cls, data)


def rows_of_rank(rows: int, ranks: int) -> int:
    """Of a matrix with so many rows, one for each token, those of one rank. Where they are too many
    for the last rank, it has its last one several times."""
    return -(-rows // ranks)
