"""EAGLE checkpoints of every format: its authors', SpecForge's, ModelOpt's, speculators'."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from checkpoint_converters.capture import Capture
from checkpoint_converters.containers.safetensors_files import (
    LazyTensors,
    TensorHeader,
    weight_files,
)
from checkpoint_converters.containers.tensor_sources import Flattened
from checkpoint_converters.draft_checkpoint import DraftCheckpoint, DraftFolder
from checkpoint_converters.draft_fields import (
    architectures,
    head_rows,
    nested,
    read_decoder,
)
from checkpoint_converters.draft_names import EMBEDDING, FC, HEAD, IGNORED
from checkpoint_converters.draft_vocabulary import borrowed, map_head
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.names import Expected, match
from trtspec.config.model import ModelConfig
from trtspec.errors import ConfigError
from trtspec.speculative.draft_reader import DraftReader
from trtspec.speculative.eagle.checkpoint_kind import (
    MASK_HIDDEN,
    EagleKind,
    detect,
    eagle_config,
    refuse_relatives,
)
from trtspec.speculative.eagle.checkpoint_layers import read_capture
from trtspec.speculative.eagle.checkpoint_names import FC_INPUT_NORM, FC_NORM, expected
from trtspec.speculative.eagle.options import Eagle3DecodingConfig, EagleDecodingConfig
from trtspec.speculative.eagle.shape import EagleConfig

Headers = Mapping[str, TensorHeader]


@dataclass(frozen=True)
class EagleReading:
    """A draft's config, what it reads from the target, and lines about what config.json implies."""

    config: EagleConfig
    capture: Capture
    notes: tuple[str, ...]


def recognises(folder: DraftFolder) -> bool:
    """Whether a folder holds an EAGLE draft, or an EAGLE network that another method extends."""
    refuse_relatives(folder)
    return detect(folder.hf, folder.tensors) is not None


def describe(folder: DraftFolder) -> str | None:
    kind = detect(folder.hf, folder.tensors)
    return kind.describe() if kind else None


def read(folder: DraftFolder, target: ModelConfig, token_map: Path | None) -> DraftCheckpoint:
    kind = detect(folder.hf, folder.tensors)
    assert kind is not None, "it was recognised"
    of = EagleDecodingConfig if kind.version == 1 else Eagle3DecodingConfig
    return read_network(
        folder, target, token_map, kind, of.method, lambda fields: EagleConfig(**fields)
    )


def read_network(
    folder: DraftFolder,
    target: ModelConfig,
    token_map: Path | None,
    kind: EagleKind,
    method: str,
    make: Callable[[dict[str, Any]], EagleConfig],
    more: Callable[[Any], Expected] = lambda config: {},
) -> DraftCheckpoint:
    """Read a network like EAGLE's. ``make``: makes its config from EAGLE's fields. ``more``: its
    tensors besides EAGLE's.

    Raises:
        CheckpointError: it is damaged, quantized, or does not fit the target, or the map does not
            fit; found and expected values are named.
    """
    path, headers = folder.path, dict(folder.tensors)
    if MASK_HIDDEN in headers:  # written with leading dimensions of 1
        headers[MASK_HIDDEN] = Flattened.of(headers[MASK_HIDDEN])
    reading = _read_fields(folder.hf, kind, headers, target, make)
    eagle = reading.config
    what = f"{path} does not fit {kind.name} ({kind.format})"
    resolved = match({**expected(eagle), **more(eagle)}, headers, IGNORED, what)
    tensors, files = resolved.tensors, weight_files(headers)
    notes = [f"{kind.describe()}; reads {_reads(eagle, reading.capture.describe())}"]
    notes += [*reading.capture.notes, *reading.notes]
    head = map_head(path, eagle, headers, tensors, target, token_map)
    notes += [*head.notes, *borrowed(head.config)]
    ignored = tuple(sorted(headers[name].name for name in set(resolved.ignored) - head.used))
    return DraftCheckpoint(
        path,
        method,
        head.config,
        LazyTensors(tensors),
        ignored,
        tuple(notes),
        (*files, *head.files),
        head.doubts,
    )


def _read_fields(
    hf: HfConfig,
    kind: EagleKind,
    headers: Headers,
    target: ModelConfig,
    make: Callable[[dict[str, Any]], EagleConfig],
) -> EagleReading:
    """Resolve a draft whose tensors have common names. Where config.json leaves something open, the
    tensors decide: sizes, number of layers, biases, norms, and whether it has its own head and
    embedding.

    Raises CheckpointError, before a weight is read, if it cannot fit its target; found and expected
    values are named.
    """
    decoder = read_decoder(hf, headers, target)
    rows = head_rows(hf, headers, target.vocab_size)
    if kind.version == 3:
        states = _states(hf, headers, target)
        capture = read_capture(hf, target.num_layers, states)
        flags, notes = _flags(hf, headers), _notes(hf, target)
        _require_width(hf, headers, capture, target)
    else:
        capture = Capture((target.num_layers,), "EAGLE-1")
        flags, notes = _first_flags(hf, headers), ()
        if decoder.hidden_size != target.hidden_size:
            raise hf.refuse(
                f"the draft's hidden size is {decoder.hidden_size}, the target's "
                f"{target.hidden_size}; an EAGLE-1 draft has its target's"
            )
    try:
        shape: dict[str, Any] = {
            "version": kind.version,
            "decoder": decoder,
            "target_hidden_size": target.hidden_size,
            "capture_layers": capture.layers,
            "draft_vocab_size": rows,
            "own_embedding": EMBEDDING in headers,
            "own_head": HEAD in headers,
            **flags,
        }
        config = make(shape)
    except ConfigError as error:
        raise hf.refuse(str(error)) from error
    return EagleReading(config, capture, notes)


def _states(hf: HfConfig, headers: Headers, target: ModelConfig) -> int:
    """How many hidden states fit into the width of ``fc``."""
    said, width = hf.get("target_hidden_size"), target.hidden_size
    if said not in (None, width):
        raise hf.refuse(
            f"the draft is for a target of hidden size {said} (target_hidden_size), the target's "
            f"is {width}"
        )
    fc = headers.get(FC)
    if fc is None or len(fc.shape) != 2:
        raise hf.refuse(f"the checkpoint has no matrix {FC}, which joins the captured states")
    return fc.shape[1] // width


def _require_width(hf: HfConfig, headers: Headers, capture: Capture, target: ModelConfig) -> None:
    states, width, found = len(capture.layers), target.hidden_size, headers[FC].shape[1]
    if found != states * width:
        fits = f"; it fits a hidden size of {found // states}" if found % states == 0 else ""
        raise hf.refuse(
            f"the draft reads {capture.describe()}, {states} x {width} = {states * width} values, "
            f"but {FC} has {found} inputs{fits}"
        )


def _flags(hf: HfConfig, headers: Headers) -> dict[str, Any]:
    eagle, speculators = eagle_config(hf), hf.get("speculators_model_type") is not None

    def said(*keys: str) -> Any:
        values = [source.get(key) for key in keys for source in (eagle, hf.values)]
        return next((value for value in values if value is not None), None)

    before_fc, fc_norm = said("norm_before_fc"), said("fc_norm", "use_aux_norm")
    flags = {
        "fc_bias": "fc.bias" in headers,
        # In ModelOpt's words; its other drafts have no norm there, and the tensors show it.
        "first_input_norm": said("use_input_layernorm_in_first_layer") is not False
        or "layers.0.input_layernorm.weight" in headers,
        "final_norm": said("use_last_layernorm") is not False or "norm.weight" in headers,
        # vLLM serves speculators drafts that do not say it as if they said yes.
        "norm_before_residual": hf.get("norm_before_residual", speculators),
        "norm_before_fc": FC_INPUT_NORM in headers if before_fc is None else before_fc,
        "fc_norm": FC_NORM in headers if fc_norm is None else fc_norm,
        "norm_output": bool(said("norm_output", "return_hidden_post_norm")),
    }
    if flags["norm_before_fc"] and flags["fc_norm"]:
        raise hf.refuse("norm_before_fc and fc_norm exclude each other; both are on")
    return flags


def _first_flags(hf: HfConfig, headers: Headers) -> dict[str, Any]:
    return {
        # Absent, the tensors decide; said, the bias must be there.
        "fc_bias": "fc.bias" in headers or hf.get("bias", False),
        "first_input_norm": "layers.0.input_layernorm.weight" in headers,
        "final_norm": "norm.weight" in headers,
    }


def _notes(hf: HfConfig, target: ModelConfig) -> tuple[str, ...]:
    notes = []
    rope = nested(hf.get("rope_scaling"))
    original = rope.get("original_max_position_embeddings")
    kind = rope.get("rope_type", rope.get("type"))
    if eagle_config(hf) and (kind, rope.get("factor"), original) == ("yarn", 32, 2048):
        notes.append(
            "rope_scaling yarn with factor 32 over 2048 tokens is what ModelOpt's export adds by "
            "default: it is used as config.json says, but was possibly not trained"
        )
    if hf.get("norm_output") and hf.get("speculators_model_type") is None:
        notes.append(
            "norm_output feeds back the normed output; SpecForge before its pull request 879 meant "
            "something else by it, and a draft from there wants norm_output false"
        )
    verifier = nested(nested(hf.get("speculators_config")).get("verifier"))
    if verifier:
        made_for = architectures(HfConfig(hf.folder, verifier, {}))
        differs = bool(made_for) and target.architecture not in made_for
        notes.append(
            f"made for {verifier.get('name_or_path')} ({', '.join(made_for) or 'unnamed'})"
            + (f"; the target is a {target.architecture}" if differs else "")
        )
    return tuple(notes)


def _reads(eagle: EagleConfig, captured: str) -> str:
    return captured if eagle.version == 3 else "the output of the target's final norm"


EAGLE_READER = DraftReader(
    "EAGLE-1, EAGLE-2, EAGLE-3", recognises, describe, read, rank=20, speculators=("eagle3",)
)
