"""Sizes of synthetic checkpoints: those of real models, or any others."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.config.strict import strict_config


@strict_config()
@dataclass(frozen=True)
class Sizes:
    """A decoder's sizes. ``query_size`` and ``kv_size`` are heads times head dimension, which stays
    that of the source. vocab_size: None: the source's own. A head over the target's hidden states
    has these sizes and layers of its own; draft_vocab_size: rows of its vocabulary, None: the
    source's."""

    hidden_size: int
    num_layers: int
    query_size: int
    kv_size: int
    intermediate_size: int
    vocab_size: int | None = None
    draft_vocab_size: int | None = None


# Billions of parameters without embedding and head: 0.31, 0.97 (Llama-3.2-1B), 7 (Llama-3.1-8B).
SIZES = {
    "300m": Sizes(1024, 24, 1024, 256, 3328),
    "1b": Sizes(2048, 16, 2048, 512, 8192),
    "8b": Sizes(4096, 32, 4096, 1024, 14336),
}
