"""Widened checkpoints whose layers have other blocks than their source's compute the same."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from checkpoint_converters import load_checkpoint
from trtspec.config.ffn_spec import ExpertsSpec
from trtspec.config.latent_attention_spec import LatentAttentionSpec
from trtspec.errors import ConfigError
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


LATENTS = replace(EXACT.target, kv_size=32, latent_rank=48, plain_dim=32)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("case", ["llama", "llama3_tied"])
def test_latents_hold_the_values_of_heads(
    models: TinyModels, tmp_path: Path, case: str, dtype: torch.dtype
) -> None:
    """Of 2 K/V heads of 16, whose keys turn by their own frequencies, llama3's too, beside random
    heads and queries that meet nothing."""
    folder = make(replace(EXACT, target=LATENTS), models.folder(case), tmp_path)
    expected, found = logits(models.folder(case), dtype), logits(folder, dtype)
    near = (1e-4 if dtype == torch.float32 else 3e-2) * float(expected.abs().max())
    torch.testing.assert_close(found, expected, rtol=0, atol=near)
    mixer = load_checkpoint(folder).config.layers[0].mixer
    assert isinstance(mixer, LatentAttentionSpec)
    sizes = (mixer.num_heads, mixer.kv_rank, mixer.rope_dim, mixer.plain_dim, mixer.value_dim)
    assert sizes == (12, 48, 32, 32, 16)


def test_latents_without_room_are_refused(models: TinyModels, tmp_path: Path) -> None:
    narrow = replace(EXACT, target=replace(LATENTS, latent_rank=34))
    with pytest.raises(
        ConfigError, match=r"2 K/V heads of 16 do not fit into latents of 34, of wh"
    ):
        make(narrow, models.folder("llama"), tmp_path)
