"""ToyDraft: one linear layer over a state and a token's embedding makes the next state."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from trtspec.config.model import ModelConfig
from trtspec.formats.network_formats import NetworkFormats
from trtspec.models.layer_facts import Matrix
from trtspec.models.linear import Linear
from trtspec.models.loading import load_linear
from trtspec.models.vocabulary import TargetParts

from .shape import ToyConfig


class ToyDraft(nn.Module):
    """Embedding and head are the target's."""

    def __init__(
        self, config: ToyConfig, target: ModelConfig, dtype: torch.dtype, formats: NetworkFormats
    ) -> None:
        super().__init__()
        hidden = config.hidden_size
        self.turn = Linear(2 * hidden, hidden, dtype, format=formats.of({"turn": hidden}))
        self.target = TargetParts(target, dtype, embed=True, head=True, formats=formats)

    @staticmethod
    def matrices(config: ToyConfig) -> list[Matrix]:
        hidden = config.hidden_size
        return [Matrix(hidden, 2 * hidden, "turn"), Matrix(config.vocab_size, hidden)]

    def embedding(self, ids: Tensor) -> Tensor:
        """``ids [B] i64`` -> ``[B, H]``."""
        return self.target.embedding(ids)

    def step(self, both: Tensor) -> Tensor:
        """A state and an embedding ``[B, 2 * H]`` -> the next state ``[B, H]``."""
        state: Tensor = self.turn(both)
        return state

    def head(self, state: Tensor) -> Tensor:
        """``[B, H]`` -> logits ``[B, V] f32``."""
        assert self.target.lm_head is not None
        logits: Tensor = self.target.lm_head(state, torch.float32)
        return logits

    @torch.no_grad()
    def load_weights(self, checkpoint: Any, target: Mapping[str, Tensor]) -> None:
        load_linear(self.turn, checkpoint.tensors, ["turn"])
