"""How far a model as built diverges, over a text, from the floats that its weights represent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trtspec.builder.accuracy import log_probabilities
from trtspec.builder.checkpoints import load_target
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.engine.graphs import target_module
from trtspec.models.causal_lm import CausalLM

WINDOW = 512
"""Tokens that are read together, each seeing those before it; llama.cpp reads as many at once."""
_FLOATS = "float32"


@dataclass(frozen=True)
class Divergence:
    """Divergence from the exact next-token probabilities at T positions: KL ``nats [T] f64``, and
    whether the most probable token is the same, ``agrees [T] bool``."""

    nats: Tensor
    agrees: Tensor

    @classmethod
    def of(cls, exact: Iterable[Tensor], found: Iterable[Tensor]) -> Divergence:
        """From log probabilities ``[T_i, V]`` by windows."""
        nats, agrees = [], []
        for theirs, ours in zip(exact, found, strict=True):
            wide = theirs.double()
            nats.append((wide.exp() * (wide - ours)).sum(-1))
            agrees.append(wide.argmax(-1) == ours.argmax(-1))
        return cls(torch.cat(nats), torch.cat(agrees))

    def worst(self, count: int) -> list[tuple[int, float]]:
        """The positions with the largest divergence, and their nats."""
        nats, places = self.nats.topk(min(count, len(self.nats)))
        return list(zip(places.tolist(), nats.tolist(), strict=True))

    def to_dict(self, worst: int) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "positions": len(self.nats),
            "kl_divergence": float(self.nats.mean()),
            "kl_divergence_median": float(self.nats.median()),
            "same_first_choice": float(self.agrees.double().mean()),
            "worst": [{"position": place, "nats": nats} for place, nats in self.worst(worst)],
        }


def exact_build() -> BuildConfig:
    """The build of the reference: the floats that a checkpoint's weights represent, in float32."""
    return BuildConfig(_FLOATS, weight_dtype=_FLOATS)


def windows(ids: Sequence[int]) -> Sequence[Tensor]:
    """``[T_i] i64`` each."""
    return torch.split(torch.tensor(list(ids)), WINDOW)


def log_probabilities_of(
    model: Path, build: BuildConfig, ids: Sequence[int]
) -> tuple[str, list[Tensor]]:
    """How a checkpoint's network is kept in such a build, in a few words, and its log
    probabilities ``[T_i, V] f32`` of the next token, by windows."""
    kept, target = _target(model, build)
    return kept, [log_probabilities(target, window).float() for window in windows(ids)]


def _target(model: Path, build: BuildConfig) -> tuple[str, CausalLM]:
    engine = plan_build(model, build, skip_tokenizer_init=True).engine
    target, checkpoint = target_module(engine), load_target(model)
    target.load_weights(replace(checkpoint, config=engine.target))
    return engine.formats_of().describe(engine.build.dtype), target
