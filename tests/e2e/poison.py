"""A target that a token of its prompt, or of its text, makes fail: its embedding is NaN."""

from __future__ import annotations

import copy
from pathlib import Path

import torch

from .helpers import TinyModels, random_prompt

POISON = 7
GOOD = [[t for t in random_prompt(60 + i, n) if t != POISON] for i, n in enumerate((30, 4, 21))]
"""Prompts without it, and with it in no greedy text behind them (tests/e2e/test_failures.py)."""


def save_poisoned(models: TinyModels) -> Path:
    """The llama case, but the embedding of one token is NaN."""
    model = copy.deepcopy(models.hf("llama"))
    with torch.no_grad():
        model.get_input_embeddings().weight[POISON] = torch.nan
    return models.save(model, "poisoned")
