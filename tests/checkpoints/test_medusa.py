"""Medusa heads as FasterDecoding and ModelOpt write them: read alike, or refused by name."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from checkpoint_converters import DraftCheckpoint
from trtspec.builder.checkpoints import describe_draft, load_target, read_draft
from trtspec.commands.inspect_checkpoint import main
from trtspec.errors import CheckpointError
from trtspec.speculative.medusa.shape import MedusaConfig

from .draft_folder import LLAMA, TARGET, H, V
from .tiny_folder import TinyFolder

HEADS = 3
FASTER: dict[str, Any] = {
    "base_model_name_or_path": "lmsys/vicuna-7b-v1.3",
    "medusa_num_heads": 2,  # as published: fewer than the file has
    "medusa_num_layers": 1,
}
MODELOPT: dict[str, Any] = {
    **LLAMA,
    "architectures": ["MedusaLlamaForCausalLM"],
    "medusa": {"num_medusa_heads": HEADS, "num_medusa_layers": 1},
}
BASE = {"model.embed_tokens.weight": torch.ones(V, H), "lm_head.weight": torch.ones(V, H)}


def heads(prefix: str = "", layers: int = 1, own_head: bool = True) -> dict[str, Tensor]:
    noise = torch.Generator().manual_seed(4)
    tensors: dict[str, Tensor] = {}
    for h in range(HEADS):
        for layer in range(layers):
            tensors[f"{prefix}{h}.{layer}.linear.weight"] = torch.randn(H, H, generator=noise)
            tensors[f"{prefix}{h}.{layer}.linear.bias"] = torch.randn(H, generator=noise)
        if own_head:
            tensors[f"{prefix}{h}.{layers}.weight"] = torch.randn(V, H, generator=noise)
    return tensors


def write(
    path: Path, config: dict[str, Any], tensors: dict[str, Tensor], file: str = "model.safetensors"
) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps(config))
    if file.endswith(".safetensors"):
        save_file(tensors, path / file)
    else:
        torch.save(tensors, path / file)
    return path


def read(path: Path) -> DraftCheckpoint:
    draft = read_draft(path, TARGET)
    assert isinstance(draft, DraftCheckpoint) and draft.kind == "medusa"
    assert describe_draft(path) == draft.notes[0]
    return draft


def test_formats_are_read_alike(tmp_path: Path) -> None:
    folders = [
        write(tmp_path / "pt", FASTER, heads(), "medusa_lm_head.pt"),
        write(tmp_path / "st", FASTER, heads(), "medusa_lm_head.safetensors"),
        write(tmp_path / "bare", {}, heads(), "medusa_lm_head.safetensors"),
        write(tmp_path / "named", {}, heads("medusa_head.")),
        write(tmp_path / "modelopt", MODELOPT, {**heads("medusa_heads."), **BASE}),
        write(tmp_path / "bin", MODELOPT, {**heads("medusa_heads."), **BASE}, "pytorch_model.bin"),
    ]
    tensors = [dict(read(folder).tensors) for folder in folders]
    expected = heads()
    for found in tensors:
        assert len(found) == 3 * HEADS
        for h in range(HEADS):
            names = f"{h}.0.linear.weight", f"{h}.0.linear.bias", f"{h}.1.weight"
            parts = "blocks.0.weight", "blocks.0.bias", "lm_head.weight"
            for name, part in zip(names, parts, strict=True):
                assert torch.equal(found[f"heads.{h}.{part}"], expected[name])
    for folder in folders:
        draft = read(folder)
        assert draft.config == MedusaConfig(HEADS, 1, H, V, (TARGET.num_layers,))
        assert set(draft.ignored) == (set(BASE) if folder.name in ("modelopt", "bin") else set())
    prints = {read(folder).fingerprint for folder in folders}
    assert len(prints) == len(folders)


def test_what_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = write(tmp_path / "heads", FASTER, heads(), "medusa_lm_head.pt")
    assert read(folder).notes == (
        "draft: Medusa (heads: 3, blocks of each: 1), FasterDecoding checkpoint",
        "config.json says 2 heads, the tensors are of 3: all may serve",
        "made for lmsys/vicuna-7b-v1.3",
        "reads the output of the target's final norm",
    )
    assert main([str(folder)]) == 0
    assert "Medusa (heads: 3" in capsys.readouterr().out
    modelopt = write(tmp_path / "modelopt", MODELOPT, {**heads("medusa_heads."), **BASE})
    assert "ModelOpt export" in read(modelopt).notes[0]


@pytest.mark.parametrize("layers", [1, 2])
def test_a_borrowed_head(tmp_path: Path, layers: int) -> None:
    folder = write(tmp_path, {}, heads(layers=layers, own_head=False), "medusa_lm_head.pt")
    draft = read(folder)
    assert not draft.config.own_head and draft.config.num_layers == layers
    assert "the head is the target's" in draft.notes
    assert not any("lm_head" in name for name in draft.tensors)


def refused(path: Path, message: str, tensors: dict[str, Tensor], **config: Any) -> None:
    folder = write(path, {**FASTER, **config}, tensors, "medusa_lm_head.safetensors")
    with pytest.raises(CheckpointError, match=message):
        read_draft(folder, TARGET)


def test_missing_and_left_over(tmp_path: Path) -> None:
    tensors = heads()
    del tensors["1.0.linear.bias"], tensors["2.1.weight"]
    tensors |= {"1.3.weight": torch.ones(2), "model_head.weight": torch.ones(2)}
    message = (
        r"does not fit 3 Medusa heads \(blocks of each: 1\): 2 tensors are missing: "
        r"1\.0\.linear\.bias, 2\.1\.weight; 2 tensors have no use: 1\.3\.weight, model_head\.weight"
    )
    refused(tmp_path, message, tensors)
    without_first = {n: t for n, t in heads().items() if not n.startswith("0.")}
    refused(tmp_path, r"3 tensors are missing: 0\.0\.linear\.weight", without_first)


def test_other_targets(tmp_path: Path) -> None:
    folder = write(tmp_path, FASTER, heads(), "medusa_lm_head.pt")
    with pytest.raises(CheckpointError, match=rf"a hidden size of {H} .*, the target's is 32"):
        read_draft(folder, replace(TARGET, hidden_size=32))
    with pytest.raises(CheckpointError, match=rf"a vocabulary of {V} .*1\.weight.*target's is 30"):
        read_draft(folder, replace(TARGET, vocab_size=30))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"medusa_num_heads": 5}, "medusa_num_heads is 5, the tensors are of 3"),
        ({"medusa_num_heads": "2"}, "medusa_num_heads is '2'"),
        ({"medusa_num_layers": 2}, "medusa_num_layers is 2, the tensors are of 1"),
        ({"quantization_config": {}}, "quantization_config {} is not"),
    ],
)
def test_config_and_tensors_disagree(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    refused(tmp_path, message, heads(), **config)


def test_wrong_tensors(tmp_path: Path) -> None:
    refused(tmp_path, "none of its 1 tensors is a head's", {"x": torch.ones(2)})
    twisted = heads() | {"1.1.weight": torch.ones(H, V)}
    refused(tmp_path, rf"1\.1\.weight has shape \[{H}, {V}\].*\[{V}, {H}\]", twisted)
    rounded = heads() | {"0.0.linear.weight": torch.ones(H, H, dtype=torch.int8)}
    refused(tmp_path, r"0\.0\.linear\.weight has dtype I8", rounded)
    double = heads() | {"medusa_heads.0.1.weight": torch.ones(V, H)}
    refused(tmp_path, r"are both 0\.1\.weight", double)
    folder = write(tmp_path / "listed", FASTER, {}, "medusa_lm_head.pt")
    torch.save([1], folder / "medusa_lm_head.pt")
    with pytest.raises(CheckpointError, match="holds a list, not named tensors"):
        read_draft(folder, TARGET)


def test_no_token_map(tmp_path: Path) -> None:
    folder = write(tmp_path, FASTER, heads(), "medusa_lm_head.pt")
    with pytest.raises(
        CheckpointError, match="Medusa heads, whose head is not cut; leave the token"
    ):
        read_draft(folder, TARGET, tmp_path / "freq.pt")


def test_one_folder_for_target_and_heads(tmp_path: Path) -> None:
    """ModelOpt's is the target as well: without the heads it reads as the model alone does."""
    plain = load_target(TinyFolder(tmp_path / "plain").write())
    config = json.loads((tmp_path / "plain" / "config.json").read_text())
    model = load_file(tmp_path / "plain" / "model.safetensors")
    hidden, vocab = plain.config.hidden_size, plain.config.vocab_size
    own = {
        "medusa_heads.0.0.linear.weight": torch.ones(hidden, hidden),
        "medusa_heads.0.0.linear.bias": torch.ones(hidden),
        "medusa_heads.0.1.weight": torch.ones(vocab, hidden),
    }
    config["architectures"] = [f"Medusa{config['architectures'][0]}"]
    config["medusa"] = {"num_medusa_heads": 1, "num_medusa_layers": 1}
    both = load_target(write(tmp_path / "both", config, {**model, **own}))
    assert both.config == plain.config and set(both.ignored) == {*plain.ignored, *own}
    for name, tensor in plain.tensors.items():
        assert torch.equal(both.tensors[name], tensor)
    draft = read_draft(tmp_path / "both", both.config)
    assert isinstance(draft.config, MedusaConfig) and draft.config.num_heads == 1
    del config["medusa"]
    with pytest.raises(CheckpointError, match="'MedusaLlamaForCausalLM' is not supported"):
        load_target(write(tmp_path / "unsaid", config, {**model, **own}))


@pytest.mark.slow
def test_what_modelopt_saves(tmp_path: Path) -> None:
    """The real one, where it is installed."""
    speculative = pytest.importorskip("modelopt.torch.speculative")
    from transformers import LlamaConfig, LlamaForCausalLM

    model = LlamaForCausalLM(LlamaConfig(**{**LLAMA, "num_hidden_layers": TARGET.num_layers}))
    settings = {"medusa_num_heads": HEADS, "medusa_num_layers": 2}
    speculative.convert(model, [("medusa", settings)])
    model.save_pretrained(tmp_path)
    draft = read(tmp_path)
    assert draft.config == MedusaConfig(HEADS, 2, H, V, (TARGET.num_layers,))
    for name, tensor in model.medusa_heads.state_dict().items():
        h, layer, *_ = name.split(".")
        ours = f"heads.{h}.lm_head.weight"
        if "linear" in name:
            ours = f"heads.{h}.blocks.{layer}.{name.rsplit('.', 1)[1]}"
        assert torch.equal(draft.tensors[ours], tensor)
