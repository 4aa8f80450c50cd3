"""Assistants as transformers saves them: a decoder whose layers all share K and V."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from checkpoint_converters.containers.safetensors_files import (
    LazyTensors,
    TensorHeader,
    weight_files,
)
from checkpoint_converters.draft_checkpoint import DraftCheckpoint, DraftFolder
from checkpoint_converters.draft_fields import architectures
from checkpoint_converters.families.family import Family
from checkpoint_converters.families.registry import families
from checkpoint_converters.hf_config import HfConfig, read_dtype
from checkpoint_converters.names import Expected, match
from checkpoint_converters.token_map import require_order
from trtspec.config.layer_tensors import layer_tensors
from trtspec.config.mixers.attention import AttentionSpec
from trtspec.config.model import ModelConfig
from trtspec.errors import CheckpointError, ConfigError
from trtspec.speculative.assistant.network import ORDER
from trtspec.speculative.assistant.options import AssistantDecodingConfig
from trtspec.speculative.assistant.shape import AssistantConfig
from trtspec.speculative.draft_reader import DraftReader

_CLASS = re.compile(r".*AssistantForCausalLM")
_TEXT = "text_config"
_ORDER = "masked_embedding.token_ordering"
_HEAD, _EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"

Headers = Mapping[str, TensorHeader]


def recognises(folder: DraftFolder) -> bool:
    """Whether config.json names an assistant's class."""
    return any(_CLASS.fullmatch(name) for name in architectures(folder.hf))


def describe(folder: DraftFolder) -> str:
    """The decision: ``draft: assistant (2 layers of width 256)``."""
    text = _text(folder.hf)
    return (
        f"draft: assistant ({text.get('num_hidden_layers')} layers of width "
        f"{text.get('hidden_size')})"
    )


def _text(hf: HfConfig) -> HfConfig:
    """The decoder's config, as if its layers had K and V: the target's have that shape."""
    own = hf.require(_TEXT)
    if not isinstance(own, dict):
        raise hf.refuse(f"{_TEXT} is a {type(own).__name__}, not an object")
    return HfConfig(hf.folder, {**own, "num_kv_shared_layers": 0}, {})


def _body(hf: HfConfig, headers: Headers) -> tuple[Family, ModelConfig]:
    text = _text(hf)
    known = {family.model_type: family for family in families()}
    kind = text.require("model_type")
    if kind not in list(known):  # which may be anything
        raise hf.refuse(f"{_TEXT} is of model_type {kind!r}; supported: {', '.join(known)}")
    family, dtype = known[kind], read_dtype(hf) or read_dtype(text) or "float32"
    try:
        fields = family.fields_of(text)
        return family, ModelConfig(architecture=architectures(hf)[0], dtype=dtype, **fields)
    except ConfigError as error:
        raise hf.refuse(str(error)) from error


def _sources(hf: HfConfig, body: ModelConfig, target: ModelConfig) -> tuple[int, ...]:
    """For each layer, the target's last layer of its kind (with or without a window) that has K and
    V."""
    found = []
    for index, spec in enumerate(body.layers):
        own = AttentionSpec.of(spec.mixer)  # other mixers have no K and V to read
        alike = [
            (layer, source)
            for layer, each in enumerate(target.layers)
            if (source := AttentionSpec.maybe(each.mixer)) is not None
            and source.kv_from is None
            and bool(source.window) == bool(own.window)
        ]
        if not alike:
            what = "a window" if own.window else "full attention"
            raise hf.refuse(f"layer {index} reads K/V of a layer with {what}; the target has none")
        layer, source = alike[-1]
        sizes = [(each.num_kv_heads, each.head_dim, each.window) for each in (own, source)]
        if sizes[0][:2] != sizes[1][:2] or sizes[0][2] > sizes[1][2]:
            heads = [f"{k} x {size} with window {window}" for k, size, window in sizes]
            raise hf.refuse(
                f"layer {index} reads K/V heads of {heads[0]}; layer {layer} of the target, the "
                f"last one of its kind, keeps {heads[1]}"
            )
        found.append(layer)
    return tuple(found)


def _config(hf: HfConfig, body: ModelConfig, target: ModelConfig) -> AssistantConfig:
    for key, said, wanted in (
        ("backbone_hidden_size", hf.require("backbone_hidden_size"), target.hidden_size),
        ("vocab_size", body.vocab_size, target.vocab_size),
    ):
        if said != wanted:
            raise hf.refuse(f"{key} is {said!r}, the target's is {wanted}")
    ordered = hf.get("use_ordered_embeddings", False)
    scaled = target.embedding.scale if target.embedding.scales_borrowed else 1.0
    try:
        return AssistantConfig(
            body=body,
            sources=_sources(hf, body, target),
            target_hidden_size=target.hidden_size,
            capture_layers=(target.num_layers,),
            embedding_scale=scaled,
            num_clusters=hf.get("num_centroids", 2048) if ordered else 0,
            top_clusters=hf.get("centroid_intermediate_top_k", 32) if ordered else 0,
        )
    except ConfigError as error:
        raise hf.refuse(str(error)) from error


def _expected(config: AssistantConfig, family: Family) -> Expected:
    hidden, wide = config.body.hidden_size, config.target_hidden_size
    found: dict[str, tuple[str, tuple[int, ...]]] = {
        "pre_projection.weight": ("pre.weight", (hidden, 2 * wide)),
        "post_projection.weight": ("post.weight", (wide, hidden)),
        _EMBEDDING: ("head.weight", (config.body.vocab_size, hidden)),
        family.names.names["norm.weight"]: ("norm.weight", (hidden,)),
    }
    for i, spec in enumerate(config.layers):
        for name, shape in layer_tensors(spec, hidden).items():
            theirs = family.names.names[f"layers.{{i}}.{name}"].format(i=i)
            found[theirs] = f"layers.{i}.{name}", shape
    if config.num_clusters:
        centroids = ("centroids.weight", (config.num_clusters, hidden))
        found["masked_embedding.centroids.weight"] = centroids
    return found


def _read(folder: DraftFolder, target: ModelConfig, token_map: Path | None) -> DraftCheckpoint:
    folder.refuse_token_map("an assistant", token_map)
    hf, headers = folder.hf, dict(folder.headers)
    family, body = _body(hf, headers)
    config = _config(hf, body, target)
    order: dict[str, Any] = {}
    if config.num_clusters:
        if _ORDER not in headers:
            raise CheckpointError(f"{folder.path} says use_ordered_embeddings, but lacks {_ORDER}")
        order[ORDER] = headers.pop(_ORDER)
        require_order(order[ORDER], target.vocab_size)
    # Head and embedding are tied: either may have been saved.
    if _EMBEDDING not in headers and _HEAD in headers:
        headers[_EMBEDDING] = headers.pop(_HEAD)
    what = f"{folder.path} does not fit an assistant ({config.describe()})"
    resolved = match(_expected(config, family), headers, (_HEAD, *family.names.ignored), what)
    layers = ", ".join(map(str, config.target_layers))
    notes = (describe(folder), f"reads K/V of the target's layers {layers}, and its final norm")
    return DraftCheckpoint(
        folder.path,
        AssistantDecodingConfig.method,
        config,
        LazyTensors({**resolved.tensors, **order}),
        resolved.ignored,
        notes,
        tuple(weight_files(folder.headers)),
    )


ASSISTANT_READER = DraftReader("assistants (Gemma 4)", recognises, describe, _read, rank=90)
