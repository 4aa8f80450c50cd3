"""PEFT's adapters: what is read of them, and how each misfit is refused by name."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from checkpoint_converters import read_adapter
from checkpoint_converters.peft import PeftAdapter
from trtspec.config.feed_forwards.dense import DenseSpec
from trtspec.config.layer import Layers, LayerSpec
from trtspec.config.mixers.attention import AttentionSpec
from trtspec.config.model import ModelConfig
from trtspec.config.norm_spec import NormSpec
from trtspec.errors import CheckpointError

HIDDEN, INNER, HEADS, KV_HEADS, HEAD = 24, 40, 4, 2, 8
_LAYER = LayerSpec(AttentionSpec(HEADS, KV_HEADS, HEAD), DenseSpec(INNER), NormSpec(1e-5))
BASE = ModelConfig(
    architecture="LlamaForCausalLM",
    vocab_size=50,
    hidden_size=HIDDEN,
    layers=Layers.of([_LAYER] * 2),
    norm=NormSpec(1e-5),
    max_position_embeddings=64,
)
FUSED = ModelConfig(**{**vars(BASE), "architecture": "Phi3ForCausalLM"})
SIZES = {
    "self_attn.q_proj": (HEADS * HEAD, HIDDEN),
    "self_attn.k_proj": (KV_HEADS * HEAD, HIDDEN),
    "self_attn.o_proj": (HIDDEN, HEADS * HEAD),
    "self_attn.qkv_proj": ((HEADS + 2 * KV_HEADS) * HEAD, HIDDEN),
    "mlp.down_proj": (HIDDEN, INNER),
    "mlp.gate_up_proj": (2 * INNER, HIDDEN),
}
PREFIX = "base_model.model.model.layers"


def tensors(*names: str, rank: int = 3, prefix: str = PREFIX) -> dict[str, Tensor]:
    """Random ones of these projections in both layers."""
    noise, found = torch.Generator().manual_seed(0), {}
    for i in range(2):
        for name in names:
            n, k = SIZES[name]
            found[f"{prefix}.{i}.{name}.lora_A.weight"] = torch.randn(rank, k, generator=noise)
            found[f"{prefix}.{i}.{name}.lora_B.weight"] = torch.randn(n, rank, generator=noise)
    return found


def write(folder: Path, stored: Mapping[str, Tensor], **says: Any) -> Path:
    config = {"peft_type": "LORA", "r": 3, "lora_alpha": 6, "target_modules": ["q_proj"], **says}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    save_file(dict(stored), folder / "adapter_model.safetensors")
    return folder


def added(adapter: PeftAdapter, name: str) -> Tensor:
    a, b = adapter.layers[name]
    return b @ a


@pytest.mark.parametrize(
    ("says", "scale"),
    [
        ({}, 2.0),
        ({"use_rslora": True}, 6 / 3**0.5),
        ({"alpha_pattern": {r"layers\.1\.self_attn\.q_proj": 30}}, {0: 2.0, 1: 10.0}),
        ({"r": 8, "rank_pattern": {"q_proj": 3}}, 2.0),
    ],
)
def test_scales(tmp_path: Path, says: dict[str, Any], scale: Any) -> None:
    stored = tensors("self_attn.q_proj")
    adapter = read_adapter(write(tmp_path, stored, **says), BASE)
    assert set(adapter.layers) == {"layers.0.attn.q", "layers.1.attn.q"} and adapter.rank == 3
    for i in range(2):
        a, b = (stored[f"{PREFIX}.{i}.self_attn.q_proj.lora_{kind}.weight"] for kind in "AB")
        factor = scale[i] if isinstance(scale, dict) else scale
        torch.testing.assert_close(added(adapter, f"layers.{i}.attn.q"), factor * (b @ a))


@pytest.mark.parametrize(
    "says",
    [
        {"target_modules": ["q_proj", "down_proj"]},
        {"target_modules": r".*\.(q|down)_proj"},
        {"target_modules": ["self_attn.q_proj", "mlp.down_proj"]},
        {"target_modules": r".*\.(q|o|down)_proj", "exclude_modules": ["o_proj"]},
        {"target_modules": r".*\.(q|o|down)_proj", "exclude_modules": r".*\.o_proj"},
        {"target_modules": ["q_proj", "down_proj"], "layers_to_transform": [0, 1]},
    ],
)
def test_targets_by_name_and_pattern(tmp_path: Path, says: dict[str, Any]) -> None:
    stored = tensors("self_attn.q_proj", "mlp.down_proj")
    adapter = read_adapter(write(tmp_path, stored, **says), BASE)
    assert len(adapter.layers) == 4


def test_layers_to_transform(tmp_path: Path) -> None:
    stored = {n: t for n, t in tensors("self_attn.q_proj").items() if ".1." in n}
    adapter = read_adapter(write(tmp_path, stored, layers_to_transform=1), BASE)
    assert set(adapter.layers) == {"layers.1.attn.q"}


def test_a_fused_projection_is_taken_apart(tmp_path: Path) -> None:
    stored = tensors("self_attn.qkv_proj", "mlp.gate_up_proj")
    says = {"target_modules": ["qkv_proj", "gate_up_proj"]}
    adapter = read_adapter(write(tmp_path, stored, **says), FUSED)
    for fused, parts in (("self_attn.qkv_proj", "qkv"), ("mlp.gate_up_proj", ("gate", "up"))):
        a, b = (stored[f"{PREFIX}.0.{fused}.lora_{kind}.weight"] for kind in "AB")
        place = "attn" if len(parts) == 3 else "mlp"
        made = [added(adapter, f"layers.0.{place}.{part}") for part in parts]
        torch.testing.assert_close(torch.cat(made), 2.0 * (b @ a))


@pytest.mark.parametrize(
    "prefix",
    ["base_model.model.layers", "base_model.model.model.language_model.layers", "model.layers"],
)
def test_other_spellings_of_a_base(tmp_path: Path, prefix: str) -> None:
    """Of a decoder saved alone, of a composite model, and without PEFT's wrapper."""
    stored = tensors("self_attn.q_proj", prefix=prefix)
    assert len(read_adapter(write(tmp_path, stored), BASE).layers) == 2


@pytest.mark.parametrize(
    ("says", "said"),
    [
        ({"peft_type": "IA3"}, "peft_type is 'IA3'"),
        ({"bias": "lora_only"}, "bias is 'lora_only': trained biases are not read"),
        ({"use_dora": True}, "use_dora is True: DoRA is not offered"),
        ({"modules_to_save": ["lm_head"]}, r"modules_to_save is \['lm_head'\]"),
        ({"trainable_token_indices": [3]}, "embeddings are not adapted"),
        ({"init_lora_weights": "pissa"}, "it changed its base as well"),
        ({"lora_bias": True}, "adapters have no biases"),
        ({"fan_in_fan_out": True}, "transposed weights"),
        ({"layer_replication": [[0, 2]]}, "layers are not repeated"),
        ({"use_something": {"new": 1}}, "use_something is .*: it is not known here"),
        ({"target_modules": "("}, r"the pattern '\(' is none"),
        ({"r": float("inf")}, "r of .* is inf; it must be a number above 0"),
        ({"r": 3.5}, "r of .* is 3.5; a rank is a whole number"),
        ({"lora_alpha": "x"}, "lora_alpha of .* is 'x'; it must be a number above 0"),
        ({"target_modules": ["c_attn"]}, "no projection of the model has such a name|leave out"),
    ],
)
def test_configs_that_are_refused(tmp_path: Path, says: dict[str, Any], said: str) -> None:
    folder = write(tmp_path, tensors("self_attn.q_proj"), **says)
    with pytest.raises(CheckpointError, match=said):
        read_adapter(folder, BASE)


def renamed(old: str, new: str) -> dict[str, Tensor]:
    return {n.replace(old, new): t for n, t in tensors("self_attn.q_proj").items()}


def without(end: str) -> dict[str, Tensor]:
    return {n: t for n, t in tensors("self_attn.q_proj").items() if not n.endswith(end)}


@pytest.mark.parametrize(
    ("stored", "said"),
    [
        (
            without("1.self_attn.q_proj.lora_B.weight"),
            "lacks 1 tensors .*1.self_attn.q_proj.lora_B",
        ),
        (
            tensors("self_attn.q_proj", rank=4),
            r"has shape \[4, 24\], .* ask for \[3, 24\] \(rank 3",
        ),
        (renamed("layers.1", "layers.7"), "of 2 layers has no projection model.layers.7"),
        (renamed("q_proj", "c_attn"), "adapter of another base"),
        (renamed("lora_A", "lora_embedding_A"), "an adapter of embeddings"),
        (renamed("self_attn.q_proj.lora_A", "x.lora_magnitude_vector"), "a part of DoRA"),
        (renamed("model.layers.1.self_attn.q_proj", "lm_head"), "beside the head"),
        (tensors("self_attn.q_proj", "self_attn.k_proj"), "leave out 2 modules .*k_proj"),
        (
            {n: torch.full_like(t, float("nan")) for n, t in tensors("self_attn.q_proj").items()},
            "holds NaN or infinite",
        ),
        (
            {n: t.to(torch.int32) for n, t in tensors("self_attn.q_proj").items()},
            "has dtype I32; supported",
        ),
    ],
)
def test_tensors_that_are_refused(tmp_path: Path, stored: dict[str, Tensor], said: str) -> None:
    with pytest.raises(CheckpointError, match=said):
        read_adapter(write(tmp_path, stored), BASE)


def test_an_adapter_of_a_wider_base_is_refused(tmp_path: Path) -> None:
    """Whose numbers of layers agree."""
    other = ModelConfig(**{**vars(BASE), "hidden_size": 32})
    folder = write(tmp_path, tensors("self_attn.q_proj"))
    with pytest.raises(CheckpointError, match=r"has shape \[3, 24\], .* ask for \[3, 32\]"):
        read_adapter(folder, other)


def test_folders_that_are_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"has no adapter_config.json"):
        read_adapter(tmp_path, BASE)
    write(tmp_path, tensors("self_attn.q_proj"))
    (tmp_path / "adapter_model.safetensors").rename(tmp_path / "adapter_model.bin")
    with pytest.raises(CheckpointError, match=r"found: adapter_model.bin.*pickles are not read"):
        read_adapter(tmp_path, BASE)
