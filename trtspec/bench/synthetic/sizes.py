"""Sizes of synthetic checkpoints: those of real models, or any that are given."""

from __future__ import annotations

import json
from dataclasses import dataclass

from trtspec.config.strict import from_dict, strict_config
from trtspec.errors import ConfigError


@strict_config()
@dataclass(frozen=True)
class Sizes:
    """A decoder's sizes. ``query_size`` and ``kv_size`` are heads times head dimension, as the head
    dimension stays that of the source. vocab_size: None: the source's own. seed: of the weights
    that only cost. A head over the target's states has these sizes and layers of its own;
    draft_vocab_size: rows of its vocabulary, None: the source's."""

    hidden_size: int
    num_layers: int
    query_size: int
    kv_size: int
    intermediate_size: int
    vocab_size: int | None = None
    seed: int = 0
    draft_vocab_size: int | None = None

    @classmethod
    def read(cls, text: str) -> Sizes:
        """Sizes by name, or as a JSON object; ConfigError for what is neither."""
        if text in SIZES:
            return SIZES[text]
        try:
            return from_dict(cls, json.loads(text))
        except ValueError as error:
            raise ConfigError(
                f"sizes {text!r} are neither one of {', '.join(SIZES)} nor a JSON object ({error})"
            ) from error


# The embedded target's hidden size times a power of 4 where that is close to the original. Millions
# of parameters without embedding and head: 308; 973, as Llama-3.2-1B; 6,980, as Llama-3.1-8B.
SIZES = {
    "300m": Sizes(1024, 24, 1024, 256, 3328),
    "1b": Sizes(2048, 16, 2048, 512, 8192),
    "8b": Sizes(4096, 32, 4096, 1024, 14336),
}
