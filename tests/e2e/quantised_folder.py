"""A checkpoint's folder with most of its layers quantised by a scheme, and the same in floats."""

from __future__ import annotations

import json
import shutil
from collections.abc import Collection
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..checkpoints.quantised_layers import Case
from ..checkpoints.small_float_layers import FloatCase

LEFT_OUT = ("layers.0.mlp.up_proj", "layers.1.self_attn.v_proj", "lm_head", "embed_tokens")
"""Parts of fused layers among them."""
IN_WORD = 8  # numbers of four bits


def quantised(
    source: Path,
    case: Case | FloatCase,
    root: Path,
    left_out: Collection[str] = LEFT_OUT,
    rounds: bool = False,
) -> tuple[Path, Path]:
    """Copies of ``source``, whose ``*.weight`` matrices are random ones of the scheme, or with
    ``rounds`` its own rounded, but for those ``left_out``, by the ends of their layers' names, and
    those that words do not fit: quantised, and in float32."""
    (weights,) = source.glob("*.safetensors")
    multiple = case.multiple if isinstance(case, FloatCase) else IN_WORD
    packed: dict[str, Tensor] = {}
    floats: dict[str, Tensor] = {}
    for name, tensor in load_file(weights).items():
        layer = name.removesuffix(".weight")
        fits = tensor.dim() == 2 and tensor.shape[1] % multiple == 0
        if layer == name or not fits or layer.endswith(tuple(left_out)):
            packed[name] = floats[name] = tensor
            continue
        parts, weight = case.layer(*tensor.shape)
        if rounds:
            assert isinstance(case, Case)
            parts, weight = case.rounded(tensor)
        # Of the size that the layer had, so that a network's outputs stay of their size.
        floats[name] = weight
        packed |= {f"{layer}.{role}": part.contiguous() for role, part in parts.items()}
    folders = root / "quantised", root / "floats"
    for folder, tensors in zip(folders, (packed, floats), strict=True):
        shutil.copytree(source, folder)
        save_file(tensors, folder / weights.name)
    file = folders[0] / "config.json"
    said = json.loads(file.read_text()) | {"quantization_config": case.config}
    file.write_text(json.dumps(said))
    assert torch.float32 in {tensor.dtype for tensor in floats.values()}
    return folders
