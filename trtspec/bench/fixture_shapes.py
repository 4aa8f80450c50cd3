"""Shapes that fixtures are widened to: the cost of real models, whatever their text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class DecoderShape:
    """Sizes of a Llama decoder; ``query_size`` and ``kv_size`` are heads times head dimension, as
    the head dimension stays that of the source. num_experts: 0, or its feed-forward parts become
    mixtures of so many experts of ``intermediate_size``, of which a row chooses ``top_k``.
    latent_rank: 0, or its attention becomes one over latents of so many elements, whose heads have
    ``plain_dim`` elements that do not turn; ``kv_size`` is then the source's own."""

    hidden_size: int
    num_layers: int
    query_size: int
    kv_size: int
    intermediate_size: int
    num_experts: int = 0
    top_k: int = 0
    latent_rank: int = 0
    plain_dim: int = 0


@dataclass(frozen=True)
class FixtureShape:
    """A target, and the draft model that goes with it. (A network over the target's states
    gets one layer of the target's own sizes, as published ones have.)"""

    name: str
    target: DecoderShape
    draft: DecoderShape


# Hidden sizes are the embedded target's 256, and its draft's 128, times a power of 4 where that
# leaves them close to the original. Parameters without embedding and head, in millions:
#   300m: target 308, draft 30 (1/10). 1b, like Llama-3.2-1B: target 973, draft 122 (1/8).
#   8b, like Llama-3.1-8B with Llama-3.2-1B: target 6,980, draft 973 (1/7).
#   moe1b, like Qwen3-30B-A3B cut to a 24th: target 1,229, of which a row reads 172; draft 30.
#   mla300m, with the latents of DeepSeek-V2-Lite: target 283, draft 30 (1/9).
SHAPES: Mapping[str, FixtureShape] = {
    shape.name: shape
    for shape in (
        FixtureShape(
            "300m",
            DecoderShape(1024, 24, 1024, 256, 3328),
            DecoderShape(512, 8, 512, 128, 2048),
        ),
        FixtureShape(
            "1b",
            DecoderShape(2048, 16, 2048, 512, 8192),
            DecoderShape(1024, 8, 1024, 256, 4096),
        ),
        FixtureShape(
            "8b",
            DecoderShape(4096, 32, 4096, 1024, 14336),
            DecoderShape(2048, 16, 2048, 512, 8192),
        ),
        FixtureShape(
            "moe1b",
            DecoderShape(1024, 8, 1024, 256, 768, num_experts=64, top_k=8),
            DecoderShape(512, 8, 512, 128, 2048),
        ),
        FixtureShape(
            "mla300m",
            DecoderShape(1024, 16, 1024, 128, 3328, latent_rank=512, plain_dim=128),
            DecoderShape(512, 8, 512, 128, 2048),
        ),
    )
}
