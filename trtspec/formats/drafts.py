"""Which formats drafts get whose weights are not as their target's: a copy of it with fewer bits,
and a draft of floats beside a quantised target."""

from __future__ import annotations

import torch

from trtspec.config.build_config import BuildConfig
from trtspec.config.draft_weights import AUTO, DraftWeights
from trtspec.config.storage import NetworkStorage
from trtspec.errors import ConfigError
from trtspec.formats.base import Place
from trtspec.formats.choose import resolve_weights
from trtspec.formats.registry import format_kinds, weight_dtypes


def resolve_copy(
    asked: DraftWeights, build: BuildConfig, kept: NetworkStorage | None, place: Place
) -> tuple[DraftWeights, list[str]]:
    """How the copy keeps its weights, with all made concrete, and a line for each choice made.
    ``build``: the target's, resolved; ``kept``: how its checkpoint's weights are quantised that it
    keeps so. The copy is rounded from floats, those that a quantised checkpoint stands for.

    Raises:
        ConfigError: its weights would have as many bits as the target's or more, or what was asked
            for is unknown or not available there.
    """
    target = kept.usual.name if kept is not None else build.weight_dtype
    bits = kept.usual.bits if kept is not None else _bits(target)
    kinds = {name: kind.bits for name, kind in format_kinds().items() if kind.bits}
    fewest = min(kinds, key=lambda name: kinds[name])
    name = fewest if asked.weight_dtype == AUTO else asked.weight_dtype
    if name in weight_dtypes() and not 0 < _bits(name) < bits:
        fewer = [each for each, own in kinds.items() if own < bits]
        remedy = f"give {' or '.join(fewer)}" if fewer else "draft by another method"
        raise ConfigError(
            f"weight_dtype {name!r} of the copy that drafts: the target's weights are {target}, "
            f"and a copy is faster only with fewer bits; {remedy}"
        )
    own = DraftWeights(name, asked.weight_group_size, asked.head_weight_dtype).within(build)
    try:
        found, reasons = resolve_weights(own, build.dtype, None, place)
    except ConfigError as error:
        raise ConfigError(f"the copy of the target that drafts: {error}") from error
    if asked.weight_dtype == AUTO:
        reasons.insert(0, f"weight_dtype {name}: the fewest bits there are")
    if kept is not None:
        reasons.append(f"weight_dtype {name}: rounded from what the {target} weights stand for")
    return DraftWeights.of(found), [f"copy's {reason}" for reason in reasons]


def rounded_beside(
    kept: NetworkStorage | None, asked: BuildConfig, build: BuildConfig, place: Place
) -> tuple[DraftWeights | None, list[str]]:
    """How a draft of floats keeps its weights beside a target that keeps ``kept`` of its
    checkpoint, and a line about that: in the most bits that there are, which hardly change what it
    proposes. None: as the build says, which is right where the target has floats, or
    weight_dtype was ``asked`` for. ``build``: the target's, resolved."""
    if kept is None or asked.weight_dtype != AUTO:
        return None, []
    kinds = format_kinds()
    name = max(kinds, key=lambda each: kinds[each].bits)
    found, _ = resolve_weights(DraftWeights(name).within(build), build.dtype, None, place)
    why = f"draft's weight_dtype {name}: floats would take long beside {kept.name} weights"
    return DraftWeights.of(found), [f"{why}, and the text is the target's whatever a draft reads"]


def _bits(name: str) -> int:
    """Of a weight, of a format or a dtype by name; 0: not known."""
    kind = format_kinds().get(name)
    if kind is not None:
        return kind.bits
    dtype = getattr(torch, name, None)
    return dtype.itemsize * 8 if isinstance(dtype, torch.dtype) else 0
