"""From the tensors in a target's files to those that its family's names require: an ordered list of
rewrites."""

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
    """A file's tensors (a quantised weight is one tensor) under the family's names and in its form.

    Raises:
        CheckpointError: a tensor with a shape other than the config requires.
    """
    found = dict(headers)
    for rewrite in REWRITES:
        found = rewrite(family, config, found)
    return found


def _changed(family: Family, config: ModelConfig, headers: Headers) -> dict[str, TensorHeader]:
    """Tensors that the family stores in a special form, in the usual one."""
    found = dict(headers)
    for i, layer in enumerate(config.layers):
        for name, change in family.changes.items():
            theirs = name.format(i=i)
            if theirs in found:
                found[theirs] = change(found[theirs], layer.mixer)
    return found


def _in_halves(family: Family, config: ModelConfig, headers: Headers) -> dict[str, TensorHeader]:
    """``paired`` projections in the usual order."""
    found = dict(headers)
    for i, layer in enumerate(config.layers):
        for part, heads in family.paired.items():
            theirs = family.names.names[f"layers.{{i}}.{part}.weight"].format(i=i)
            for name in (theirs, f"{theirs.removesuffix('weight')}bias"):
                if name in found:
                    found[name] = RotaryHalves.of(found[name], getattr(layer.mixer, heads))
    return found


def _less_one(family: Family, config: ModelConfig, headers: Headers) -> dict[str, TensorHeader]:
    """Norms stored as 1 + w, as w; except norms on outputs of mixers."""
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
    """The embedding, if files hold only the head that it is tied to, as
    safetensors.torch.save_model leaves it."""
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
