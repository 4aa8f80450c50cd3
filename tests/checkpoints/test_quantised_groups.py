"""How many inputs share a scale is what the config says, checked against the tensors; which layers
that and zero points hold for, however writers spell it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from checkpoint_converters import load_checkpoint
from checkpoint_converters.checkpoint import Checkpoint
from trtspec.config.quantised import QuantisedTensor
from trtspec.config.storage import NetworkStorage, WeightStorage
from trtspec.errors import CheckpointError, ConfigError
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.plain import PANELS
from trtspec.formats.quantised import QuantisedFormat, kept_as
from trtspec.formats.stored import StoredWeight, read_tensor

from .quantised_layers import CASES, Codes, gptq, in_groups, int_quantized, pack_quantized
from .tiny_folder import TinyFolder

DOWN = "model.layers.1.mlp.down_proj"
SCHEMES = (
    "gptq", "gptq-8", "gptq-act", "awq", "pack-quantized", "pack-quantized-zeros",
    "pack-quantized-act", "int-quantized", "int-quantized-zeros", "modelopt-awq",
)  # fmt: skip


def with_down(path: Path, parts: dict[str, Tensor], k: int) -> TinyFolder:
    """A folder whose one quantised layer has so many inputs."""
    folder = TinyFolder(path)
    folder.config["intermediate_size"] = k
    for name in list(folder.tensors):
        if ".mlp." in name:
            shape = (16, k) if "down" in name else (k, 16)
            folder.tensors[name] = torch.randn(shape).bfloat16()
    put(folder, DOWN, parts)
    return folder


def put(folder: TinyFolder, layer: str, parts: dict[str, Tensor]) -> None:
    del folder.tensors[f"{layer}.weight"]
    folder.tensors |= {f"{layer}.{role}": part.contiguous() for role, part in parts.items()}


def opened(folder: TinyFolder, config: dict[str, Any]) -> Checkpoint:
    return load_checkpoint(folder.write(quantization_config=config))


def down(checkpoint: Checkpoint) -> Tensor:
    return read_tensor(checkpoint.tensors, "layers.1.mlp.down.weight")


def kept(checkpoint: Checkpoint) -> Tensor:
    """What a format that keeps the layer's values makes of them."""
    name = "layers.1.mlp.down.weight"
    header = checkpoint.tensors.headers[name]
    assert header.storage is not None
    kind = kept_as(header.storage, 0)
    specs = kind.storage(*header.shape, torch.float32)
    buffers = {name: torch.zeros(s.shape, dtype=s.dtype) for name, s in specs.items()}
    assert kind.load([StoredWeight.read(checkpoint.tensors, name)], buffers).error == 0
    return kind.dequantised(buffers, *header.shape)


@pytest.mark.parametrize("name", SCHEMES)
@pytest.mark.parametrize(("k", "size"), [(192, 128), (200, 64), (64, 128), (128, 128)])
def test_groups_have_the_size_that_is_said(tmp_path: Path, name: str, k: int, size: int) -> None:
    """The last one is shorter, or there is one of all inputs, which -1 may say too."""
    case = in_groups(CASES[name], lambda: size)
    parts, floats = case.layer(16, k)
    checkpoint = opened(with_down(tmp_path / "said", parts, k), case.config)
    assert torch.equal(down(checkpoint), floats)
    assert torch.equal(kept(checkpoint), floats)
    if k <= size:
        config = in_groups(case, lambda: -1).settings()
        assert torch.equal(down(opened(with_down(tmp_path / "-1", parts, k), config)), floats)


@pytest.mark.parametrize("name", SCHEMES)
def test_a_size_that_the_tensors_do_not_have(tmp_path: Path, name: str) -> None:
    parts, _ = in_groups(CASES[name], lambda: 16).layer(16, 48)
    for said, wanted in ((32, "have 2, as groups of 32"), (-1, "have 1, as groups of 48")):
        config = in_groups(CASES[name], lambda said=said: said).settings()
        folder = with_down(tmp_path, parts, 48)
        with pytest.raises(CheckpointError, match=f"3 groups; .*{wanted} .* its 48 input"):
            opened(folder, config)
    config = in_groups(CASES[name], lambda: "128").settings()  # type: ignore[arg-type,return-value]
    with pytest.raises(CheckpointError, match=r"group_size '128' is not supported; .* -1 for all"):
        opened(with_down(tmp_path, parts, 48), config)


@pytest.mark.parametrize("name", ["awq", "gptq", "modelopt-awq", "pack-quantized"])
def test_where_no_size_is_said(tmp_path: Path, name: str) -> None:
    """Equal groups of a power of two cannot be others; the rest might be."""

    def config() -> dict[str, Any]:
        said = CASES[name].config
        for fields in (said, said.get("config_groups", {}).get("group_0", {}).get("weights", {})):
            fields.pop("group_size", None)
        return said

    parts, floats = in_groups(CASES[name], lambda: 32).layer(16, 96)
    assert torch.equal(down(opened(with_down(tmp_path, parts, 96), config())), floats)
    parts, _ = in_groups(CASES[name], lambda: 128).layer(16, 192)
    with pytest.raises(CheckpointError, match=r"2 groups; .* 192 input .* must say group_size"):
        opened(with_down(tmp_path, parts, 192), config())


def test_where_modelopt_and_awq_say_it(tmp_path: Path) -> None:
    case = in_groups(CASES["modelopt-awq"], lambda: 32)
    parts, floats = case.layer(16, 40)
    plain = {"quant_method": "modelopt", "quant_algo": "W4A16_AWQ"}
    weights = {"num_bits": 4, "type": "int", "group_size": 32}
    groups = {"group_0": {"targets": ["Linear"], "weights": weights}}
    layers = {DOWN: {"quant_algo": "W4A16_AWQ", "group_size": 32}}
    mixed = {"quant_algo": "MIXED_PRECISION", "quantized_layers": layers, "group_size": 16}
    for config in (plain | {"config_groups": groups}, plain | mixed):
        assert torch.equal(down(opened(with_down(tmp_path, parts, 40), config)), floats)
    said = {"quantization": {"quant_algo": "W4A16_AWQ", "group_size": 32}}
    (tmp_path / "hf_quant_config.json").write_text(json.dumps(said))
    assert torch.equal(down(opened(with_down(tmp_path, parts, 40), plain)), floats)
    parts, floats = in_groups(CASES["awq"], lambda: 32).layer(16, 40)
    config = {"quant_method": "awq", "bits": 4, "q_group_size": 32}
    assert torch.equal(down(opened(with_down(tmp_path / "awq", parts, 40), config)), floats)
    for key in ("format", "checkpoint_format"):
        with pytest.raises(CheckpointError, match=f"{key} 'gemv' is not supported"):
            opened(with_down(tmp_path / "awq", parts, 40), config | {key: "gemv"})


def test_experts_of_one_layer_share_a_size() -> None:
    """One scale of all 128 inputs, and groups of 128 out of 192, fit one format."""
    whole, grouped = WeightStorage(4, 0, "float16"), WeightStorage(4, 128, "float16")
    parts = {f"{e}.{p}": grouped if p == "down" else whole for e in (0, 1) for p in PARTS}
    storage = NetworkStorage.of({f"experts.{name}": each for name, each in parts.items()})
    kept = {scheme: kept_as(scheme, 0) for scheme in storage.schemes}
    formats = replace(NetworkFormats.uniform(PANELS), storage=storage, kept=kept).at("experts")
    kind = formats.of_experts(2, PARTS)
    assert isinstance(kind, QuantisedFormat) and kind.scheme == grouped


PARTS = ("gate", "up", "down")
ORDERED = "int4 with inputs in an order of their own (act-order)"


@pytest.mark.parametrize(
    ("change", "told"),
    [
        ({"bits": 8}, "int4, int8"),
        ({"permuted": True}, f"int4, {ORDERED}"),
        (
            {"zero_points": True, "permuted": True},
            f"int4, {ORDERED.replace('inputs', 'zero points and inputs')}",
        ),
        ({"input_scales": True}, "int4, int4 with factors of the inputs"),
        ({"scale_dtype": "float32"}, "int4 with float16 scales, int4 with float32 scales"),
        (None, "int4, plain"),
    ],
)
def test_experts_that_differ(change: dict[str, Any] | None, told: str) -> None:
    """What differs is said, and what to do."""
    usual = WeightStorage(4, 32, "float16")
    odd = None if change is None else replace(usual, **change)
    storage = NetworkStorage(usual, (("experts.1.up", odd),))
    kept = {scheme: kept_as(scheme, 0) for scheme in storage.schemes}
    formats = replace(NetworkFormats.uniform(PANELS), storage=storage, kept=kept).at("experts")
    message = f"of experts have weights of 2 formats ({told}), .* (weight_dtype bfloat16)"
    with pytest.raises(ConfigError, match=message.replace("(", r"\(").replace(")", r"\)")):
        formats.of_experts(2, PARTS)


def test_runs_of_one_group_fit_its_format() -> None:
    """Three scales of 64 inputs are two groups of 128 and 64 only where two of them are equal."""
    scales = torch.tensor([[1.0, 1.0, 2.0]])
    weight = StoredWeight("w", QuantisedTensor(torch.ones(1, 192, dtype=torch.int8), scales))
    assert weight.grouped(scales, 128).tolist() == [[1, 2]]
    with pytest.raises(CheckpointError, match="3 scales for 192 inputs, which groups of 128"):
        weight.grouped(scales.flip(1), 128)


@pytest.mark.parametrize("bits", [4, 8])
@pytest.mark.parametrize("said", [{}, {"checkpoint_format": "gptq"}, {"format": "gptq"}])
def test_symmetric_zero_points_of_either_format(
    tmp_path: Path, bits: int, said: dict[str, str]
) -> None:
    """Zero points that are all the middle are written by some under the older format's name."""
    codes = Codes.random(16, 24, bits).symmetric()
    config = CASES["gptq-symmetric"].config | {"bits": bits} | said
    for less in (0, 1):
        folder = with_down(tmp_path, gptq(codes, less), 24)
        assert torch.equal(down(opened(folder, config)), codes.floats)
    for stored in (6, 9):
        zeros = gptq(replace(codes, zeros=torch.full_like(codes.zeros, stored)), 0)
        with pytest.raises(CheckpointError, match=f"zero point of {stored + 1}; .*, as sym says"):
            down(opened(with_down(tmp_path, zeros, 24), config))
    mixed = gptq(codes, 0)
    mixed["qzeros"][0] = gptq(codes, 1)["qzeros"][0]
    with pytest.raises(CheckpointError, match=r"qzeros .* as sym says"):
        down(opened(with_down(tmp_path, mixed, 24), config))


def test_where_gptq_says_its_format(tmp_path: Path) -> None:
    codes, config = Codes.random(16, 24), CASES["gptq"].config
    second = {"checkpoint_format": "gptq_v2"}
    for said in (second, {"format": "gptq_v2"}, second | {"format": "gptq_v2"}, {"meta": second}):
        folder = with_down(tmp_path, gptq(codes, 0), 24)
        assert torch.equal(down(opened(folder, config | said)), codes.floats)
    # The algorithm of that name says nothing of zero points.
    folder = with_down(tmp_path, gptq(codes, 1), 24)
    assert torch.equal(down(opened(folder, config | {"meta": {"v2": True}})), codes.floats)
    for wrong, message in (
        (second | {"format": "gptq"}, r"checkpoint_format 'gptq_v2' and .*format 'gptq', by which"),
        ({"format": "marlin"}, "format 'marlin' is not supported; supported: gptq, gptq_v2"),
        ({"is_marlin_format": True}, "is_marlin_format .* is not supported"),
    ):
        with pytest.raises(CheckpointError, match=message):
            opened(with_down(tmp_path, gptq(codes, 1), 24), config | wrong)


def group(targets: list[str], **weights: Any) -> dict[str, Any]:
    said = {"num_bits": 8, "type": "int", "symmetric": True, **weights}
    return {"targets": targets, "weights": said}


@pytest.mark.parametrize("targets", [["Embedding"], ["re:.*embed_tokens"], ["model.embed_tokens"]])
def test_embeddings_in_a_group_of_their_own(tmp_path: Path, targets: list[str]) -> None:
    """Of the same shapes as linear layers, but with zero points and other groups."""
    table, head = Codes.random(20, 16, 8, size=8), Codes.random(20, 16, 4, size=16).symmetric()
    folder = with_down(tmp_path, int_quantized(Codes.random(16, 24, 8).by_output()), 24)
    put(folder, "model.embed_tokens", int_quantized(table))
    put(folder, "lm_head", pack_quantized(head))
    groups = {
        "linear": group(["Linear"], strategy="channel"),
        "table": group(targets, group_size=8, symmetric=False),
        "head": group(["re:lm_head$"], num_bits=4, strategy="group", group_size=128),
    }
    config = {"quant_method": "compressed-tensors", "format": "mixed-precision"}
    checkpoint = opened(folder, config | {"config_groups": groups})
    assert torch.equal(read_tensor(checkpoint.tensors, "embed.weight"), table.floats)
    assert torch.equal(read_tensor(checkpoint.tensors, "head.weight"), head.floats)


@pytest.mark.parametrize("packed", [True, False])
def test_zero_points_that_symmetric_denies(tmp_path: Path, packed: bool) -> None:
    pack, zero = pack_quantized if packed else int_quantized, "weight_zero_point"
    codes = Codes.random(16, 24)
    config = CASES["pack-quantized" if packed else "int-quantized"].config
    config["config_groups"]["group_0"] = group(["Linear"], num_bits=4, group_size=8)
    usual = codes.symmetric()
    held = pack_quantized(usual, zeros=True)[zero] if packed else torch.zeros(16, 3)
    for zeros in (held, torch.zeros(16, 3, dtype=torch.int8)):
        folder = with_down(tmp_path, pack(usual) | {zero: zeros}, 24)
        assert torch.equal(down(opened(folder, config)), usual.floats)
    parts = pack_quantized(codes, zeros=True) if packed else int_quantized(codes)
    with pytest.raises(CheckpointError, match=r"weight_zero_point .* be zero, as symmetric says"):
        down(opened(with_down(tmp_path, parts, 24), config))


ZERO = "weight_zero_point"


def one_group(codes: Codes, whole: bool) -> Codes:
    """One scale and zero point for each output; whole: for all of them."""
    scales, zeros = codes.scales[:, :1], codes.zeros[:, :1]
    if whole:
        scales, zeros = scales[:1].expand(scales.shape), zeros[:1].expand(zeros.shape)
    return replace(codes, scales=scales, zeros=zeros, group=torch.zeros_like(codes.group))


@pytest.mark.parametrize("packed", [True, False])
@pytest.mark.parametrize("strategy", ["channel", "tensor"])
def test_zero_points_of_one_group(tmp_path: Path, packed: bool, strategy: str) -> None:
    """Shaped as the scales are: with or without the dimension of groups, one value for all, which
    is not packed."""
    whole = strategy == "tensor"
    codes = one_group(Codes.random(16, 24), whole)
    config = CASES["pack-quantized" if packed else "int-quantized"].config
    said = {"num_bits": 4, "strategy": strategy, "symmetric": False}
    config["config_groups"]["group_0"] = group(["Linear"], **said)
    parts = pack_quantized(codes, zeros=True) if packed else int_quantized(codes)
    plain = int_quantized(codes)[ZERO]
    shapes: list[tuple[Tensor, Tensor]] = [
        (parts["weight_scale"], parts[ZERO]),
        (parts["weight_scale"].flatten(), parts[ZERO].flatten()),
        (parts["weight_scale"].flatten(), plain.flatten()),
    ]
    if whole:
        shapes += [(codes.scales[0], plain[0]), (codes.scales[0, 0], plain[0, 0])]
    for scales, zeros in shapes:
        changed = parts | {"weight_scale": scales, ZERO: zeros}
        checkpoint = opened(with_down(tmp_path, changed, 24), config)
        assert torch.equal(down(checkpoint), codes.floats)
        assert torch.equal(kept(checkpoint), codes.floats)
    for zeros, message in (
        (plain[:5], r"shape \[5, 1\]; it must have \[16, 1\] or \[16\] or \[1\] or \[\]"),
        (plain + 20, "a zero point of .*; it must be from -8 to 7, as values of 4 bits are"),
        (plain.float(), "dtype F32; it must be I8 or I32"),
    ):
        with pytest.raises(CheckpointError, match=f"{ZERO} .* has {message}"):
            down(opened(with_down(tmp_path, parts | {ZERO: zeros}, 24), config))


@pytest.mark.parametrize("name", ["pack-quantized-zeros", "pack-quantized-8", "pack-quantized-act"])
@pytest.mark.parametrize("k", [100, 97])
def test_inputs_that_do_not_fill_the_last_word(tmp_path: Path, name: str, k: int) -> None:
    case = CASES[name] if name.endswith("8") else in_groups(CASES[name], lambda: 32)
    parts, floats = case.layer(16, k)
    folder = with_down(tmp_path, parts, k)
    checkpoint = opened(folder, case.config)
    assert torch.equal(down(checkpoint), floats)
    assert torch.equal(kept(checkpoint), floats)
    assert checkpoint.config.storage is not None
    full = k + -k % (32 // checkpoint.config.storage.usual.bits)
    for said in ([16, k + 8], [12, k]):
        folder.tensors[f"{DOWN}.weight_shape"] = torch.tensor(said)
        message = rf"weight_shape .* has \[{said[0]}, {said[1]}\]; it must be \[16, {full}\]"
        with pytest.raises(CheckpointError, match=message):
            opened(folder, case.config)


def test_sorted_inputs_whose_order_is_left_out(tmp_path: Path) -> None:
    """Static groups rise, and one group has no order; any other order is lost."""
    config, static = CASES["gptq-act"].config, {"static_groups": True}
    codes = Codes.random(16, 24)
    parts = {role: part for role, part in gptq(codes).items() if role != "g_idx"}
    found = opened(with_down(tmp_path, parts, 24), config | static)
    assert torch.equal(down(found), codes.floats)
    assert found.config.storage is not None and not found.config.storage.usual.permuted
    message = r"g_idx is missing, which desc_act without static_groups asks for"
    with pytest.raises(CheckpointError, match=message):
        opened(with_down(tmp_path, parts, 24), config)
    single = Codes.random(16, 24, size=24)
    parts = {role: part for role, part in gptq(single).items() if role != "g_idx"}
    found = opened(with_down(tmp_path, parts, 24), config | {"group_size": 128})
    assert torch.equal(down(found), single.floats)
    # Where there is one, it counts.
    ordered = Codes.random(16, 24, sorted_inputs=True)
    found = opened(with_down(tmp_path, gptq(ordered), 24), config | static)
    assert torch.equal(down(found), ordered.floats)
    act = CASES["pack-quantized-act"]
    parts, _ = act.layer(16, 24)
    parts.pop("weight_g_idx")
    with pytest.raises(CheckpointError, match="weight_g_idx is missing, which actorder asks for"):
        opened(with_down(tmp_path, parts, 24), act.config)
