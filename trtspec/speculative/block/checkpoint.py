"""Checkpoints of block drafts: z-lab's format, also written by ModelOpt, SpecForge and others,
DeepSpec's and speculators'."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from checkpoint_converters.capture import Capture
from checkpoint_converters.containers.safetensors_files import LazyTensors, weight_files
from checkpoint_converters.draft_checkpoint import DraftCheckpoint, DraftFolder
from checkpoint_converters.draft_fields import architectures, head_rows, read_decoder
from checkpoint_converters.draft_names import EMBEDDING, FC, HEAD, IGNORED, layer_names
from checkpoint_converters.draft_vocabulary import HEAD_ROWS, borrowed, map_head
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.names import Expected, match
from trtspec.config.model import ModelConfig
from trtspec.errors import ConfigError
from trtspec.speculative.block.checkpoint_layers import (
    IDS,
    NESTED,
    Headers,
    nested,
    read_attention,
    read_capture,
    said,
    whole,
)
from trtspec.speculative.block.format import BlockFormat, Tensors
from trtspec.speculative.block.shape import BlockConfig
from trtspec.speculative.draft_reader import DraftReader

# What a nested key may say; of the others the value is read.
_SCALE = "input_embedding_scale"
_CAP = "final_logit_softcapping"
_READ = {"mask_token_id", IDS, "causal", "causal_head", "block_size"}
_READ |= {"sample_from_anchor", "shift_label"}
_READ |= {"use_swa", "swa_window_size", "target_hidden_size", "num_target_layers", _SCALE, _CAP}
_PROJECTOR = "projector_type"
_FIXED: Mapping[str, tuple[Any, ...]] = {
    "attention_sink_bias": (None, False),
    "use_aux_hidden_state": (None, True),
}
_FIXED_OUTSIDE = ("attention_sink_bias", "add_swa_attention_sink_bias")
_FALLBACK = "dflash"
"""The variant of drafts that have `NESTED` and no sign of another variant."""
_ANCHORED = "DSpark"
"""Architectures whose root row guesses the first token if config.json does not say so."""
_ELSEWHERE = "Domino"
"""Architectures of relatives that no variant runs."""


@dataclass(frozen=True)
class BlockReading:
    """A network's config, what it reads from the target, and lines to print, the first of which
    states the decision."""

    config: BlockConfig
    capture: Capture
    notes: tuple[str, ...]


def is_variant(variant: BlockFormat, hf: HfConfig) -> bool:
    """Whether config.json shows a draft of that variant; variants that are asked earlier have said
    no."""
    if hf.get("speculators_model_type") is not None:
        return bool(hf.get("speculators_model_type") == variant.type)
    shown = variant.type == _FALLBACK and hf.get(NESTED) is not None
    named = re.search(variant.architectures, " ".join(architectures(hf)))
    shown |= bool(named) or said(hf, _PROJECTOR) == variant.type
    return shown and variant.is_one(partial(said, hf))


def describe_variant(variant: BlockFormat, hf: HfConfig) -> str:
    """The decision: ``draft: DFlash (dflash_config, blocks of 16), DFlash checkpoint``.

    Raises CheckpointError for features of unsupported relatives, by name.
    """
    title = variant.config.title
    _refuse_relatives(variant, hf)
    if hf.get("speculators_model_type") is not None:
        evidence, source = "speculators_model_type", "speculators export"
    else:
        evidence = NESTED if hf.get(NESTED) is not None else "architectures"
        source = f"{title} checkpoint"
    return f"draft: {title} ({evidence}, blocks of {said(hf, 'block_size')}), {source}"


def read_variant(
    variant: BlockFormat, hf: HfConfig, headers: Headers, target: ModelConfig
) -> BlockReading:
    """Resolve a draft whose tensors have common names, against its target.

    Raises CheckpointError, before a weight is read, for unsupported features and for drafts that
    cannot fit; found and expected values are named.
    """
    decision = describe_variant(variant, hf)
    made_for = said(hf, "num_target_layers")
    if made_for not in (None, target.num_layers):
        raise hf.refuse(
            f"the draft is for a target of {made_for} layers (num_target_layers), the target has "
            f"{target.num_layers}"
        )
    capture = read_capture(hf, headers, target)
    decoder, causal = read_attention(hf, read_decoder(hf, headers, target))
    anchor = _anchor_predicts(hf)
    scale, told = _embedding_scale(hf, EMBEDDING in headers, target)
    cap, size = said(hf, _CAP), said(hf, "block_size")
    if size is None:
        raise hf.refuse("config.json does not say block_size, the rows of a block")
    try:
        config = variant.config(
            decoder=decoder,
            target_hidden_size=target.hidden_size,
            capture_layers=capture.layers,
            block_size=whole(hf, "block_size", size),
            mask_token_id=_mask(hf),
            causal_layers=causal,
            draft_vocab_size=head_rows(hf, headers, target.vocab_size),
            anchor_predicts=anchor,
            own_embedding=EMBEDDING in headers,
            own_head=HEAD in headers,
            embedding_scale=scale,
            soft_cap=None if cap is None else _real(hf, _CAP, cap),
            **variant.fields(partial(said, hf), headers),
        )
    except (ConfigError, ValueError) as error:
        raise hf.refuse(str(error)) from error
    notes = (f"{decision}; reads {capture.describe()}", *capture.notes, *told)
    if anchor:
        notes += ("the root's own row guesses the first token (sample_from_anchor)",)
    return BlockReading(config, capture, notes)


def expected_tensors(variant: BlockFormat, config: BlockConfig) -> Expected:
    """(internal name, shape) of every weight of a draft, by common name, without vocabulary
    tables."""
    every = (*_common(config), *variant.tensors(config))
    return {source: (target, shape) for source, target, shape in every}


def _common(config: BlockConfig) -> Tensors:
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


def _refuse_relatives(variant: BlockFormat, hf: HfConfig) -> None:
    """Refuse features of relatives, and unknown ones, by name."""
    title, named = variant.config.title, " ".join(architectures(hf))
    found = re.search(_ELSEWHERE, named)
    if found:
        raise hf.refuse(f"a {found.group()} draft ({named}): this version runs {title} without it")
    inside, read = nested(hf), _READ | variant.keys
    unknown = sorted(set(inside) - read - set(_FIXED) - {_PROJECTOR})
    if unknown:
        raise hf.refuse(
            f"{NESTED} says {', '.join(unknown)}, which this version does not know; it knows "
            f"{', '.join(sorted(read | set(_FIXED)))}"
        )
    allowed = {**_FIXED, _PROJECTOR: (None, variant.type)}
    inner = {f"{NESTED}.{key}": (key, inside.get(key)) for key in allowed}
    outer = {key: (key, hf.get(key)) for key in (*_FIXED_OUTSIDE, _PROJECTOR)}
    for name, (key, value) in (inner | outer).items():
        if value not in allowed.get(key, (None, False)):
            raise hf.refuse(f"{name} is {value!r}: this version runs {title} drafts without it")


def _anchor_predicts(hf: HfConfig) -> bool:
    given = said(hf, "sample_from_anchor")
    if given is None:
        given = said(hf, "shift_label") or re.search(_ANCHORED, " ".join(architectures(hf)))
    return bool(given)


def _mask(hf: HfConfig) -> int:
    given = said(hf, "mask_token_id")
    if given is None:
        raise hf.refuse(f"{NESTED} does not say mask_token_id, the token of an empty slot")
    return whole(hf, "mask_token_id", given)


def _embedding_scale(hf: HfConfig, own: bool, target: ModelConfig) -> tuple[float, tuple[str, ...]]:
    """The factor on embedding rows, and lines to print.

    z-lab's code and ModelOpt's online training call the target's embedding module, so if that one
    scales its rows (Gemma's), the draft's are scaled. ``input_embedding_scale`` applies in
    addition. speculators trains on the stored rows, as do SpecForge and ModelOpt's offline mode,
    whose heads look like the others; a head for such a target states 1 / the target's scale there.
    """
    factor = _real(hf, f"{NESTED}.{_SCALE}", nested(hf).get(_SCALE, 1.0))
    stored = own or hf.get("speculators_model_type") is not None
    if stored or not target.embedding.scales_borrowed or target.embedding.scale == 1:
        return factor, ()
    scale = target.embedding.scale * factor
    note = (
        f"the target's embedding rows are multiplied by {scale:g}, as its embedding gives them; a "
        f"head trained on its stored rows says {NESTED}.{_SCALE} {1 / target.embedding.scale:g}"
    )
    return scale, (note,)


def _real(hf: HfConfig, name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise hf.refuse(f"{name} is {value!r}, not a number")
    return float(value)


def _read(
    variant: BlockFormat, folder: DraftFolder, target: ModelConfig, token_map: Path | None
) -> DraftCheckpoint:
    path, headers = folder.path, folder.tensors
    reading = read_variant(variant, folder.hf, headers, target)
    expected = expected_tensors(variant, reading.config)
    resolved = match(expected, headers, IGNORED, f"{path} does not fit {variant.config.title}")
    tensors, of_tokens = resolved.tensors, (*HEAD_ROWS, *variant.of_tokens)
    head = map_head(path, reading.config, headers, tensors, target, token_map, of_tokens)
    ignored = tuple(sorted(headers[name].name for name in set(resolved.ignored) - head.used))
    return DraftCheckpoint(
        path,
        variant.method,
        head.config,
        LazyTensors(tensors),
        ignored,
        (*reading.notes, *head.notes, *borrowed(head.config)),
        (*weight_files(headers), *head.files),
        head.doubts,
    )


def block_reader(variant: BlockFormat) -> DraftReader:
    """The reader of a variant's checkpoints."""
    return DraftReader(
        variant.config.title,
        lambda folder: is_variant(variant, folder.hf),
        lambda folder: describe_variant(variant, folder.hf),
        partial(_read, variant),
        rank=variant.rank,
        speculators=(variant.type,),
    )
