"""The shapes of networks that guess every depth in one pass, using mask rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from trtspec.config.model import ModelConfig
from trtspec.config.state_reader import StateReader
from trtspec.config.strict import from_dict, strict_config, to_dict
from trtspec.errors import ConfigError
from trtspec.speculative.eagle import EagleConfig


@strict_config()
@dataclass(frozen=True)
class PardConfig(ModelConfig):
    """A causal language model that was trained to guess several tokens at once (PARD, An et al.,
    arXiv 2504.18583).

    mask_token: the id that stands for each token not known yet. A compiled rollout depends on it.
    """

    kind: ClassVar[str] = "pard"

    mask_token: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        check_mask_token(self.mask_token, self.vocab_size)

    def describe(self) -> str:
        return f"{super().describe()}, mask token {self.mask_token}"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PardConfig:
        return from_dict(cls, data)


@strict_config()
@dataclass(frozen=True)
class Pard2Config(StateReader):
    """A PARD model whose rows also read the target's hidden state before their token (PARD-2, arXiv
    2605.08632).

    decoder: the language model, which has all of its parts. target_hidden_size, capture_layers,
    draft_vocab_size, own_embedding, own_head: see `StateReader`. mask_token: see `PardConfig`.
    scale: factor on the projection of the states before it is added to an embedding. bias: whether
    that projection has one.
    """

    kind: ClassVar[str] = "pard2"

    decoder: ModelConfig
    target_hidden_size: int
    capture_layers: tuple[int, ...]
    draft_vocab_size: int
    mask_token: int
    scale: float
    bias: bool = False
    own_embedding: bool = True
    own_head: bool = True

    def __post_init__(self) -> None:
        self._check_reading()
        check_mask_token(self.mask_token, self.decoder.vocab_size)
        if not 0 < self.scale < math.inf:
            raise ConfigError(f"scale={self.scale} of the states must be above 0 and finite")

    def for_steps(self, num_steps: int) -> Pard2Config:
        """The config itself: one more mask makes a deeper draft."""
        return self

    def describe(self) -> str:
        """A one-line description."""
        return (
            f"PARD-2 over {self.decoder.describe()}, mask token {self.mask_token}, reads layers "
            f"{list(self.capture_layers)}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` is the inverse."""
        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Pard2Config:
        return from_dict(cls, data)


@strict_config()
@dataclass(frozen=True)
class PEagleConfig(EagleConfig):
    """An EAGLE-3 network that was trained to guess several tokens at once (P-EAGLE, arXiv
    2602.01469): a learned state replaces the target's hidden state where there is none yet.

    mask_token: the id that stands for each token not known yet. A compiled rollout depends on it.
    """

    kind: ClassVar[str] = "p_eagle"

    mask_token: int = field(kw_only=True)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.version != 3:
            raise ConfigError(f"P-EAGLE is an EAGLE-3 network, not one of version {self.version}")
        check_mask_token(self.mask_token, self.decoder.vocab_size)

    def describe(self) -> str:
        text = super().describe().removeprefix(f"EAGLE-{self.version}")
        return f"P-EAGLE{text}, mask token {self.mask_token}"

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> PEagleConfig:
        return from_dict(cls, data)


def check_mask_token(token: int, vocab_size: int) -> None:
    """Raise ConfigError if the network's embedding has no row for the id."""
    if not 0 <= token < vocab_size:
        raise ConfigError(
            f"the mask token {token} is outside the draft's embedding of {vocab_size} tokens; it "
            f"must be between 0 and {vocab_size - 1}"
        )
