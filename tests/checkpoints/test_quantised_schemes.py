"""Every scheme of quantised weights: read to the bit, and refused by name where it does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from checkpoint_converters import content_of, load_checkpoint, read_config
from checkpoint_converters.checkpoint import Checkpoint
from trtspec.config.storage import NetworkStorage
from trtspec.config.strict import from_dict, to_dict
from trtspec.errors import CheckpointError
from trtspec.formats.quantised import QuantisedFormat
from trtspec.formats.stored import StoredWeight, read_tensor
from trtspec.models.causal_lm import CausalLM
from trtspec.ops.linear import unpack_linear

from .quantised_layers import CASES, Case
from .tiny_folder import TinyFolder

DOWN = "model.layers.1.mlp.down_proj"
WHOLE = ("model.layers.0.mlp.up_proj", "lm_head", "model.layers.1.self_attn.v_proj")
"""Layers that are left out, one part of a fused layer among them."""


def quantised(folder: TinyFolder, case: Case) -> dict[str, Tensor]:
    """Put a scheme's layers in place of all but `WHOLE`; returns the floats by layer."""
    floats = {}
    for name, weight in list(folder.tensors.items()):
        layer = name.removesuffix(".weight")
        if layer.endswith("_proj"):
            floats[layer] = weight.float()
            if layer not in WHOLE:
                del folder.tensors[name]
                parts, floats[layer] = case.layer(*weight.shape)
                folder.tensors |= {f"{layer}.{role}": part for role, part in parts.items()}
    return floats


def opened(path: Path, case: Case, change: Callable[[TinyFolder], Any] = id) -> Checkpoint:
    folder = TinyFolder(path)
    quantised(folder, case)
    change(folder)
    return load_checkpoint(folder.write(quantization_config=case.config))


@pytest.mark.parametrize("name", CASES)
def test_a_format_of_the_same_storage_keeps_all(tmp_path: Path, name: str) -> None:
    """What a file's header says of a weight is what a format of so many bits needs to hold it."""
    checkpoint = opened(tmp_path / "model", CASES[name])
    header = checkpoint.tensors.headers["layers.1.mlp.down.weight"]
    assert header.storage is not None
    kind = QuantisedFormat(header.storage)
    weight = StoredWeight.read(checkpoint.tensors, "layers.1.mlp.down.weight")
    specs = kind.storage(*header.shape, torch.float32)
    buffers = {name: torch.empty(s.shape, dtype=s.dtype) for name, s in specs.items()}
    assert kind.load([weight], buffers).error == 0
    assert torch.equal(kind.dequantised(buffers, *header.shape), header.read())
    stored = checkpoint.config.storage
    assert stored is not None and stored.scheme("layers.1.mlp.down") == header.storage
    for name in ("layers.0.mlp.up", "layers.1.attn.v", "head", "embed"):
        assert stored.scheme(name) is None
    assert from_dict(NetworkStorage, json.loads(json.dumps(to_dict(stored)))) == stored


@pytest.mark.parametrize("name", CASES)
def test_weights_are_read_to_the_bit(tmp_path: Path, name: str) -> None:
    folder = TinyFolder(tmp_path)
    floats = quantised(folder, CASES[name])
    path = folder.write(quantization_config=CASES[name].config)
    checkpoint = load_checkpoint(path)
    assert read_config(path) == checkpoint.config
    for ours, layer in (("mlp.down", DOWN), ("attn.q", "model.layers.1.self_attn.q_proj")):
        weight = StoredWeight.read(checkpoint.tensors, f"layers.1.{ours}.weight")
        assert weight.quantised is not None
        assert torch.equal(weight.floats(), floats[layer])
    assert StoredWeight.read(checkpoint.tensors, "layers.1.attn.v.weight").quantised is None
    model = CausalLM(checkpoint.config, torch.float32)
    model.load_weights(checkpoint)
    fused = [floats[f"model.layers.1.self_attn.{part}_proj"] for part in "qkv"]
    assert torch.equal(unpack_linear(model.layers[1].attn.qkv.packed, 32), torch.cat(fused))


def change(role: str, to: Callable[[Tensor], Tensor]) -> Callable[[TinyFolder], None]:
    def apply(folder: TinyFolder) -> None:
        folder.tensors[f"{DOWN}.{role}"] = to(folder.tensors[f"{DOWN}.{role}"]).contiguous()

    return apply


def without(role: str) -> Callable[[TinyFolder], Any]:
    return lambda folder: folder.tensors.pop(f"{DOWN}.{role}")


def with_value(value: float) -> Callable[[Tensor], Tensor]:
    def put(tensor: Tensor) -> Tensor:
        changed = tensor.clone()
        changed.view(-1)[3] = value
        return changed

    return put


BAD: list[tuple[str, Callable[[TinyFolder], Any], str]] = [
    ("gptq", without("scales"), "its tensor DOWN.scales is missing; get the checkpoint again"),
    ("gptq", without("qzeros"), "its tensor DOWN.qzeros is missing"),
    ("gptq-act", without("g_idx"), "its tensor DOWN.g_idx is missing"),
    ("gptq", change("scales", lambda t: t[:, :8]), r"scales .* has shape \[3, 8\]; .* \[3, 16\]"),
    ("gptq", change("scales", lambda t: torch.cat((t, t[:2]))), "5 groups; .* divide its 24 input"),
    ("gptq", change("qzeros", lambda t: t[:2]), r"qzeros .* has shape \[2, 2\]; .* \[3, 2\]"),
    ("gptq", change("qweight", lambda t: t.float()), "qweight .* has dtype F32; it must be I32"),
    ("gptq", change("scales", with_value(torch.nan)), "scales .* 1 values that are NaN or inf"),
    ("gptq-act", change("g_idx", with_value(3)), "g_idx .* has group 3; .* name groups 0 to 2"),
    ("gptq-act", change("g_idx", with_value(-1)), "g_idx .* has group -1"),
    ("gptq-act", change("g_idx", torch.zeros_like), "24 input features in group 0; .* each 8"),
    ("gptq", change("g_idx", lambda t: t.flip(0)), "g_idx .* in no order; .* as desc_act says"),
    ("gptq-symmetric", change("qzeros", with_value(5)), "zero point of 6; .* 8, as sym says"),
    ("awq", without("qzeros"), "its tensor DOWN.qzeros is missing"),
    ("awq", change("scales", with_value(torch.inf)), "scales .* NaN or infinite"),
    ("pack-quantized", without("weight_scale"), "no use: .*weight_packed"),
    ("pack-quantized", change("weight_shape", lambda t: t + 1), "weight_shape .* be .16, 24."),
    ("int-quantized", without("weight_scale"), "DOWN.weight_scale is missing"),
    ("modelopt-awq", change("pre_quant_scale", with_value(torch.nan)), "pre_quant_scale .* NaN"),
    ("modelopt-awq", change("weight_scale", lambda t: t[1:]), r"\[15, 3\]; it must have \[16, 3\]"),
]


@pytest.mark.parametrize(("name", "bend", "message"), BAD)
def test_layers_that_do_not_fit(
    tmp_path: Path, name: str, bend: Callable[[TinyFolder], Any], message: str
) -> None:
    with pytest.raises(CheckpointError, match=message.replace("DOWN", DOWN)):
        opened(tmp_path, CASES[name], bend).tensors["layers.1.mlp.down.weight"]


SETTINGS: list[tuple[str, dict[str, Any], str]] = [
    ("gptq", {"bits": 3}, "bits 3 is not supported; supported: 4, 8"),
    ("gptq", {"checkpoint_format": "marlin"}, "checkpoint_format 'marlin' .* gptq, gptq_v2"),
    ("gptq", {"dynamic": {"-:b": {}, "+:a": {"bits": 8}}}, r"dynamic '\+:a' .*supported: .* '-:'"),
    ("awq", {"bits": 8}, "bits 8 is not supported; supported: 4"),
    ("awq", {"version": "gemv"}, "version 'gemv' is not supported"),
    ("pack-quantized", {"format": "marlin-24"}, "format 'marlin-24'"),
    ("pack-quantized", {"kv_cache_scheme": {"num_bits": 8}}, "K/V cache .*remove kv_cache_scheme"),
    ("pack-quantized", {"config_groups": {}}, "no config_groups with targets"),
    ("pack-quantized", {"sparsity_config": {"format": "sparse-24"}}, "sparse weights"),
    ("modelopt-awq", {"quant_algo": "W4A8_AWQ"}, "quant_algo 'W4A8_AWQ' is not supported"),
]


@pytest.mark.parametrize(("name", "said", "message"), SETTINGS)
def test_settings_that_are_not_read(
    tmp_path: Path, name: str, said: dict[str, Any], message: str
) -> None:
    case = replace(CASES[name], settings=lambda: CASES[name].config | said)
    with pytest.raises(CheckpointError, match=f"quantization_config {message}|{message}"):
        opened(tmp_path, case)


def test_groups_of_layers(tmp_path: Path) -> None:
    """Names count before patterns, patterns before classes; a layer without a group is refused."""
    eight, four = (CASES[f"pack-quantized{end}"] for end in ("-8", ""))
    groups = {
        "first": four.config["config_groups"]["group_0"] | {"targets": ["Linear"]},
        "second": eight.config["config_groups"]["group_0"] | {"targets": [r"re:.*\.1\.mlp.*"]},
    }
    folder = TinyFolder(tmp_path)
    floats = quantised(folder, four)
    for name in [name for name in folder.tensors if ".1.mlp." in name]:
        layer, _, role = name.rpartition(".")
        if role == "weight_packed":
            parts, floats[layer] = eight.layer(*floats[layer].shape)
            folder.tensors |= {f"{layer}.{r}": part for r, part in parts.items()}
    path = folder.write(quantization_config=four.config | {"config_groups": groups})
    tensors = load_checkpoint(path).tensors
    for i in range(2):
        found = read_tensor(tensors, f"layers.{i}.mlp.down.weight")
        assert torch.equal(found, floats[f"model.layers.{i}.mlp.down_proj"])
    with pytest.raises(CheckpointError, match=r"no config group for layer model\.layers\.0"):
        only = four.config | {"config_groups": {"second": groups["second"]}}
        load_checkpoint(folder.write(quantization_config=only))


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("gptq-symmetric", "qzeros"),
        ("pack-quantized-zeros", "weight_zero_point"),
        ("int-quantized-zeros", "weight_zero_point"),
    ],
)
def test_zero_points_that_are_left_out(tmp_path: Path, name: str, role: str) -> None:
    """They are the middle of the numbers, in one layer or in all; of one part of a fused one."""
    folder = TinyFolder(tmp_path)
    quantised(folder, CASES[name])
    layer, size = "model.layers.1.self_attn.k_proj", (8, 16)
    del folder.tensors[f"{layer}.{role}"]
    checkpoint = load_checkpoint(folder.write(quantization_config=CASES[name].config))
    expected = CASES[name].codes(*size).symmetric().floats
    assert torch.equal(read_tensor(checkpoint.tensors, "layers.1.attn.k.weight"), expected)
    model = CausalLM(checkpoint.config, torch.float32)
    model.load_weights(checkpoint)
    assert torch.equal(unpack_linear(model.layers[1].attn.qkv.packed, 32)[16:24], expected)


def test_what_is_said_beside_config_json(tmp_path: Path) -> None:
    """AutoGPTQ and AutoAWQ write a file of their own; another program's of that name says no bits.
    It is part of what a checkpoint is known by."""
    awq = CASES["awq"].config
    spelled = {"w_bit": awq["bits"], "q_group_size": awq["group_size"], "version": "GEMM"}
    gptq = CASES["gptq"].config | {"quant_method": None, "is_marlin_format": False}
    for name, file, said in (
        ("gptq", "quantize_config.json", gptq),
        ("awq", "quant_config.json", spelled | {"zero_point": True}),
    ):
        folder = TinyFolder(tmp_path / name)
        floats = quantised(folder, CASES[name])
        path = folder.write()
        (path / file).write_text(json.dumps(said))
        checkpoint = load_checkpoint(path)
        assert read_config(path) == checkpoint.config and checkpoint.config.storage is not None
        found = read_tensor(checkpoint.tensors, "layers.1.mlp.down.weight")
        assert torch.equal(found, floats[DOWN])
        assert path / file in content_of(path)
        (path / file).write_text(json.dumps(said | {"bits": 3, "w_bit": None}))
        with pytest.raises(CheckpointError, match=f"{file}: quantization bits 3 is not supported"):
            load_checkpoint(path)
    plain = TinyFolder(tmp_path / "plain").write()
    (plain / "quant_config.json").write_text(json.dumps({"model": "another program's"}))
    assert load_checkpoint(plain).config.storage is None


def test_layers_that_gptq_leaves_out(tmp_path: Path) -> None:
    left_out = {f"-:{layer}": {} for layer in WHOLE}
    case = replace(CASES["gptq"], settings=lambda: CASES["gptq"].config | {"dynamic": left_out})
    found = opened(tmp_path, case).config.storage
    assert found is not None and found.scheme("layers.0.mlp.up") is None


@pytest.mark.parametrize("stored", ["embedding", "head", "both"])
def test_a_tied_checkpoint_with_a_quantised_head(tmp_path: Path, stored: str) -> None:
    """One that was rounded from the embedding is left out; one of another model is refused."""
    case, folder = CASES["int-quantized"], TinyFolder(tmp_path)
    embedding = folder.tensors["model.embed_tokens.weight"]
    folder.tensors["lm_head.weight"] = embedding.clone()
    layers = {"embedding": ("model.embed_tokens",), "head": ("lm_head",)}
    for layer in layers.get(stored, ("model.embed_tokens", "lm_head")):
        parts, _ = case.rounded(folder.tensors.pop(f"{layer}.weight").float())
        folder.tensors |= {f"{layer}.{role}": part for role, part in parts.items()}
    tied = {"tie_word_embeddings": True, "quantization_config": case.config}
    checkpoint = load_checkpoint(folder.write(**tied))
    assert "lm_head.weight" in checkpoint.ignored and "head.weight" not in checkpoint.tensors
    if stored == "head":
        assert torch.equal(checkpoint.tensors["embed.weight"], embedding)
    embedding.copy_(embedding.roll(1, 0))
    for name in [n for n in folder.tensors if n.startswith("model.embed_tokens")]:
        folder.tensors[name] = folder.tensors[name].roll(1, 0).contiguous()
    with pytest.raises(CheckpointError, match=r"says tie_word_embeddings, yet lm_head\.weight"):
        load_checkpoint(folder.write(**tied))


@pytest.mark.parametrize("layer", ["self_attn.", "self_attn.k_proj."])
def test_scales_of_a_cache_have_no_use(tmp_path: Path, layer: str) -> None:
    """Of quantised checkpoints, and of plain ones."""
    names = [f"model.layers.0.{layer}{role}" for role in ("k_scale", "v_scale", "kv_zero_point")]
    scales = {name: torch.ones(1) for name in names}
    case = CASES["pack-quantized"]
    checkpoint = opened(tmp_path / "a", case, lambda f: f.tensors.update(scales))
    assert set(names) <= set(checkpoint.ignored)
    plain = TinyFolder(tmp_path / "b")
    plain.tensors |= scales
    assert set(load_checkpoint(plain.write()).ignored) == set(names)
