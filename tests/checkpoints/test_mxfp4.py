"""gpt-oss's experts in MXFP4 keep their bits, and are the floats that they stand for."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from checkpoint_converters.checkpoint import load_checkpoint
from trtspec.errors import CheckpointError
from trtspec.formats.stored import read_tensor

from ..e2e.families import family_model

VALUES = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0])
VALUES = torch.cat((VALUES, -VALUES))


def blocked(shape: tuple[int, ...], seed: int) -> tuple[Tensor, Tensor, Tensor]:
    """Random blocks and scales of ``shape [E, N, K]``, and what they stand for, written out."""
    generator = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (*shape[:2], shape[2] // 32, 16), generator=generator)
    scales = torch.randint(120, 126, blocks.shape[:3], generator=generator)
    floats = torch.zeros(shape)
    for e, n, g, i in torch.cartesian_prod(*(torch.arange(size) for size in blocks.shape)).tolist():
        byte, power = int(blocks[e, n, g, i]), 2.0 ** (int(scales[e, n, g]) - 127)
        floats[e, n, 32 * g + 2 * i] = VALUES[byte % 16] * power
        floats[e, n, 32 * g + 2 * i + 1] = VALUES[byte // 16] * power
    return blocks.to(torch.uint8), scales.to(torch.uint8), floats


def write(folder: Path) -> dict[str, Tensor]:
    """A checkpoint as OpenAI's: what its experts stand for, ``[E, K, N]``, by name."""
    sizes = {"intermediate_size": 32, "hidden_size": 64, "num_hidden_layers": 2}
    family_model("gpt_oss", **sizes).save_pretrained(folder)
    file, floats = folder / "model.safetensors", {}
    tensors = load_file(file)
    for name in [n for n in tensors if n.endswith(("gate_up_proj", "down_proj"))]:
        experts, k, n = tensors.pop(name).shape
        blocks, scales, whole = blocked((experts, n, k), len(name))
        tensors |= {f"{name}_blocks": blocks, f"{name}_scales": scales}
        floats[name] = whole.transpose(1, 2)
    save_file(tensors, file)
    config = json.loads((folder / "config.json").read_text())
    config["quantization_config"] = {
        "quant_method": "mxfp4",
        "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"],
    }
    (folder / "config.json").write_text(json.dumps(config))
    return floats


def test_blocks_read_as_their_floats(tmp_path: Path) -> None:
    floats = write(tmp_path)
    found = load_checkpoint(tmp_path)
    stored = found.config.storage
    assert (
        stored is not None
        and {each.name for each in stored.schemes} == {"float4"}
        and not found.ignored
    )
    assert stored.scheme("layers.0.attn.q") is None
    for layer in range(2):
        place, ours = f"model.layers.{layer}.mlp.experts.", f"layers.{layer}.mlp.experts."
        both, down = floats[place + "gate_up_proj"], floats[place + "down_proj"]
        for expert in range(5):
            own = both[expert]
            parts = {"gate": own[:, ::2], "up": own[:, 1::2], "down": down[expert]}
            for part, want in parts.items():
                got = read_tensor(found.tensors, f"{ours}{expert}.{part}.weight")
                assert torch.equal(got, want.t())
                assert torch.equal(got.bfloat16().float(), got)
    name = "model.layers.1.mlp.experts.down_proj"
    tensors = load_file(tmp_path / "model.safetensors")
    for change, message in (
        ({f"{name}_scales": None}, f"{name}_blocks .MXFP4. lacks its {name}_scales"),
        ({f"{name}_blocks": tensors[f"{name}_blocks"][..., :8].contiguous()}, "must be U8, .E, N"),
    ):
        kept = {n: t for n, t in {**tensors, **change}.items() if t is not None}
        save_file(kept, tmp_path / "model.safetensors")
        with pytest.raises(CheckpointError, match=message):
            load_checkpoint(tmp_path)
