"""ModelOpt's W8A16: read as it is; other quantised checkpoints are refused by name."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint_converters import fingerprint, load_checkpoint, read_config
from trtspec.config.storage import WeightStorage
from trtspec.errors import CheckpointError
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.quantised import QuantisedFormat
from trtspec.models.causal_lm import CausalLM
from trtspec.ops.linear import unpack_linear

from .tiny_folder import TinyFolder

CONFIG = {"quant_method": "modelopt", "quant_algo": "W8A16", "ignore": ["lm_head"]}
FILE = {"quant_algo": "W8A16", "kv_cache_quant_algo": None, "exclude_modules": ["lm_head"]}
UP = "model.layers.1.mlp.up_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> TinyFolder:
    """As ModelOpt exports INT8_WEIGHT_ONLY: every linear layer but the head."""
    folder = TinyFolder(tmp_path / "model")
    for name, weight in list(folder.tensors.items()):
        if name.endswith("_proj.weight"):
            scales = weight.float().abs().amax(1) / 127
            folder.tensors[name] = (weight.float() / scales[:, None]).round().to(torch.int8)
            folder.tensors[f"{name}_scale"] = scales
    return folder


def write(folder: TinyFolder, config: Any = CONFIG, file: Any = None) -> Path:
    path = folder.write(**({} if config is None else {"quantization_config": config}))
    if file is not None:
        (path / "hf_quant_config.json").write_text(json.dumps({"quantization": file}))
    return path


def integers(group: int = 0) -> NetworkFormats:
    return NetworkFormats.uniform(QuantisedFormat(WeightStorage(8, group)))


@pytest.mark.parametrize(("config", "file"), [(CONFIG, None), (None, FILE), (CONFIG, FILE)])
def test_weights_are_taken_as_they_are(folder: TinyFolder, config: Any, file: Any) -> None:
    checkpoint = load_checkpoint(write(folder, config, file))
    stored = checkpoint.config.storage
    assert stored is not None and stored.schemes == (WeightStorage(bits=8),)
    assert stored.scheme("head") is None
    assert checkpoint.config.dtype == "bfloat16"
    assert read_config(checkpoint.path) == checkpoint.config
    for group in (0, 32):
        model = CausalLM(checkpoint.config, torch.float32, formats=integers(group))
        model.load_weights(checkpoint)
        fused = model.layers[1].mlp.gate_up
        kept = fused.format.dequantised(fused.weights, 48, fused.in_features)
        assert torch.equal(kept[24:], folder.tensors[UP] * folder.tensors[f"{UP}_scale"][:, None])
        assert fused.rounding.error == 0 and model.lm_head.rounding.error > 0


def test_weights_become_floats(folder: TinyFolder) -> None:
    checkpoint = load_checkpoint(write(folder))
    model = CausalLM(checkpoint.config, torch.float32)
    model.load_weights(checkpoint)
    expected = folder.tensors[UP].float() * folder.tensors[f"{UP}_scale"][:, None]
    assert torch.equal(unpack_linear(model.layers[1].mlp.gate_up.packed, 48)[24:], expected)


def test_fingerprint_follows_the_quantization_file(folder: TinyFolder) -> None:
    prints = {fingerprint(write(folder, None, FILE | {"group_size": g})) for g in (None, 1)}
    assert len(prints) == 2


@pytest.mark.parametrize(
    ("config", "file", "message"),
    [
        (
            {"quant_method": "bitsandbytes"},
            None,
            "bitsandbytes is not supported; .*gptq",
        ),
        (
            CONFIG | {"quant_algo": "NVFP4_SVD"},
            None,
            "config.json: .*quant_algo 'NVFP4_SVD' is not",
        ),
        ({"quant_method": "modelopt"}, None, "does not say quant_algo; it must be W8A16"),
        ("int8", None, "'int8' is not supported"),
        (None, FILE | {"quant_algo": "W4A8_AWQ"}, "hf_quant_config.json: quantization quant_algo"),
        (
            None,
            {
                "quant_algo": "MIXED_PRECISION",
                "quantized_layers": {"a": {"quant_algo": "NVFP4_SVD"}},
            },
            "'NVFP4_SVD' of layer a",
        ),
        (CONFIG, FILE | {"quant_algo": "NVFP4_SVD"}, "NVFP4_SVD"),
        (None, FILE | {"kv_cache_quant_algo": "FP8"}, r"K/V cache \(FP8\)"),
    ],
)
def test_other_formats(folder: TinyFolder, config: Any, file: Any, message: str) -> None:
    path = write(folder, config, file)
    for read in (load_checkpoint, read_config):
        with pytest.raises(CheckpointError, match=message):
            read(path)


def test_tensors_that_do_not_fit(folder: TinyFolder) -> None:
    scale = f"{UP}_scale"
    kept = folder.tensors.pop(scale)
    with pytest.raises(CheckpointError, match=rf"its tensor {scale} is missing"):
        load_checkpoint(write(folder))
    folder.tensors[scale] = kept[:3]
    with pytest.raises(CheckpointError, match=r"has shape \[3\]; it must have \[24\]"):
        load_checkpoint(write(folder))
    folder.tensors[scale] = kept
    with pytest.raises(CheckpointError, match=r"no use: .*_scale"):
        load_checkpoint(write(folder, None))  # nothing says that weights are quantised
    embedding = "model.embed_tokens.weight"
    folder.tensors[embedding] = folder.tensors[embedding].to(torch.int8)
    with pytest.raises(CheckpointError, match=f"tensor {embedding}_scale is missing"):
        load_checkpoint(write(folder))
    folder = TinyFolder(folder.path, tensors=dict(folder.tensors))
    folder.tensors[embedding] = folder.tensors[embedding].bfloat16()
    folder.tensors[scale] = kept * torch.nan
    checkpoint = load_checkpoint(write(folder))
    model = CausalLM(checkpoint.config, torch.float32, formats=integers())
    with pytest.raises(CheckpointError, match=r"layers\.1\.mlp\.up_proj\.weight_scale .* 24 val"):
        model.load_weights(checkpoint)
