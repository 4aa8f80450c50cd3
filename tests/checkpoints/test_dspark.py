"""DSpark drafts as DeepSpec, SpecForge and speculators write them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec.builder.checkpoints import describe_draft, read_draft
from trtspec.errors import CheckpointError
from trtspec.speculative.block.dspark import DSparkConfig

from .draft_folder import ROWS, TARGET, H, V
from .test_dflash import CONFIG, NESTED, SPECULATORS, network, vocabulary, write

R = 3
SAID = {
    "markov_rank": R,
    "markov_head_type": "vanilla",
    "enable_confidence_head": True,
    "confidence_head_with_markov": True,
}
DEEPSPEC: dict[str, Any] = {
    **{k: v for k, v in CONFIG.items() if k != "dflash_config"},
    **NESTED,
    **SAID,
    "architectures": ["Qwen3DSparkModel"],
    "num_anchors": 8,
    "layer_types": ["full_attention"] * 2,
}
SPECFORGE = {
    **CONFIG,
    "architectures": ["DSparkDraftModel"],
    "dflash_config": {
        **{**NESTED, **SAID},
        **{"attention_mode": "gqa", "confidence_head_alpha": 1.0, "projector_type": "dspark"},
    },
}
MODELOPT = {
    **CONFIG,
    "dflash_config": {
        **{**NESTED, "projector_type": "dspark", "shift_label": True, "causal": True},
        **{"markov_rank": R, "markov_head_type": "gated", "use_confidence_head": True},
    },
}
EXPORT = {**SPECULATORS, "speculators_model_type": "dspark", "architectures": ["DSparkSpeculator"]}
EXPORT |= {**SAID, "sample_from_anchor": True}


def heads(rows: int = V, mixer: str | None = None, makes: int = 1, reads: int = 1) -> dict:
    tensors = {
        "markov_head.markov_w1.weight": torch.randn(V, R),
        "markov_head.markov_w2.weight": torch.randn(rows, R),
        "confidence_head.proj.weight": torch.randn(1, H + R),
        "confidence_head.proj.bias": torch.randn(1),
    }
    if mixer:
        tensors[f"markov_head.{mixer}.weight"] = torch.randn(makes * R, reads * R + H)
        tensors[f"markov_head.{mixer}.bias"] = torch.randn(makes * R)
    return tensors


def exported() -> dict[str, Tensor]:
    """By the names of ModelOpt's export."""
    names = ("markov_head.", ""), ("confidence_head.proj", "confidence_proj")
    tensors = heads(V, "gate_proj")
    return {n.replace(*names[0]).replace(*names[1]): x for n, x in tensors.items()}


def own_parts() -> dict[str, Tensor]:
    return {"embed_tokens.weight": torch.randn(V, H), "lm_head.weight": torch.randn(V, H)}


@pytest.mark.parametrize(
    ("config", "more", "rows"),
    [
        (DEEPSPEC, own_parts(), V),
        (SPECFORGE, {}, V),
        (EXPORT, vocabulary(), ROWS),
    ],
    ids=["DeepSpec", "SpecForge", "speculators"],
)
def test_formats(
    tmp_path: Path, config: dict[str, Any], more: dict[str, Tensor], rows: int
) -> None:
    """The root's row guesses; the bias is of the draft's own tokens, and reads the target's."""
    folder = write(tmp_path, config, {**network(), **heads(rows), **more})
    draft = read_draft(folder, TARGET)
    found = draft.config
    assert isinstance(found, DSparkConfig)
    assert (draft.kind, draft.method) == ("dspark", "dspark")
    assert (found.markov_rank, found.markov_head, found.max_draft_len) == (R, "vanilla", 4)
    assert found.confidence and found.confidence_reads_token and found.capture_layers == (1, 4)
    assert draft.tensors["markov.w1"].shape == (V, R)
    assert draft.tensors["markov_head.weight"].shape == (rows, R)
    assert found.own_head == bool(more) and found.draft_vocab_size == rows
    assert describe_draft(folder).startswith("draft: DSpark (")


def test_an_export_of_modelopt(tmp_path: Path) -> None:
    """It is called DFlash's architecture; its confidence head reads the token."""
    draft = read_draft(write(tmp_path, MODELOPT, {**network(), **exported()}), TARGET)
    found = draft.config
    assert isinstance(found, DSparkConfig) and found.anchor_predicts
    assert found.confidence_reads_token and found.causal_layers == (True, True)
    assert draft.tensors["markov.mix"].shape == (R, R + H)


@pytest.mark.parametrize(("kind", "mixer"), [("gated", ("gate_proj", 1, 1)), ("rnn", None)])
def test_kinds(tmp_path: Path, kind: str, mixer: Any) -> None:
    config = {**DEEPSPEC, "markov_head_type": kind}
    tensors = heads(V, *(mixer or ("joint_proj", 3, 2)))
    found = read_draft(write(tmp_path, config, {**network(), **tensors}), TARGET)
    assert found.config.markov_head == kind
    assert found.tensors["markov.mix"].shape == found.config.own_parts["markov.mix"]


def test_short_names_and_sizes_that_tensors_tell(tmp_path: Path) -> None:
    """As converters for other engines write it."""
    tensors = {n.removeprefix("markov_head."): x for n, x in heads().items() if "markov" in n}
    said = {k: v for k, v in DEEPSPEC.items() if k not in SAID}
    found = read_draft(write(tmp_path, said, {**network(), **tensors}), TARGET).config
    assert (found.markov_rank, found.confidence) == (R, False)


def test_the_embeddings_are_a_state(tmp_path: Path) -> None:
    config = {**DEEPSPEC, "target_layer_ids": [-1, 4]}
    found = read_draft(write(tmp_path, config, {**network(), **heads()}), TARGET)
    assert found.config.capture_layers == (-1, 4)


def test_without_either_head_it_is_dflash(tmp_path: Path) -> None:
    """DeepSpec's DFlash drafts; their root's row guesses too."""
    config = {**DEEPSPEC, "markov_rank": 0, "enable_confidence_head": False}
    draft = read_draft(write(tmp_path, config, {**network(), **own_parts()}), TARGET)
    assert draft.method == "dflash" and draft.config.max_draft_len == 4


@pytest.mark.parametrize(
    ("changes", "tensors", "message"),
    [
        ({"markov_head_type": "lstm"}, heads(), "markov_head='lstm' is not one of"),
        ({"markov_head_type": "gated"}, heads(), r"missing: .*markov_head\.gate_proj"),
        ({"markov_rank": 2}, heads(), r"markov_w1\.weight"),
        ({"enable_confidence_head": False}, heads(), r"no use: .*confidence_head\.proj"),
        (dict.fromkeys(SAID), {}, "does not say markov_rank, and there are no tensors"),
        ({"projector_type": "domino"}, heads(), "projector_type is 'domino'"),
    ],
)
def test_refusals(
    tmp_path: Path, changes: dict[str, Any], tensors: dict[str, Tensor], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_draft(write(tmp_path, {**DEEPSPEC, **changes}, {**network(), **tensors}), TARGET)
