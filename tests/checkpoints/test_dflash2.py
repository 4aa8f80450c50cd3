"""DFlash2 drafts as z-lab and speculators write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec.builder.checkpoints import read_draft
from trtspec.errors import CheckpointError
from trtspec.speculative.block.dflash2 import DFlash2Config

from .draft_folder import TARGET, H, V
from .test_dflash import CONFIG, NESTED, SPECULATORS, network, vocabulary, write

SIZES = {"conv_kernel_size": 2, "conv_group_size": 8, "selector_rank": 3, "selector_top_k": 4}
Z_LAB: dict[str, Any] = {
    **{k: v for k, v in CONFIG.items() if k not in ("block_size", "num_target_layers")},
    "architectures": ["DFlash2DraftModel"],
    "is_causal": False,
    "layer_types": ["sliding_attention"] * 2,
    "sliding_window": 11,
    "dflash_config": {**NESTED, **SIZES, "block_size": 4},
}
EXPORT: dict[str, Any] = {
    **{k: v for k, v in SPECULATORS.items() if k != "draft_vocab_size"},
    **SIZES,
    "speculators_model_type": "dflash2",
    "architectures": ["DFlash2DraftModel"],
}


def own() -> dict[str, Tensor]:
    tensors = {
        "candidate_selector.hidden_projection.weight": torch.randn(3, H),
        "candidate_selector.predecessor_codebook": torch.randn(V, 3),
        "candidate_selector.successor_codebook": torch.randn(V, 3),
    }
    for layer in (0, 1):
        for part in ("attention_conv", "mlp_conv"):
            name = f"layers.{layer}.{part}"
            tensors[f"{name}.base_kernel"] = torch.randn(2, 2, H)
            tensors[f"{name}.kernel_projection.weight"] = torch.randn(2 * 2 * H // 8, H)
    return tensors


@pytest.mark.parametrize("config", [Z_LAB, EXPORT], ids=["z-lab", "speculators"])
def test_formats(tmp_path: Path, config: dict[str, Any]) -> None:
    draft = read_draft(write(tmp_path, config, {**network(), **own()}), TARGET)
    found = draft.config
    assert isinstance(found, DFlash2Config)
    assert (draft.kind, draft.method, found.max_draft_len) == ("dflash2", "dflash2", 3)
    assert (found.conv_group_size, found.selector_top_k, found.capture_layers) == (8, 4, (1, 4))
    assert found.causal_layers == (False, False)
    assert draft.tensors["layers.1.mlp_conv.kernel.weight"].shape == (found.conv_outputs, H)
    assert draft.tensors["selector.successors"].shape == (V, 3)
    assert draft.notes[0].startswith("draft: DFlash2 (")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"selector_rank": None}, "does not say selector_rank, whole numbers"),
        ({"conv_group_size": 5}, f"conv_group_size=5 does not divide the hidden size {H}"),
        ({"conv_kernel_size": 3}, r"base_kernel"),
        ({"lilicorr": 1}, "says lilicorr, which this version does not know"),
    ],
)
def test_refusals(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    nested = {k: v for k, v in {**Z_LAB["dflash_config"], **changes}.items() if v is not None}
    config = {**Z_LAB, "dflash_config": nested}
    with pytest.raises(CheckpointError, match=message):
        read_draft(write(tmp_path, config, {**network(), **own()}), TARGET)


def test_a_cut_head(tmp_path: Path) -> None:
    """Its selector knows as many tokens as its head says."""
    config = {**EXPORT, "draft_vocab_size": SPECULATORS["draft_vocab_size"]}
    with pytest.raises(CheckpointError, match=r"successor_codebook has shape"):
        read_draft(write(tmp_path, config, {**network(), **own(), **vocabulary()}), TARGET)


def test_its_parts_are_no_dflash(tmp_path: Path) -> None:
    """Such tensors under DFlash's name are refused, never left out."""
    with pytest.raises(CheckpointError, match=r"no use: candidate_selector\.hidden_projection"):
        read_draft(write(tmp_path, CONFIG, {**network(), **own()}), TARGET)
