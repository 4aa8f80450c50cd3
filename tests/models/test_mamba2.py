"""Limits of Mamba-2's time steps, which transformers applies where a text is fed in one pass."""

from __future__ import annotations

from pathlib import Path

import torch

from trtspec.builder.accuracy import log_probabilities
from trtspec.builder.checkpoints import load_target
from trtspec.models.causal_lm import CausalLM

from ..e2e.families import VOCAB, family_model


def test_time_steps_are_cut(tmp_path: Path) -> None:
    ids = torch.randint(VOCAB, (40,), generator=torch.Generator().manual_seed(1))
    found = []
    for limits in ((0.0, float("inf")), (0.6, 0.8)):
        hf = family_model("granite_hybrid", time_step_limit=limits)
        folder = tmp_path / str(limits[0])
        hf.save_pretrained(folder)
        checkpoint = load_target(folder)
        model = CausalLM(checkpoint.config, torch.float32)
        model.load_weights(checkpoint)
        with torch.no_grad():
            expected = hf(ids[None], use_cache=False).logits[0].log_softmax(-1)
        found.append(log_probabilities(model, ids))
        torch.testing.assert_close(found[-1], expected.double(), rtol=1e-4, atol=1e-4)
    assert (found[0] - found[1]).abs().max() > 0.01
