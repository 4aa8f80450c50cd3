"""The shape of a network that guesses a block of tokens in one pass over the target's hidden
states."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from trtspec.config.model import ModelConfig
from trtspec.config.state_reader import StateReader
from trtspec.config.strict import from_dict, to_dict
from trtspec.errors import ConfigError

MAX_BLOCK_SIZE = 64
"""Rows that one word of an attention mask holds."""


@dataclass(frozen=True)
class BlockConfig(StateReader):
    """What all variants have; each adds its own. title: its name in messages.

    decoder, target_hidden_size, capture_layers, draft_vocab_size, own_embedding, own_head: see
    `StateReader`. block_size: rows of a block, the root and mask tokens. mask_token_id: stands for
    a token to be guessed. causal_layers: for each layer, whether a row sees only the rows of the
    block up to itself; otherwise the whole block. anchor_predicts: the root's row guesses the first
    token; otherwise the first mask's does, and one fewer is guessed. embedding_scale: factor on
    embedding rows. soft_cap: logits l become ``cap * tanh(l / cap)``; None: no cap.
    """

    kind: ClassVar[str]
    title: ClassVar[str]

    decoder: ModelConfig
    target_hidden_size: int
    capture_layers: tuple[int, ...]
    block_size: int
    mask_token_id: int
    causal_layers: tuple[bool, ...]
    draft_vocab_size: int
    anchor_predicts: bool = False
    own_embedding: bool = False
    own_head: bool = False
    embedding_scale: float = 1.0
    soft_cap: float | None = None

    def __post_init__(self) -> None:
        decoder = self.decoder
        self._check_reading()
        if not 2 <= self.block_size <= MAX_BLOCK_SIZE:
            raise ConfigError(
                f"block_size={self.block_size} counts the root and the tokens to guess; it must "
                f"be between 2 and {MAX_BLOCK_SIZE}"
            )
        if not 0 <= self.mask_token_id < decoder.vocab_size:
            raise ConfigError(
                f"mask_token_id={self.mask_token_id} is no token of the vocabulary of "
                f"{decoder.vocab_size}"
            )
        for name in ("embedding_scale", "soft_cap"):
            value = getattr(self, name)
            if value is not None and not 0 < value < math.inf:
                raise ConfigError(f"{name} is {value}; it must be above 0 and finite")
        if len(self.causal_layers) != decoder.num_layers:
            raise ConfigError(
                f"causal_layers names {len(self.causal_layers)} layers, the network has "
                f"{decoder.num_layers}"
            )
        windows = (layer.window for layer in decoder.layers)
        narrow = [window for window in windows if 0 < window < self.block_size]
        if narrow:
            raise ConfigError(
                f"a sliding window of {narrow[0]} tokens cuts blocks of {self.block_size}, which "
                "see each other whole; it must be at least the block_size"
            )

    @property
    def max_draft_len(self) -> int:
        """Tokens that one block guesses."""
        return self.block_size - (not self.anchor_predicts)

    def for_steps(self, num_steps: int) -> Self:
        """The config itself: a block is always rolled out whole, as it was trained; ConfigError if
        it guesses fewer than ``num_steps`` tokens."""
        if num_steps > self.max_draft_len:
            raise ConfigError(
                f"drafts of {num_steps} tokens were asked for, a block of {self.block_size} rows "
                f"guesses {self.max_draft_len}; lower num_speculative_tokens (max_draft_len) to "
                f"{self.max_draft_len}"
            )
        return self

    def describe(self) -> str:
        """A one-line description."""
        decoder = self.decoder
        return (
            f"{self.title}, {decoder.num_layers} layers, hidden {decoder.hidden_size}, blocks of "
            f"{self.block_size}, {self.draft_vocab_size} of {decoder.vocab_size} tokens"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` is the inverse."""
        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Self:
        """The inverse of `to_dict`, also after a round trip through JSON; ConfigError for an
        unknown key."""
        return from_dict(cls, data)
