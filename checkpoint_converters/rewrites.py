"""From the tensors of a target's files to those that its family's names ask for: one list of
rewrites, in their order."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from checkpoint_converters.containers.safetensors_files import TensorHeader
from checkpoint_converters.containers.tensor_sources import RotaryHalves, Shifted
from checkpoint_converters.families.family import Family
from checkpoint_converters.names import by_usual_names, split_fused, split_mixed
from checkpoint_converters.stacked import split_stacked
from trtspec.config.model import ModelConfig

Headers: TypeAlias = Mapping[str, TensorHeader]
Rewrite: TypeAlias = Callable[[Family, ModelConfig, Headers], dict[str, TensorHeader]]


def rewritten(family: Family, config: ModelConfig, headers: Headers) -> dict[str, TensorHeader]:
    """A file's tensors, whose quantised weights are one each, by the family's names and as these
    mean them.

    Raises:
        CheckpointError: a tensor of another shape than the config asks for.
    """
    found = dict(headers)
    for rewrite in REWRITES:
        found = rewrite(family, config, found)
    return found


def _changed(family: Family, config: ModelConfig, headers: Headers) -> dict[str, TensorHeader]:
    """With what the family's files have in another form as all others have it."""
    found = dict(headers)
    for i, layer in enumerate(config.layers):
        for name, change in family.changes.items():
            theirs = name.format(i=i)
            if theirs in found:
                found[theirs] = change(found[theirs], layer.mixer)
    return found


def _in_halves(family: Family, config: ModelConfig, headers: Headers) -> dict[str, TensorHeader]:
    """With ``paired`` projections in the order that all others have."""
    found = dict(headers)
    for i, layer in enumerate(config.layers):
        for part, heads in family.paired.items():
            theirs = family.names.names[f"layers.{{i}}.{part}.weight"].format(i=i)
            for name in (theirs, f"{theirs.removesuffix('weight')}bias"):
                if name in found:
                    found[name] = RotaryHalves.of(found[name], getattr(layer.mixer, heads))
    return found


def _less_one(family: Family, config: ModelConfig, headers: Headers) -> dict[str, TensorHeader]:
    """With the w of norms whose files have 1 + w: all but those of what mixers put out."""
    if not family.norms_plus_one:
        return dict(headers)
    norms = {
        theirs.format(i=i)
        for ours, theirs in family.names.names.items()
        if re.search(r"(?<!\.attn\.)norm\.weight$", ours)
        for i in range(config.num_layers)
    }
    return {n: Shifted.of(each, -1) if n in norms else each for n, each in headers.items()}


def _head_as_embedding(
    family: Family, config: ModelConfig, headers: Headers
) -> dict[str, TensorHeader]:
    """With the embedding, where files have the head alone that it is tied to, as
    safetensors.torch.save_model leaves of the two."""
    found = dict(headers)
    if config.head.tied and family.embedding not in found and family.head in found:
        found[family.embedding] = found.pop(family.head)
    return found


REWRITES: tuple[Rewrite, ...] = (
    lambda family, config, headers: split_fused(family.fused, family.names, config, headers),
    lambda family, config, headers: split_mixed(family.mixed, family.names, config, headers),
    lambda family, config, headers: split_stacked(family.stacked, family.names, config, headers),
    lambda family, config, headers: by_usual_names(family.also, config, headers),
    _changed,
    _in_halves,
    _less_one,
    _head_as_embedding,
)
