"""PARD-2 checkpoints: a PARD model with a projection of the target's hidden states."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from checkpoint_converters.containers.pickle_files import read_pickle_headers
from checkpoint_converters.containers.safetensors_files import LazyTensors
from checkpoint_converters.containers.tensor_sources import HeldTensor
from checkpoint_converters.draft_checkpoint import DraftCheckpoint, DraftFolder
from checkpoint_converters.hf_config import HfConfig
from trtspec.config.model import ModelConfig
from trtspec.errors import ConfigError
from trtspec.speculative.draft_model import read_language_model
from trtspec.speculative.draft_reader import DraftReader
from trtspec.speculative.parallel.checkpoint_mask import read_mask_token
from trtspec.speculative.parallel.options import Pard2DecodingConfig
from trtspec.speculative.parallel.pard2 import PROJECTION
from trtspec.speculative.parallel.shape import Pard2Config

_WARP = "warp_model.bin"
_WEIGHT, _BIAS = "target_proj.weight", "target_proj.bias"
_LAYERS = "pard2_target_layers"
_SCALES = ("pard2_scale", "pard_scale", "feat_scale")
_USUAL_SCALE = 0.02
"""The default in PARD's own code."""


def is_pard2(folder: DraftFolder) -> bool:
    """Whether anything shows a draft that reads hidden states: as plain PARD it would draft from
    half of its training inputs."""
    hf = folder.hf
    said = hf.get("pard2") or hf.get("spd_type") == "pard2"
    return bool(said) or hf.get(_LAYERS) is not None or (folder.path / _WARP).is_file()


def _describe(folder: DraftFolder) -> str:
    return f"draft: PARD-2, causal language model with mask token {read_mask_token(folder.hf)}"


def _read(folder: DraftFolder, target: ModelConfig, token_map: Path | None) -> DraftCheckpoint:
    hf, file = folder.hf, folder.path / _WARP
    if not file.is_file():
        raise hf.refuse(
            f"a PARD-2 draft without {_WARP}, which projects the target's states for it; download "
            "it with the other files"
        )
    found = read_language_model(folder, target, token_map, _describe(folder))
    layers = _layers(hf, target.num_layers)
    order = sorted(range(len(layers)), key=layers.__getitem__)
    tensors, width = read_pickle_headers(file), len(layers) * target.hidden_size
    expected: dict[str, tuple[int, ...]] = {_WEIGHT: (found.config.hidden_size, width)}
    if hf.get("pard2_proj_bias"):
        expected[_BIAS] = (found.config.hidden_size,)
    shapes = {name: header.shape for name, header in tensors.items()}
    if shapes != expected:
        raise hf.refuse(
            f"{_WARP} holds {_shapes(shapes)}; for the states of {len(layers)} layers of a target "
            f"of hidden size {target.hidden_size} it is {_shapes(expected)}"
        )
    weight = tensors[_WEIGHT]
    # As the target computes them, which is how an engine joins the states.
    columns = weight.read().view(-1, len(layers), target.hidden_size)[:, order].flatten(1)
    own: dict[str, Any] = {f"{PROJECTION}.weight": _held(weight, columns)}
    if _BIAS in tensors:
        own[f"{PROJECTION}.bias"] = tensors[_BIAS]
    try:
        config = Pard2Config(
            decoder=found.config,
            target_hidden_size=target.hidden_size,
            capture_layers=tuple(layers[i] for i in order),
            draft_vocab_size=found.config.draft_vocab_size,
            mask_token=read_mask_token(hf),
            scale=_scale(hf),
            bias=_BIAS in tensors,
        )
    except ConfigError as error:
        raise hf.refuse(str(error)) from error
    note = f"reads outputs of layers {', '.join(map(str, config.capture_layers))} ({_LAYERS})"
    return dataclasses.replace(
        found,
        method=Pard2DecodingConfig.method,
        config=config,
        tensors=LazyTensors({**found.tensors.headers, **own}),
        notes=(*found.notes, note),
        files=(*found.files, file),
    )


def _layers(hf: HfConfig, count: int) -> tuple[int, ...]:
    """Outputs, from indices into transformers' list of hidden states: that begins with the
    embeddings, and its last one is after the final norm."""
    given = hf.get(_LAYERS)
    if not isinstance(given, list) or not given or any(type(i) is not int for i in given):
        raise hf.refuse(f"{_LAYERS} is {given!r}, not a list of places among the target's states")
    if not -count - 1 <= min(given) <= max(given) <= count:
        raise hf.refuse(
            f"{_LAYERS} {given} names states outside {-count - 1} to {count}, which a target of "
            f"{count} layers has"
        )
    layers = [place % (count + 1) - 1 for place in given]
    found = tuple(count if layer == count - 1 else layer for layer in layers)
    if len(set(found)) != len(found):
        raise hf.refuse(f"{_LAYERS} {given} names a state twice")
    return found


def _scale(hf: HfConfig) -> float:
    said = next((hf.get(key) for key in _SCALES if hf.get(key) is not None), _USUAL_SCALE)
    if isinstance(said, bool) or not isinstance(said, (int, float)):
        raise hf.refuse(f"{_SCALES[0]} is {said!r}, not a number")
    return float(said)


def _held(header: Any, tensor: Tensor) -> HeldTensor:
    return HeldTensor(header.name, header.file, header.dtype, tuple(tensor.shape), tensor)


def _shapes(shapes: Mapping[str, tuple[int, ...]]) -> str:
    return ", ".join(f"{name} {list(shape)}" for name, shape in sorted(shapes.items())) or "nothing"


PARD2_READER = DraftReader(
    "PARD-2",
    is_pard2,
    _describe,
    _read,
    rank=12,
    sign="a PARD-2 draft has pard2_target_layers in its config.json, and warp_model.bin",
)
