"""The decoder and head of a draft, from its config.json and tensors."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from checkpoint_converters.containers.safetensors_files import DTYPES, TensorHeader
from checkpoint_converters.draft_names import D2T, FC, GATE, HEAD, T2D, count_layers
from checkpoint_converters.families.registry import families
from checkpoint_converters.hf_config import HfConfig, read_dtype
from checkpoint_converters.hf_decoder import (
    model_fields,
    read_layer,
    read_window,
    repeat_layer,
    with_windows,
)
from trtspec.config.embedding_spec import HeadSpec
from trtspec.config.model import ModelConfig
from trtspec.errors import ConfigError

_DECODER = "transformer_layer_config"
_QUANTISED = "quantization_config"
_ATTENTION = "layers.0.self_attn."

Headers = Mapping[str, TensorHeader]


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
        if given.get(_QUANTISED) is not None:
            raise hf.refuse(
                f"{_DECODER} says {_QUANTISED}: of quantised drafts config.json itself must say it"
            )
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
    try:
        layer = read_layer(draft, default_kv_heads=None)
        norm = layer.norm if f"{_ATTENTION}q_norm.weight" in headers else None
        layer = layer.with_mixer(
            bias=f"{_ATTENTION}q_proj.bias" in headers,
            output_bias=f"{_ATTENTION}o_proj.bias" in headers,
            qk_norm=norm,
        ).with_ffn(bias="layers.0.mlp.gate_proj.bias" in headers)
        length = draft.require("max_position_embeddings")  # as it was trained: yarn adds nothing
        layers = repeat_layer(draft, layer)
        fields = model_fields(draft, layers, max_position_embeddings=length)
    except ConfigError as error:
        raise hf.refuse(str(error)) from error
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
    """Rows of the draft's head; fewer than the vocabulary require ``d2t`` and a separate head."""
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


def architectures(hf: HfConfig) -> list[str]:
    """The names in config.json, possibly none."""
    names = hf.get("architectures")
    return [str(name) for name in names] if isinstance(names, list) else []


def nested(value: Any) -> Mapping[str, Any]:
    """An object in config.json; empty if absent."""
    return value if isinstance(value, dict) else {}
