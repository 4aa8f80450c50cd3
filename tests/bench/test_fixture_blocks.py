"""Widened checkpoints whose layers have other blocks than their source's compute the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch

from checkpoint_converters import load_checkpoint
from trtspec.config.ffn_spec import ExpertsSpec
from trtspec.models.causal_lm import CausalLM

from ..e2e.helpers import TinyModels
from .test_fixture import EXACT, logits, make


def test_experts_that_are_alike_add_up_to_the_dense_part(
    models: TinyModels, tmp_path: Path
) -> None:
    """Whatever their weights, which have the sum 1; rows choose different ones."""
    mixed = replace(EXACT, target=replace(EXACT.target, num_experts=6, top_k=2))
    folder = make(mixed, models.folder("llama"), tmp_path)
    expected = logits(models.folder("llama"))
    torch.testing.assert_close(
        logits(folder), expected, rtol=0, atol=1e-5 * float(expected.abs().max())
    )
    config = load_checkpoint(folder).config
    ffn = config.layers[0].ffn
    assert isinstance(ffn, ExpertsSpec) and len(config.layers.specs) == 1
    assert (ffn.num_experts, ffn.top_k, ffn.intermediate_size) == (6, 2, 200)
    model = CausalLM(config, torch.float32)
    model.load_weights(load_checkpoint(folder))
    rows = torch.randn(50, 256, generator=torch.Generator().manual_seed(1))
    chosen, _ = model.layers[0].mlp.router(rows)  # type: ignore[union-attr, operator]
    assert len(set(chosen.flatten().tolist())) == 6
