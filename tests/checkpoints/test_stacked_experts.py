"""Experts that lie one by one in files and stacked ones are the same; misfits are named."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from checkpoint_converters.checkpoint import load_checkpoint
from trtspec.errors import CheckpointError

from ..e2e.families import family_model

MIXTURES = ("mixtral", "qwen2_moe", "glm4_moe", "granite_moe")


@pytest.mark.parametrize("case", MIXTURES)
def test_both_layouts_hold_the_same(case: str, tmp_path: Path) -> None:
    model = family_model(case)
    for layout in ("usual", "stacked"):
        model.save_pretrained(tmp_path / layout, save_original_format=layout == "usual")
    names = [set(load_file(tmp_path / each / "model.safetensors")) for each in ("usual", "stacked")]
    assert names[0] != names[1] and any(n.endswith("gate_up_proj") for n in names[1])
    usual, stacked = (load_checkpoint(tmp_path / each) for each in ("usual", "stacked"))
    assert usual.config == stacked.config and not usual.ignored and not stacked.ignored
    assert set(usual.tensors) == set(stacked.tensors)
    for name, tensor in usual.tensors.items():
        assert torch.equal(tensor, stacked.tensors[name]), name
    up = model.state_dict()["model.layers.1." + _place(case) + "experts.gate_up_proj"][3]
    assert torch.equal(usual.tensors["layers.1.mlp.experts.3.gate.weight"], up.chunk(2)[0])
    assert torch.equal(usual.tensors["layers.1.mlp.experts.3.up.weight"], up.chunk(2)[1])


def _place(case: str) -> str:
    return "block_sparse_moe." if case == "granite_moe" else "mlp."


def test_what_does_not_fit_is_named(tmp_path: Path) -> None:
    family_model("mixtral").save_pretrained(tmp_path, save_original_format=False)
    file = tmp_path / "model.safetensors"
    tensors, name = load_file(file), "model.layers.2.mlp.experts.down_proj"
    save_file({**tensors, name: tensors[name][:4].contiguous()}, file)
    with pytest.raises(CheckpointError, match=rf"tensor {name} has shape \[4, 64, 88\], its"):
        load_checkpoint(tmp_path)
    save_file({n: t for n, t in tensors.items() if n != name}, file)
    with pytest.raises(CheckpointError, match=r"5 tensors are missing: .*experts\.0\.w2"):
        load_checkpoint(tmp_path)
    save_file(tensors, file)
    config = json.loads((tmp_path / "config.json").read_text())
    for key, value, message in (
        ("num_experts_per_tok", 6, "top_k is 6; there are 5"),
        ("hidden_act", "gelu_fast", "hidden_act 'gelu_fast' is not supported"),
    ):
        (tmp_path / "config.json").write_text(json.dumps({**config, key: value}))
        with pytest.raises(CheckpointError, match=message):
            load_checkpoint(tmp_path)
