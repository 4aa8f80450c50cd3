"""The networks as ONNX graphs see them: modules over padded rows and linear caches, for export.

A padded call has S rows of each of B sequences (see `LinearRows`). Besides the outputs that a
module's ``forward`` names, all caches come out as they are after the call, keys first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from trtspec.models.causal_lm import CausalLM
from trtspec.models.linear_rows import LinearRows


class LinearModel(nn.Module):
    """A language model whose logits are wanted."""

    def __init__(self, model: CausalLM, windows: Sequence[int]) -> None:
        """``windows``: the sliding windows of its layers, rising, 0 for none."""
        super().__init__()
        self.model = model
        self.windows = tuple(windows)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        write_indices: Tensor,
        masks: list[Tensor],
        logits_rows: Tensor,
        k_caches: list[Tensor],
        v_caches: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """``input_ids`` and ``positions [B, S] i64``, ``write_indices [B] i64``, a mask
        ``[B, 1, S, L] bool`` for each window; ``logits_rows [R] i64`` counts through all B * S
        rows. Returns what `CausalLM.forward` does, and the caches."""
        rows = LinearRows(
            positions.flatten(), write_indices, dict(zip(self.windows, masks, strict=True))
        )
        outputs = self.model(input_ids.flatten(), rows, logits_rows, k_caches, v_caches)
        return (*outputs, *rows.k_caches, *rows.v_caches)


class LinearPass(nn.Module):
    """One pass of a draft network (see `DraftNetwork.draft`)."""

    def __init__(self, model: Any, windows: Sequence[int]) -> None:
        super().__init__()
        self.model = model
        self.windows = tuple(windows)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        write_indices: Tensor,
        masks: list[Tensor],
        features: Tensor | None,
        k_caches: list[Tensor],
        v_caches: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """Inputs as in `LinearModel`, with ``features [B, S, H]`` for a network that reads them.
        Returns the rows that its head reads ``[B * S, H]``, the next features ``[B * S, H]`` of a
        network that has any, and the caches."""
        rows = LinearRows(
            positions.flatten(), write_indices, dict(zip(self.windows, masks, strict=True))
        )
        flat = None if features is None else features.flatten(0, 1)
        following, ready = self.model.draft(input_ids.flatten(), flat, rows, k_caches, v_caches)
        outputs = (ready,) if following is None else (ready, following)
        return (*outputs, *rows.k_caches, *rows.v_caches)


class Method(nn.Module):
    """One method of a network that needs neither rows nor caches."""

    def __init__(self, model: nn.Module, name: str) -> None:
        super().__init__()
        self.model = model
        self.name = name

    def forward(self, hidden: Tensor) -> tuple[Tensor]:
        """``hidden [R, H]`` -> the method's result."""
        return (getattr(self.model, self.name)(hidden),)
