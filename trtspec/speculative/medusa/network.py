"""Medusa heads: each guesses one token further ahead, all from the target's newest hidden state.

From the state at position p the target's own head predicts the token at p + 1, the root of the
tree; head h (from 0) guesses the token at p + h + 2, a node at depth h + 1. (Medusa: Cai et al.,
arXiv 2401.10774.)
"""

from __future__ import annotations

from typing import Protocol, cast

import torch
from torch import Tensor, nn

from trtspec.config.model import ModelConfig
from trtspec.config.quantised import Weights
from trtspec.errors import CheckpointError
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import IN_PANELS
from trtspec.models.layer_facts import Matrix
from trtspec.models.linear import Linear
from trtspec.models.loading import load_linear
from trtspec.models.vocabulary import TargetParts
from trtspec.speculative.medusa.shape import MedusaConfig


class MedusaSource(Protocol):
    """What `MedusaHeads.load_weights` reads: a checkpoint of heads by internal names."""

    @property
    def config(self) -> MedusaConfig: ...

    @property
    def tensors(self) -> Weights: ...


class MedusaHead(nn.Module):
    """Residual blocks ``x + silu(A x + b)`` and, if it has one, a matrix to the vocabulary."""

    def __init__(
        self, config: MedusaConfig, dtype: torch.dtype, *, formats: NetworkFormats = IN_PANELS
    ) -> None:
        super().__init__()
        hidden, own_head = config.hidden_size, config.own_head
        self.blocks = nn.ModuleList(
            Linear(hidden, hidden, dtype, bias=True, format=formats.of({f"blocks.{i}": hidden}))
            for i in range(config.num_layers)
        )
        vocab = config.vocab_size
        head_format = formats.of_head("lm_head")
        self.lm_head = Linear(hidden, vocab, dtype, format=head_format) if own_head else None

    def ready(self, x: Tensor) -> Tensor:
        """Hidden states ``[B, H]`` -> the input of the vocabulary matrix, ``[B, H]``."""
        for block in self.blocks:
            inner = block(x, torch.float32)
            # silu written out, as in `swiglu`: its bits must not depend on the number of rows.
            x = (x.float() + inner / (1 + torch.exp(-inner))).to(x.dtype)
        return x

    def forward(self, x: Tensor) -> Tensor:
        """States ``[B, H]`` -> logits ``[B, V] f32`` by the head's own matrix."""
        assert self.lm_head is not None, "heads without a matrix use the target's"
        logits: Tensor = self.lm_head(self.ready(x), torch.float32)
        return logits


class MedusaHeads(nn.Module):
    """All heads of a checkpoint.

    The ``state_dict`` names: ``heads.{h}.blocks.{l}.packed`` and ``.bias``,
    ``heads.{h}.lm_head.packed``, or ``target.lm_head.packed``, which is the target's own tensor.
    """

    token_map: Tensor | None = None  # every id is the target's own

    def __init__(
        self,
        config: MedusaConfig,
        target: ModelConfig,
        dtype: torch.dtype,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__()
        self.config = config
        self.heads = nn.ModuleList(
            MedusaHead(config, dtype, formats=formats.at(f"heads.{i}"))
            for i in range(config.num_heads)
        )
        self.target = TargetParts(
            target, dtype, embed=False, head=not config.own_head, formats=formats
        )

    @staticmethod
    def matrices(config: MedusaConfig) -> list[Matrix]:
        """The matrices that one pass reads; a borrowed head is read once for all."""
        hidden = config.hidden_size
        blocks = [
            Matrix(hidden, hidden, f"heads.{head}.blocks.{i}")
            for head in range(config.num_heads)
            for i in range(config.num_layers)
        ]
        if not config.own_head:
            return [*blocks, Matrix(config.vocab_size, hidden)]
        names = (f"heads.{head}.lm_head" for head in range(config.num_heads))
        return [*blocks, *(Matrix(config.vocab_size, hidden, name, True) for name in names)]

    def marginals(self, hidden: Tensor) -> Tensor:
        """The target's states ``[B, H]`` -> the logits ``[B, heads, V] f32``."""
        borrowed = self.target.lm_head
        if borrowed is None:
            return torch.stack([head(hidden) for head in self.heads], dim=1)
        # One pass over the target's weights for all heads.
        ready = [cast(MedusaHead, head).ready(hidden) for head in self.heads]
        rows = torch.stack(ready, dim=1)
        logits: Tensor = borrowed(rows.flatten(0, 1), torch.float32)
        return logits.view(*rows.shape[:2], -1)

    @torch.no_grad()
    def load_weights(self, checkpoint: MedusaSource) -> None:
        """Load every buffer of the heads' own from their checkpoint, ignoring its further heads.

        Raises:
            CheckpointError: made for another config, or a tensor is missing.
        """
        found, wanted = checkpoint.config.to_dict(), self.config.to_dict()
        available = found.pop("num_heads")
        if available < wanted.pop("num_heads") or found != wanted:
            raise CheckpointError(
                f"the checkpoint's config {checkpoint.config} is not the heads' {self.config}"
            )
        tensors = checkpoint.tensors
        for name, module in self.heads.named_modules(prefix="heads"):
            if isinstance(module, Linear):
                load_linear(module, tensors, [name])
