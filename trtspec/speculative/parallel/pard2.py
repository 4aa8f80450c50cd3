"""PARD-2's network (arXiv 2605.08632): a language model that also reads the target's hidden states.

Row p reads token p and the target's hidden state at position p - 1, which predicts it; the very
first row reads none. (AMD-AGI/PARD.)
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from trtspec.config.model import ModelConfig
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import IN_PANELS
from trtspec.models.causal_lm import TOKEN_MAP, CausalLM
from trtspec.models.layer_facts import Matrix, Read
from trtspec.models.linear import Linear
from trtspec.models.loading import load_linear
from trtspec.models.rows import Caches, Rows
from trtspec.speculative.parallel.shape import Pard2Config

PROJECTION = "projection"
MODEL_TOKEN_MAP = f"model.{TOKEN_MAP}"


class Pard2Draft(nn.Module):
    """A `CausalLM` (``model.*``) and the projection of the states (``projection.*``)."""

    def __init__(
        self,
        config: Pard2Config,
        target: ModelConfig,
        dtype: torch.dtype,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__()
        self.config, self.dtype = config, dtype
        self.model = CausalLM(config.decoder, dtype, formats=formats)
        hidden = config.decoder.hidden_size
        form = formats.of({PROJECTION: hidden})
        self.projection = Linear(config.hidden_in, hidden, dtype, config.bias, format=form)

    @staticmethod
    def matrices(config: Pard2Config) -> list[Read]:
        """The matrices that one pass reads: the projection and the model's."""
        projection = Matrix(config.decoder.hidden_size, config.hidden_in, PROJECTION)
        return [projection, *CausalLM.matrices(config.decoder)]

    @property
    def token_map(self) -> Tensor | None:
        """See `DraftNetwork.token_map`."""
        return self.model.token_map

    @torch.no_grad()
    def load_weights(self, checkpoint: Any) -> None:
        """Load both from a checkpoint by internal names; CheckpointError if a tensor is missing."""
        own = SimpleNamespace(config=checkpoint.config.decoder, tensors=checkpoint.tensors)
        self.model.load_weights(own)
        load_linear(self.projection, checkpoint.tensors, [PROJECTION])

    def fuse(self, hidden_in: Tensor) -> Tensor:
        """The target's hidden states ``[T, n * H_t]`` -> what is added to embeddings ``[T, H]``."""
        fused: Tensor = self.projection(hidden_in) * self.config.scale
        return fused

    def draft(
        self,
        input_ids: Tensor,
        features: Tensor | None,
        rows: Rows,
        caches: Caches,
        kept: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """See `DraftNetwork.draft`; a row's child reads what the row has read."""
        assert features is not None, "this network reads features"
        hidden, _ = self.model.trunk(input_ids, rows, caches, kept, features)
        return features if kept is None else features[kept], hidden

    def head(self, hidden: Tensor) -> Tensor:
        """See `DraftNetwork.head`."""
        return self.model.head(hidden)
