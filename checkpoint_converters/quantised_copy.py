"""Copies a checkpoint's folder with some of its layers in 4 bits, in NVIDIA ModelOpt's layout."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors.torch import save_file
from torch import Tensor

from checkpoint_converters.checkpoint import Checkpoint
from checkpoint_converters.containers.gguf_file import find_gguf
from checkpoint_converters.containers.safetensors_files import (
    SINGLE,
    TensorHeader,
    read_headers,
    read_json,
)
from checkpoint_converters.containers.tensor_sources import RowRange
from checkpoint_converters.hf_config import CONFIG, GENERATION_CONFIG
from checkpoint_converters.quantised.modelopt import FOUR_BITS, METHOD, four_bit_layer
from trtspec.errors import ConfigError

_WEIGHT = ".weight"
_KEPT_FLOATS = "keep its weights in floats, or round them with --quantize rtn"


@dataclass(frozen=True)
class QuantisedLayer:
    """values ``[N, K] i8`` from -8 to 7, scales ``[N, G]``; input_scales ``[K]`` or None."""

    values: Tensor
    scales: Tensor
    input_scales: Tensor | None = None


def require_copyable(checkpoint: Checkpoint) -> None:
    """Check that `write_quantised` can copy a checkpoint.

    Raises:
        ConfigError: its weights are already quantised, or it is not a language model's folder with
            separate tensors for the layers.
    """
    path = checkpoint.path
    if find_gguf(path) is not None:
        raise ConfigError(
            f"{path} is a GGUF file; quantised are folders with safetensors: give the checkpoint "
            f"that it was made from, or {_KEPT_FLOATS}"
        )
    if checkpoint.config.storage is not None:
        raise ConfigError(
            f"the weights of {path} are quantised already ({checkpoint.config.storage.name}), and "
            "are not quantised again; leave --quantize out to keep them, or give the checkpoint of "
            "floats"
        )
    if "text_config" in read_json(path / CONFIG):
        raise ConfigError(
            f"{path} holds more than a language model (text_config in its {CONFIG}); {_KEPT_FLOATS}"
        )


def write_quantised(
    checkpoint: Checkpoint,
    layers: Mapping[str, QuantisedLayer],
    floats: Mapping[str, Tensor],
    folder: Path,
) -> None:
    """Write config and weights of a checkpoint into an empty folder.

    Args:
        layers: replacements of linear layers, by their internal names without ``.weight``; all or
            none of the parts of a fused tensor.
        floats: replacements of other tensors, by internal names.

    Raises:
        ConfigError: see `require_copyable`; or a layer with an odd number of outputs, or one that
            the file stores in another order.
        CheckpointError: a tensor cannot be read.
    """
    require_copyable(checkpoint)
    source = checkpoint.path
    tensors = {name: header.read() for name, header in read_headers(source).items()}
    headers = checkpoint.tensors.headers
    parts: dict[str, dict[int, QuantisedLayer]] = {}
    for name, layer in layers.items():
        theirs, first = _place(headers[name + _WEIGHT])
        parts.setdefault(theirs, {})[first] = layer
    for theirs, found in parts.items():
        layer = _joined(found[first] for first in sorted(found))
        if len(layer.values) != len(tensors[theirs]) or len(layer.values) % 2:
            raise ConfigError(
                f"{source}: {len(layer.values)} outputs of {theirs}, which has "
                f"{len(tensors[theirs])}, cannot be packed in pairs; {_KEPT_FLOATS}"
            )
        del tensors[theirs]
        packed = four_bit_layer(layer.values, layer.scales, layer.input_scales)
        tensors |= {f"{theirs.removesuffix('weight')}{role}": part for role, part in packed.items()}
    for name, values in floats.items():
        theirs, first = _place(headers[name])
        whole = tensors[theirs]
        whole[first : first + len(values)] = values.to(whole.dtype)
    # Fused layers may share factors, which a file holds once for each.
    own = {n: t.clone(memory_format=torch.contiguous_format) for n, t in tensors.items()}
    save_file(own, folder / SINGLE, metadata={"format": "pt"})
    sizes = {layer.values.shape[1] // layer.scales.shape[1] for layer in layers.values()}
    said = read_json(source / CONFIG) | {
        "quantization_config": {
            "quant_method": METHOD,
            "quant_algo": FOUR_BITS,
            "producer": {"name": "trtspec"},
            **({"group_size": sizes.pop()} if len(sizes) == 1 else {}),
        }
    }
    (folder / CONFIG).write_text(json.dumps(said, indent=2) + "\n")
    if (source / GENERATION_CONFIG).is_file():
        shutil.copyfile(source / GENERATION_CONFIG, folder / GENERATION_CONFIG)


def _place(header: TensorHeader) -> tuple[str, int]:
    """The tensor of the file that holds a tensor, and its first row there."""
    first, held = 0, header
    while isinstance(held, RowRange):
        first, held = first + held.first, held.whole
    if type(held) is not TensorHeader:
        raise ConfigError(
            f"{header.file}: {header.name} is read in another order than it is stored in; "
            f"{_KEPT_FLOATS}"
        )
    return held.name, first


def _joined(parts: Iterable[QuantisedLayer]) -> QuantisedLayer:
    """Layers with the same inputs, concatenated along the outputs."""
    found = list(parts)
    values, scales = (torch.cat([getattr(p, n) for p in found]) for n in ("values", "scales"))
    return QuantisedLayer(values, scales, found[0].input_scales)
