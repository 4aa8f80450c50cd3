"""Attention of the training-time test of EAGLE-3, for ModelOpt's draft networks."""

from __future__ import annotations

from typing import Any

import torch


def unrolled_attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    scaling: float,
    **_: Any,
) -> tuple[torch.Tensor, None]:
    """Attention of the training-time test: causal over step 0, one key of every later step.

    ModelOpt's dense mask over the keys of all steps says the same, but computes T x (s + 1) T
    scores for step s where only T x (T + s) count. query: [B, heads, T, d]; key, value:
    [B, kv_heads, (s + 1) T, d], one block of T rows a step, where row i stands at position i
    in every block. The first s rows of step s hold nothing; their losses are masked.
    """
    length = query.shape[2]
    step = key.shape[2] // length - 1
    groups = query.shape[1] // key.shape[1]
    keys = torch.split(key.repeat_interleave(groups, 1), length, 2)
    values = torch.split(value.repeat_interleave(groups, 1), length, 2)
    query = query * scaling
    seen = torch.ones(length, length, dtype=torch.bool, device=query.device).tril(-step)
    seen[:step, 0] = True  # a row without any key would become NaN
    scores = [(query @ keys[0].transpose(2, 3)).masked_fill_(~seen, -torch.inf)]
    for block in range(1, step + 1):
        shifted = keys[block].roll(step - block, 2)
        scores.append((query * shifted).sum(-1, keepdim=True))
    weights = torch.cat(scores, -1).softmax(-1, dtype=torch.float32).to(value.dtype)
    out = weights[..., :length] @ values[0]
    for block in range(1, step + 1):
        out = out + weights[..., length + block - 1, None] * values[block].roll(step - block, 2)
    return out.transpose(1, 2), None
