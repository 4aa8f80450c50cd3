"""StateReader: the shape of networks that read the target's hidden states."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Self

from trtspec.config.embedding_spec import HeadSpec
from trtspec.config.kv import CacheDtype
from trtspec.config.model import ModelConfig
from trtspec.errors import ConfigError


class StateReader:
    """A draft network that reads its target's hidden states.

    decoder: the shape of its layers; ``vocab_size`` is that of the tokens it reads, the target's.
    target_hidden_size: width of one captured state. capture_layers: which hidden states of the
    target it reads, in the order in which they are concatenated: i is the output of decoder layer
    i, -1 the embeddings, the target's number of layers the output of its final norm (EAGLE-1).
    draft_vocab_size: rows of its head; fewer than ``decoder.vocab_size`` come with a map to the
    target's ids. own_embedding, own_head: whether the checkpoint has them; otherwise the target's
    are used.
    """

    decoder: ModelConfig
    target_hidden_size: int
    capture_layers: tuple[int, ...]
    draft_vocab_size: int
    own_embedding: bool
    own_head: bool

    def with_caches(self, dtype: CacheDtype | None) -> Self:
        """See `ModelConfig.with_caches`."""
        return replace(self, decoder=self.decoder.with_caches(dtype))  # type: ignore[type-var]

    @property
    def ranks(self) -> int:
        """See `DraftConfig.ranks`."""
        return self.decoder.ranks

    @property
    def decoders(self) -> Mapping[str, ModelConfig]:
        """See `DraftConfig.decoders`."""
        head = HeadSpec(rows=self.draft_vocab_size)
        return {"": replace(self.decoder, head=head)}

    def sharded(self, ranks: int) -> Self:
        """See `ModelConfig.sharded`: its layers, embedding and head; each rank projects states
        whole."""
        return replace(self, decoder=self.decoder.sharded(ranks))  # type: ignore[type-var]

    @property
    def maps_tokens(self) -> bool:
        """Whether the head's rows are mapped to the target's token ids."""
        return self.draft_vocab_size < self.decoder.vocab_size

    @property
    def hidden_in(self) -> int:
        """Width of the hidden states that one row reads."""
        return len(self.capture_layers) * self.target_hidden_size

    def _check_reading(self) -> None:
        """Raise ConfigError if it cannot read such a target, borrow from it, or propose its
        tokens."""
        layers, hidden = self.capture_layers, self.decoder.hidden_size
        if self.target_hidden_size < 1:
            raise ConfigError(f"target_hidden_size={self.target_hidden_size} must be at least 1")
        if not layers or min(layers) < -1 or len(set(layers)) != len(layers):
            raise ConfigError(
                f"capture_layers={list(layers)} must name one or more different layers, -1 or more"
            )
        if not 1 <= self.draft_vocab_size <= self.decoder.vocab_size:
            raise ConfigError(
                f"draft_vocab_size={self.draft_vocab_size} must be between 1 and the target's "
                f"{self.decoder.vocab_size} tokens"
            )
        borrows = not (self.own_embedding and self.own_head)
        if borrows and hidden != self.target_hidden_size:
            raise ConfigError(
                f"a draft of hidden size {hidden} cannot borrow the embedding or head of a target "
                f"of hidden size {self.target_hidden_size}; it must bring both"
            )
