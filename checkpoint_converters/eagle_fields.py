"""config.json and tensor headers of an EAGLE draft -> EagleConfig, checked against its target."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from checkpoint_converters.capture_layers import Capture, read_capture
from checkpoint_converters.containers.safetensors_files import DTYPES, TensorHeader, read_json
from checkpoint_converters.draft_kind import EagleKind, architectures, eagle_config
from checkpoint_converters.draft_names import EMBEDDING, FC, HEAD
from checkpoint_converters.eagle_names import (
    D2T,
    FC_INPUT_NORM,
    FC_NORM,
    GATE,
    T2D,
    count_layers,
)
from checkpoint_converters.families.registry import families
from checkpoint_converters.hf_config import HfConfig, read_dtype
from checkpoint_converters.hf_decoder import (
    model_fields,
    read_layer,
    read_window,
    repeat_layer,
    with_windows,
)
from checkpoint_converters.mask_token import read_mask_token
from checkpoint_converters.quantised.modelopt import HF_QUANTIZATION
from trtspec.config.embedding_spec import HeadSpec
from trtspec.config.layer import Layers
from trtspec.config.model import ModelConfig
from trtspec.errors import ConfigError
from trtspec.speculative.eagle.shape import EagleConfig
from trtspec.speculative.parallel.shape import PEagleConfig

_DECODER = "transformer_layer_config"
_ATTENTION = "layers.0.self_attn."

Headers = Mapping[str, TensorHeader]


@dataclass(frozen=True)
class EagleReading:
    """A draft's config, what of the target it reads, and lines about what config.json implies."""

    config: EagleConfig
    capture: Capture
    notes: tuple[str, ...]


def read_eagle(
    hf: HfConfig, kind: EagleKind, headers: Headers, target: ModelConfig
) -> EagleReading:
    """Resolve a draft whose tensors have common names. Where config.json leaves something open the
    tensors decide: sizes, number of layers, biases, norms, which of head and embedding it owns.

    Raises CheckpointError, before a weight is read, where it cannot fit its target; what was found
    and what was expected are named.
    """
    refuse_quantized(hf)
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
        config = (
            PEagleConfig(mask_token=read_mask_token(hf), **shape)
            if kind.parallel
            else EagleConfig(**shape)
        )
    except ConfigError as error:
        raise hf.refuse(str(error)) from error
    return EagleReading(config, capture, notes)


def read_decoder(hf: HfConfig, headers: Headers, target: ModelConfig) -> ModelConfig:
    """The draft's layers. ``max_position_embeddings`` is the length it was trained with."""
    given = hf.values
    if hf.get("speculators_model_type") is not None:
        given = hf.require(_DECODER)
        if not isinstance(given, dict):
            raise hf.refuse(f"{_DECODER} is a {type(given).__name__}, not an object")
        known = {f.model_type: f.draft_defaults for f in families() if f.draft_defaults is not None}
        kind = given.get("model_type", next(iter(known)))
        if kind not in list(known):  # which may be anything
            names = " and ".join(map(repr, known))
            raise hf.refuse(f"{_DECODER} is of model_type {kind!r}; supported: {names}")
        given = {**known[kind], **given}
    num_layers = count_layers(headers)
    open_sizes = {
        "hidden_size": _rows(headers, FC),
        "intermediate_size": _rows(headers, GATE),
        "num_hidden_layers": num_layers,
        "vocab_size": target.vocab_size,
        "max_position_embeddings": target.max_position_embeddings,
    }
    said = {key: value for key, value in given.items() if value is not None}
    draft = HfConfig(hf.folder, {**open_sizes, **said}, {})
    refuse_quantized(draft)  # what the decoder's own part says
    try:
        layer = read_layer(draft, default_kv_heads=None)
        norm = layer.norm if f"{_ATTENTION}q_norm.weight" in headers else None
        layer = layer.with_mixer(
            bias=f"{_ATTENTION}q_proj.bias" in headers,
            output_bias=f"{_ATTENTION}o_proj.bias" in headers,
            qk_norm=norm,
        ).with_ffn(bias="layers.0.mlp.gate_proj.bias" in headers)
        fields = model_fields(draft, repeat_layer(draft, layer))
    except ConfigError as error:
        raise hf.refuse(str(error)) from error
    layers: Layers = fields["layers"]
    if len(layers) != num_layers:
        raise hf.refuse(
            f"num_hidden_layers is {len(layers)}, the tensors are of {num_layers} layers"
        )
    if fields["vocab_size"] != target.vocab_size:
        raise hf.refuse(
            f"the draft is for a vocabulary of {fields['vocab_size']} tokens, the target has "
            f"{target.vocab_size}"
        )
    dtype = read_dtype(hf) or read_dtype(draft)
    if dtype is None:
        dtype = DTYPES.get(headers[FC].dtype, "float32") if FC in headers else target.dtype
    windows = _windows(hf, draft, num_layers)
    try:
        own = {"head": HeadSpec(), "layers": with_windows(layers, windows)}
        return ModelConfig(
            architecture=next(iter(architectures(hf)), "EagleForCausalLM"),
            dtype=dtype,
            **fields | own,
        )
    except ConfigError as error:
        raise hf.refuse(str(error)) from error


def _rows(headers: Headers, name: str) -> int | None:
    header = headers.get(name)
    return header.shape[0] if header and header.shape else None


def _windows(hf: HfConfig, draft: HfConfig, num_layers: int) -> tuple[int, ...]:
    """Only speculators trains drafts with windows; elsewhere the keys are left over from a target's
    config. ``layer_types`` says which layers have one."""
    kinds = draft.get("layer_types")
    listed = kinds if isinstance(kinds, list) else []
    marks = tuple(kind == "sliding_attention" for kind in listed[:num_layers])
    if hf.get("speculators_model_type") is None or not any(marks):
        return (0,) * num_layers
    if len(marks) != num_layers:
        raise hf.refuse(f"layer_types names {len(marks)} layers, the model has {num_layers}")
    window = read_window(hf, draft.require("sliding_window"))
    return tuple(window if slides else 0 for slides in marks)


def head_rows(hf: HfConfig, headers: Headers, vocab: int) -> int:
    """Rows of the draft's head; fewer than the vocabulary need ``d2t`` and a head of its own."""
    d2t, head = headers.get(D2T), headers.get(HEAD)
    said = hf.get("draft_vocab_size")
    if said is not None and type(said) is not int:
        raise hf.refuse(f"draft_vocab_size is {said!r}, not a number of tokens")
    sizes = {"config.json": said} | {n: _rows(headers, n) for n in (D2T, HEAD)}
    known = [rows for rows in sizes.values() if rows is not None]
    rows = known[0] if known else vocab
    for name, other in sizes.items():
        if other not in (None, rows):
            raise hf.refuse(f"the draft vocabulary has {rows} tokens, but {name} is for {other}")
    if rows < vocab and (d2t is None or head is None):
        lacks = "d2t, the map to the target's ids" if d2t is None else "lm_head.weight"
        raise hf.refuse(
            f"the draft's head covers {rows} of the target's {vocab} tokens, but the checkpoint "
            f"lacks {lacks}"
        )
    t2d = headers.get(T2D)
    if t2d is not None and t2d.shape != (vocab,):
        raise hf.refuse(f"t2d is {list(t2d.shape)}, the target has {vocab} tokens")
    return rows


def _states(hf: HfConfig, headers: Headers, target: ModelConfig) -> int:
    """How many states the width of ``fc`` makes room for."""
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
    rope = _object(hf.get("rope_scaling"))
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
    verifier = _object(_object(hf.get("speculators_config")).get("verifier"))
    if verifier:
        made_for = architectures(HfConfig(hf.folder, verifier, {}))
        differs = bool(made_for) and target.architecture not in made_for
        notes.append(
            f"made for {verifier.get('name_or_path')} ({', '.join(made_for) or 'unnamed'})"
            + (f"; the target is a {target.architecture}" if differs else "")
        )
    return tuple(notes)


def _object(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def refuse_quantized(hf: HfConfig) -> None:
    """Quantized drafts by either file."""
    method = hf.get("quantization_config")
    if method is not None:
        name = method.get("quant_method") if isinstance(method, dict) else None
        raise hf.refuse(
            f"quantization_config {name or method!r}: a quantized draft is not supported; "
            f"supported: {', '.join(DTYPES.values())}"
        )
    file = hf.folder / HF_QUANTIZATION
    if file.is_file():
        algorithm = _object(read_json(file).get("quantization")).get("quant_algo")
        raise hf.refuse(
            f"{file.name} says quant_algo {algorithm}: a quantized draft is not supported; "
            f"supported: {', '.join(DTYPES.values())}"
        )
