"""What a block draft reads from its target, and what its layers see."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from checkpoint_converters.capture import Capture
from checkpoint_converters.containers.safetensors_files import TensorHeader
from checkpoint_converters.draft_names import FC
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import read_window, with_windows
from trtspec.config.model import ModelConfig

NESTED = "dflash_config"
IDS = "target_layer_ids"
_AUX_IDS = "aux_hidden_state_layer_ids"
_SLIDING = "sliding_attention"

Headers = Mapping[str, TensorHeader]


def nested(hf: HfConfig) -> Mapping[str, Any]:
    """The trainers' own settings; empty where there are none."""
    found = hf.get(NESTED, {})
    if not isinstance(found, dict):
        raise hf.refuse(f"{NESTED} is a {type(found).__name__}, not an object")
    return found


def said(hf: HfConfig, key: str) -> Any:
    """The value in config.json, nested or at the top level; None if there is none."""
    inner = nested(hf).get(key)
    return hf.get(key) if inner is None else inner


def whole(hf: HfConfig, name: str, value: Any) -> int:
    """An integer; CheckpointError for anything else."""
    if type(value) is not int:
        raise hf.refuse(f"{name} is {value!r}, not a whole number")
    return value


def read_capture(hf: HfConfig, headers: Headers, target: ModelConfig) -> Capture:
    """The hidden states that it reads. The ids of z-lab, ModelOpt, SpecForge and DeepSpec name
    outputs, -1 the embeddings; those of speculators name inputs, as vLLM's do.

    Raises:
        CheckpointError: they do not exist in this target, or are not as many as ``fc`` joins.
    """
    capture = _capture(hf, target.num_layers)
    _require_width(hf, headers, capture, target)
    return capture


def _capture(hf: HfConfig, num_layers: int) -> Capture:
    if hf.get("speculators_model_type") is not None:
        ids = _ids(hf, _AUX_IDS, hf.require(_AUX_IDS), 0, num_layers)
        layers = tuple(layer - 1 for layer in ids)
        note = f"config.json names layer inputs {_list(ids)}, which are outputs {_list(layers)}"
        return Capture(layers, f"{_AUX_IDS}: inputs, less 1", (note,))
    given = said(hf, IDS)
    if given is None:
        raise hf.refuse(f"{NESTED} does not say {IDS}, the layers of the target that it reads")
    ids = _ids(hf, f"{NESTED}.{IDS}", given, -1, num_layers - 1)
    if ids[-1] < num_layers - 1:
        return Capture(ids, f"{IDS}: outputs")
    # transformers, with which these drafts are trained, has no other output of its last layer.
    note = (
        f"the state of the last layer, {num_layers - 1}, is read behind the target's final norm, "
        "as transformers gives it"
    )
    return Capture((*ids[:-1], num_layers), f"{IDS}: outputs", (note,))


def _ids(hf: HfConfig, key: str, given: Any, low: int, high: int) -> tuple[int, ...]:
    if not isinstance(given, list) or not given or any(type(layer) is not int for layer in given):
        raise hf.refuse(f"{key} is {given!r}, not a list of layers")
    if not low <= min(given) <= max(given) <= high:
        raise hf.refuse(f"{key} {given} names layers outside {low} to {high}, which the target has")
    if sorted(set(given)) != given:
        raise hf.refuse(
            f"{key} {given} does not rise; engines join the states as they are listed or as the "
            "target computes them, which is the same for rising ids only"
        )
    return tuple(given)


def _require_width(hf: HfConfig, headers: Headers, capture: Capture, target: ModelConfig) -> None:
    width_said, width = said(hf, "target_hidden_size"), target.hidden_size
    if width_said not in (None, width):
        raise hf.refuse(
            f"the draft is for a target of hidden size {width_said} (target_hidden_size), the "
            f"target's is {width}"
        )
    fc = headers.get(FC)
    if fc is None or len(fc.shape) != 2:
        raise hf.refuse(f"the checkpoint has no matrix {FC}, which joins the captured states")
    states = len(capture.layers)
    if fc.shape[1] != states * width:
        raise hf.refuse(
            f"the draft reads {capture.describe()}, {states} x {width} = {states * width} values, "
            f"but {FC} has {fc.shape[1]} inputs"
        )


def read_attention(hf: HfConfig, decoder: ModelConfig) -> tuple[ModelConfig, tuple[bool, ...]]:
    """The decoder with its layers' windows, and which layers are causal within a block.

    ``use_swa`` gives every layer a window; otherwise ``layer_types`` say which have one. Unless
    ``causal`` (in JetSpec's words ``causal_head``) is given, layers with a window are causal.
    """
    inside, count = nested(hf), decoder.num_layers
    speculators = hf.get("speculators_model_type") is not None
    inner = hf.require("transformer_layer_config") if speculators else hf.values
    kinds = inner.get("layer_types")
    listed = kinds if isinstance(kinds, list) else ["full_attention"] * count
    if len(listed) != count or set(listed) - {_SLIDING, "full_attention"}:
        raise hf.refuse(
            f"layer_types {listed} are not full_attention or {_SLIDING} for each of {count} layers"
        )
    slides = tuple(kind == _SLIDING for kind in listed)
    causal = slides
    if inside.get("use_swa") and not any(slides):
        slides = (True,) * count
    claims = (hf.get("is_causal"), inside.get("causal"), inside.get("causal_head"))
    known = {bool(claim) for claim in claims if claim is not None}
    if len(known) > 1:
        raise hf.refuse(
            f"is_causal, {NESTED}.causal and {NESTED}.causal_head disagree; remove the wrong one"
        )
    if known:
        causal = (known.pop(),) * count
    elif hf.get("sliding_window_non_causal"):
        causal = (False,) * count
    if not any(slides):
        return _with_windows(decoder, [0] * count), causal
    window = inside.get("swa_window_size", inner.get("sliding_window"))
    if window is None:
        raise hf.refuse(
            "layers with a sliding window, but neither dflash_config.swa_window_size nor "
            "sliding_window says how wide it is"
        )
    width = read_window(hf, whole(hf, "the sliding window", window))
    return _with_windows(decoder, [width if marked else 0 for marked in slides]), causal


def _with_windows(decoder: ModelConfig, windows: Sequence[int]) -> ModelConfig:
    return dataclasses.replace(decoder, layers=with_windows(decoder.layers, windows))


def _list(layers: tuple[int, ...]) -> str:
    return ", ".join(map(str, layers))
