"""ToyRollout: a chain, state by state."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from trtspec.ops.sampling import SamplingColumns, draft_candidates


class ToyRollout(nn.Module):
    """Over a network with ``embedding``, ``step`` and ``head``."""

    def __init__(self, model: Any, num_steps: int) -> None:
        super().__init__()
        self.model = model
        self.num_steps = num_steps

    def forward(
        self, roots: Tensor, hidden: Tensor, sampling: SamplingColumns
    ) -> tuple[Tensor, Tensor, Tensor]:
        """``roots [B] i64``, ``hidden [B, H]`` of the rows before them; returns ``tokens``,
        ``parents`` and ``scores``, all ``[B, D]``."""
        tokens, scores = [roots[:, None]], [torch.zeros_like(roots, dtype=torch.float32)[:, None]]
        state = hidden
        for depth in range(self.num_steps):
            embedded = self.model.embedding(tokens[-1][:, 0])
            state = self.model.step(torch.cat((state, embedded), dim=-1))
            columns = sampling._replace(output_index=sampling.output_index + depth)
            best, gains = draft_candidates(self.model.head(state), *columns, None, 1)
            tokens.append(best)
            scores.append(scores[-1] + gains.clamp(max=0))
        parents = torch.arange(-1, self.num_steps - 1, dtype=torch.int32, device=roots.device)
        chain = parents.expand(roots.shape[0], -1).contiguous()
        return torch.cat(tokens[1:], 1), chain, torch.cat(scores[1:], 1)
