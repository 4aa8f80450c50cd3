"""The shape of Medusa heads: small networks that each guess one token further ahead."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from trtspec.config.kv import CacheDtype
from trtspec.config.strict import from_dict, strict_config, to_dict
from trtspec.errors import ConfigError


@strict_config()
@dataclass(frozen=True)
class MedusaConfig:
    """Medusa heads (Cai et al., arXiv 2401.10774) over one hidden state of the target.

    num_heads: head h (from 0) guesses the token h + 1 places after the target's own next one.
    num_layers: residual blocks of each head. hidden_size: width of the state, the target's.
    vocab_size: tokens that a head scores, the target's. capture_layers: the state that is read, the
    output of the target's final norm (its number of layers, as in `EagleConfig`). own_head: every
    head has its own vocabulary matrix; otherwise all use the target's.
    """

    kind: ClassVar[str] = "medusa"
    decoder: ClassVar[None] = None
    ranks: ClassVar[int] = 1

    num_heads: int
    num_layers: int
    hidden_size: int
    vocab_size: int
    capture_layers: tuple[int, ...]
    own_head: bool = True

    def __post_init__(self) -> None:
        for name in ("num_heads", "hidden_size", "vocab_size"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name}={getattr(self, name)} must be at least 1")
        if self.num_layers < 0:
            raise ConfigError(f"num_layers={self.num_layers} must not be negative")
        if not (self.num_layers or self.own_head):
            raise ConfigError(
                "Medusa heads without a block (num_layers=0) and with the target's head would all "
                "guess the target's own next token"
            )
        if len(self.capture_layers) != 1:
            raise ConfigError(
                f"Medusa heads read one state, not those of layers {list(self.capture_layers)}"
            )

    def sharded(self, ranks: int) -> MedusaConfig:
        """See `DraftConfig.sharded`."""
        raise ConfigError(
            f"draft_tensor_parallel_size {ranks}: Medusa heads are not split over ranks in this "
            "version; leave it out, and they run on the first"
        )

    def with_caches(self, dtype: CacheDtype | None) -> MedusaConfig:
        """The config itself: it has no caches."""
        return self

    def for_steps(self, num_steps: int) -> MedusaConfig:
        """The heads that drafts of ``num_steps`` need; ConfigError if there are fewer."""
        if num_steps > self.num_heads:
            raise ConfigError(
                f"drafts of {num_steps} steps take as many Medusa heads, the checkpoint has "
                f"{self.num_heads}; lower num_medusa_heads (max_draft_len, the depth of "
                f"medusa_choices) to {self.num_heads}"
            )
        return replace(self, num_heads=num_steps)

    def describe(self) -> str:
        """A one-line description."""
        head = "their own matrices" if self.own_head else "the target's head"
        return (
            f"Medusa, {self.num_heads} heads, blocks of each: {self.num_layers}, hidden "
            f"{self.hidden_size}, {self.vocab_size} tokens by {head}"
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values; `from_dict` is the inverse."""
        return to_dict(self)

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> MedusaConfig:
        """The inverse of `to_dict`, also after a round trip through JSON; ConfigError for an
        unknown key."""
        return from_dict(cls, data)
