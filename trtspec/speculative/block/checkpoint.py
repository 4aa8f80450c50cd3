"""DFlash drafts: z-lab's format, which ModelOpt and SpecForge write as well, and speculators'."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint_converters.capture import Capture
from checkpoint_converters.containers.safetensors_files import (
    LazyTensors,
    TensorHeader,
    weight_files,
)
from checkpoint_converters.draft_checkpoint import DraftCheckpoint, DraftFolder
from checkpoint_converters.draft_fields import (
    architectures,
    head_rows,
    read_decoder,
)
from checkpoint_converters.draft_names import D2T, EMBEDDING, FC, HEAD, IGNORED, layer_names
from checkpoint_converters.draft_vocabulary import TOKEN_MAP, borrowed, read_map
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.hf_decoder import read_window, with_windows
from checkpoint_converters.names import Expected, match
from trtspec.config.model import ModelConfig
from trtspec.errors import ConfigError
from trtspec.speculative.block.options import DFlashDecodingConfig
from trtspec.speculative.block.shape import DFlashConfig
from trtspec.speculative.draft_reader import DraftReader

SPECULATORS = "dflash"
_NESTED = "dflash_config"
_IDS = "target_layer_ids"
_AUX_IDS = "aux_hidden_state_layer_ids"
_SLIDING = "sliding_attention"
# What a nested key may say; of the others the value is read.
_SCALE = "input_embedding_scale"
_CAP = "final_logit_softcapping"
_READ = {"mask_token_id", _IDS, "causal", "sample_from_anchor", "use_swa", "swa_window_size"}
_READ |= {_SCALE, _CAP}
_FIXED: Mapping[str, tuple[Any, ...]] = {
    "projector_type": (None, "dflash"),
    "attention_sink_bias": (None, False),
    "use_aux_hidden_state": (None, True),
}
_FIXED_OUTSIDE = ("projector_type", "attention_sink_bias", "add_swa_attention_sink_bias")

Headers = Mapping[str, TensorHeader]


@dataclass(frozen=True)
class DFlashReading:
    """A network's config, what of the target it reads, and lines to print, the first of them the
    decision what the folder holds."""

    config: DFlashConfig
    capture: Capture
    notes: tuple[str, ...]


def is_dflash(hf: HfConfig) -> bool:
    """Whether config.json shows a DFlash draft or a relative of it."""
    if hf.get("speculators_model_type") is not None:
        return bool(hf.get("speculators_model_type") == SPECULATORS)
    named = re.search("DFlash|Domino|DSpark", " ".join(architectures(hf)))
    return bool(named) or hf.get(_NESTED) is not None


def describe_dflash(hf: HfConfig) -> str:
    """The decision: ``draft: DFlash (dflash_config, blocks of 16), DFlash checkpoint``.

    Raises CheckpointError for what DFlash's relatives add, by name.
    """
    _refuse_relatives(hf)
    if hf.get("speculators_model_type") is not None:
        evidence, source = "speculators_model_type", "speculators export"
    else:
        evidence = _NESTED if hf.get(_NESTED) is not None else "architectures"
        source = "DFlash checkpoint"
    return f"draft: DFlash ({evidence}, blocks of {hf.get('block_size')}), {source}"


def read_dflash(hf: HfConfig, headers: Headers, target: ModelConfig) -> DFlashReading:
    """Resolve a draft whose tensors have common names, against its target.

    Raises CheckpointError, before a weight is read, for what is not run, and where it cannot fit;
    what was found and what was expected are named.
    """
    decision = describe_dflash(hf)
    made_for = hf.get("num_target_layers")
    if made_for not in (None, target.num_layers):
        raise hf.refuse(
            f"the draft is for a target of {made_for} layers (num_target_layers), the target has "
            f"{target.num_layers}"
        )
    capture = _capture(hf, target.num_layers)
    _require_width(hf, headers, capture, target)
    decoder, causal = _attention(hf, read_decoder(hf, headers, target))
    nested = _nested(hf)
    anchor = nested.get("sample_from_anchor") or hf.get("shift_label")
    scale, said = _embedding_scale(hf, nested, EMBEDDING in headers, target)
    cap = nested.get(_CAP, hf.get(_CAP))
    try:
        config = DFlashConfig(
            decoder=decoder,
            target_hidden_size=target.hidden_size,
            capture_layers=capture.layers,
            block_size=_number(hf, "block_size", hf.require("block_size")),
            mask_token_id=_mask(hf, nested),
            causal_layers=causal,
            draft_vocab_size=head_rows(hf, headers, target.vocab_size),
            anchor_predicts=bool(anchor),
            own_embedding=EMBEDDING in headers,
            own_head=HEAD in headers,
            embedding_scale=scale,
            soft_cap=None if cap is None else _real(hf, _CAP, cap),
        )
    except ConfigError as error:
        raise hf.refuse(str(error)) from error
    notes = (f"{decision}; reads {capture.describe()}", *capture.notes, *said)
    if anchor:
        notes += ("the root's own row guesses the first token (sample_from_anchor)",)
    return DFlashReading(config, capture, notes)


def expected_dflash(config: DFlashConfig) -> Expected:
    """(internal name, shape) of every weight of a draft, by common name; no vocabulary tables."""
    return {source: (target, shape) for source, target, shape in _all(config)}


def _all(config: DFlashConfig) -> Iterator[tuple[str, str, tuple[int, ...]]]:
    hidden = config.decoder.hidden_size
    yield FC, FC, (hidden, config.hidden_in)
    yield "hidden_norm.weight", "hidden_norm.weight", (hidden,)
    for layer in range(config.decoder.num_layers):
        yield from layer_names(config.decoder, layer)
    yield "norm.weight", "norm.weight", (hidden,)
    if config.own_head:
        yield HEAD, "head.weight", (config.draft_vocab_size, hidden)
    if config.own_embedding:
        yield EMBEDDING, "embed.weight", (config.decoder.vocab_size, hidden)


def _nested(hf: HfConfig) -> Mapping[str, Any]:
    nested = hf.get(_NESTED, {})
    if not isinstance(nested, dict):
        raise hf.refuse(f"{_NESTED} is a {type(nested).__name__}, not an object")
    return nested


def _refuse_relatives(hf: HfConfig) -> None:
    """What Domino, DSpark and DFlash2 add, and what nobody here knows, is refused by name."""
    named = " ".join(architectures(hf))
    found = re.search("Domino|DSpark|DFlash2", named)
    if found:
        raise hf.refuse(f"a {found.group()} draft ({named}): this version runs DFlash without it")
    nested = _nested(hf)
    unknown = sorted(set(nested) - _READ - set(_FIXED) - {"block_size"})
    if unknown:
        raise hf.refuse(
            f"{_NESTED} says {', '.join(unknown)}, which this version does not know; it knows "
            f"{', '.join(sorted(_READ | set(_FIXED)))}"
        )
    said = {f"{_NESTED}.{key}": (key, nested.get(key)) for key in _FIXED}
    said |= {key: (key, hf.get(key)) for key in _FIXED_OUTSIDE}
    for name, (key, value) in said.items():
        allowed = _FIXED.get(key, (None, False))
        if value not in allowed:
            raise hf.refuse(f"{name} is {value!r}: this version runs DFlash drafts without it")


def _capture(hf: HfConfig, num_layers: int) -> Capture:
    """The states that it reads. z-lab's ids, ModelOpt's and SpecForge's name outputs; those of
    speculators name inputs, as vLLM's do."""
    if hf.get("speculators_model_type") is not None:
        ids = _ids(hf, _AUX_IDS, hf.require(_AUX_IDS), 0, num_layers)
        layers = tuple(layer - 1 for layer in ids)
        note = f"config.json names layer inputs {_list(ids)}, which are outputs {_list(layers)}"
        return Capture(layers, f"{_AUX_IDS}: inputs, less 1", (note,))
    given = _nested(hf).get(_IDS, hf.get(_IDS))
    if given is None:
        raise hf.refuse(f"{_NESTED} does not say {_IDS}, the layers of the target that it reads")
    ids = _ids(hf, f"{_NESTED}.{_IDS}", given, 0, num_layers - 1)
    if ids[-1] < num_layers - 1:
        return Capture(ids, f"{_IDS}: outputs")
    # transformers, with which these drafts are trained, has no other output of its last layer.
    note = (
        f"the state of the last layer, {num_layers - 1}, is read behind the target's final norm, "
        "as transformers gives it"
    )
    return Capture((*ids[:-1], num_layers), f"{_IDS}: outputs", (note,))


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
    said, width = hf.get("target_hidden_size"), target.hidden_size
    if said not in (None, width):
        raise hf.refuse(
            f"the draft is for a target of hidden size {said} (target_hidden_size), the target's "
            f"is {width}"
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


def _attention(hf: HfConfig, decoder: ModelConfig) -> tuple[ModelConfig, tuple[bool, ...]]:
    """The decoder with the windows of its layers, and which of these are causal inside a block.

    ``use_swa`` gives every layer a window, else ``layer_types`` say which have one; where nothing
    says ``causal``, those with a window are.
    """
    nested, count = _nested(hf), decoder.num_layers
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
    if nested.get("use_swa") and not any(slides):
        slides = (True,) * count
    said = hf.get("is_causal", nested.get("causal"))
    if said is not None:
        causal = (bool(said),) * count
    elif hf.get("sliding_window_non_causal"):
        causal = (False,) * count
    if not any(slides):
        return _with_windows(decoder, [0] * count), causal
    window = nested.get("swa_window_size", inner.get("sliding_window"))
    if window is None:
        raise hf.refuse(
            "layers with a sliding window, but neither dflash_config.swa_window_size nor "
            "sliding_window says how wide it is"
        )
    width = read_window(hf, _number(hf, "the sliding window", window))
    return _with_windows(decoder, [width if marked else 0 for marked in slides]), causal


def _with_windows(decoder: ModelConfig, windows: Sequence[int]) -> ModelConfig:
    return dataclasses.replace(decoder, layers=with_windows(decoder.layers, windows))


def _mask(hf: HfConfig, nested: Mapping[str, Any]) -> int:
    given = nested.get("mask_token_id", hf.get("mask_token_id"))
    if given is None:
        raise hf.refuse(f"{_NESTED} does not say mask_token_id, the token of an empty slot")
    return _number(hf, "mask_token_id", given)


def _embedding_scale(
    hf: HfConfig, nested: Mapping[str, Any], own: bool, target: ModelConfig
) -> tuple[float, tuple[str, ...]]:
    """What rows of the embedding are multiplied with, and lines to print.

    z-lab's code and ModelOpt's online training call the target's embedding module: where that one
    scales its rows (Gemma's), the draft's are scaled. ``input_embedding_scale`` comes on top.
    speculators trains on the stored rows; so do SpecForge and ModelOpt's offline mode, whose heads
    look like the others: one for such a target says 1 / the target's scale there.
    """
    factor = _real(hf, f"{_NESTED}.{_SCALE}", nested.get(_SCALE, 1.0))
    stored = own or hf.get("speculators_model_type") is not None
    if stored or not target.embedding.scales_borrowed or target.embedding.scale == 1:
        return factor, ()
    scale = target.embedding.scale * factor
    note = (
        f"the target's embedding rows are multiplied by {scale:g}, as its embedding gives them; a "
        f"head trained on its stored rows says {_NESTED}.{_SCALE} {1 / target.embedding.scale:g}"
    )
    return scale, (note,)


def _real(hf: HfConfig, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise hf.refuse(f"{name} is {value!r}, not a number")
    return float(value)


def _number(hf: HfConfig, name: str, value: Any) -> int:
    if type(value) is not int:
        raise hf.refuse(f"{name} is {value!r}, not a whole number")
    return value


def _list(layers: tuple[int, ...]) -> str:
    return ", ".join(map(str, layers))


def _read(folder: DraftFolder, target: ModelConfig, token_map: Path | None) -> DraftCheckpoint:
    folder.refuse_token_map("a DFlash draft", token_map)
    path, headers = folder.path, folder.tensors
    reading = read_dflash(folder.hf, headers, target)
    config = reading.config
    resolved = match(expected_dflash(config), headers, IGNORED, f"{path} does not fit DFlash")
    tensors = resolved.tensors
    mapped, doubts = read_map(path, config, headers, tensors, target)
    notes = [*reading.notes, *mapped, *borrowed(config)]
    used = {D2T} if TOKEN_MAP in tensors else set()
    ignored = tuple(sorted(headers[name].name for name in set(resolved.ignored) - used))
    files = tuple(weight_files(headers))
    method = DFlashDecodingConfig.method
    return DraftCheckpoint(
        path, method, config, LazyTensors(tensors), ignored, tuple(notes), files, doubts
    )


DFLASH_READER = DraftReader(
    "DFlash",
    lambda folder: is_dflash(folder.hf),
    lambda folder: describe_dflash(folder.hf),
    _read,
    rank=40,
    speculators=(SPECULATORS,),
)
