"""Choose the weight formats of drafts that differ from their target in this: a copy of the target
in fewer bits, a language model, a draft of floats beside a quantised target, and any draft with
weight options of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from trtspec.config.build_config import BuildConfig
from trtspec.config.draft_weights import AUTO, DraftWeights
from trtspec.config.model import DTYPES
from trtspec.config.storage import NetworkStorage
from trtspec.errors import ConfigError
from trtspec.formats.base import Place
from trtspec.formats.choose import resolve_weights
from trtspec.formats.registry import format_kinds, weight_dtypes

MOST_KEPT = 100_000_000
"""Bytes of weights above which a draft that is a language model is quantised by default. Fewer bits
cost accepted drafts, but every pass of the draft reads all of its weights."""


@dataclass(frozen=True)
class DraftFormat:
    """How a draft keeps its weights.

    weights: its weight options; None: those of its target. rounds, rounds_head: whether its layers,
    or its head, are quantised again where its checkpoint already quantised them. bits: quantised
    weights with no more bits than this are kept even then. reasons: a line for each choice made.
    """

    weights: DraftWeights | None
    rounds: bool
    rounds_head: bool
    reasons: tuple[str, ...]
    bits: int = 0

    def kept_by(self, asked: BuildConfig) -> BuildConfig:
        """The user's build options, as they apply to what is kept of the draft's checkpoint. If
        its layers are quantised again, only embeddings are left, to which no weight_dtype
        applies."""
        if not self.rounds or asked.weight_dtype in DTYPES:
            return asked
        return replace(asked, weight_dtype=AUTO, weight_group_size=None)


def resolve_draft(
    asked: DraftWeights,
    build: BuildConfig,
    build_asked: BuildConfig,
    kept: NetworkStorage | None,
    stored: NetworkStorage | None,
    size: int | None,
    place: Place,
) -> DraftFormat:
    """How a draft with a checkpoint of its own keeps its weights.

    build: the target's build, resolved; build_asked: the same as the user gave it. kept: the
    quantised weights that the target keeps. stored: how the draft's checkpoint is quantised. size:
    bytes of a language model's weights as its checkpoint has them; None: the draft is none.

    Raises:
        ConfigError: an option of the draft is unknown, or not available there.
    """
    name, reasons = asked.weight_dtype, []
    floats_asked = build_asked.weight_dtype in DTYPES
    if name == AUTO and size is not None and size > MOST_KEPT and not floats_asked:
        kinds = {each.name: each for each in format_kinds().values() if each.bits}
        fewest = min(kinds, key=lambda each: kinds[each].bits)
        fits = kinds[fewest].make(kinds[fewest].group_size, 0).unsupported(place) is None
        if fits:
            name = fewest
            head = "included" if asked.head_weight_dtype == AUTO else "apart"
            reasons.append(
                f"draft's weight_dtype {name}, head {head}: it would read {size / 1e6:.0f} MB a "
                "pass. The text is the target's whatever a draft reads; what that costs in "
                "accepted drafts is measured by the build"
            )
    rounds = name != AUTO
    rounds_head = rounds or asked.head_weight_dtype != AUTO
    base = None
    if not rounds and stored is None:
        base, why = rounded_beside(kept, build_asked, build, place)
        reasons += why
    if not rounds and asked.is_open:
        return DraftFormat(base, False, False, tuple(reasons))
    own = base or DraftWeights.of(build)
    if rounds:
        own = DraftWeights(name, head_weight_dtype=name)
    changes = {
        field: value
        for field, value in vars(asked).items()
        if value not in (AUTO, None) and field != "weight_dtype"
    }
    own = replace(own, **changes)
    try:
        found, _ = resolve_weights(own.within(build), build.dtype, None, place)
    except ConfigError as error:
        raise ConfigError(f"the draft: {error}") from error
    if rounds_head and stored is not None:
        what = "weights" if rounds else "head"
        reasons.append(
            f"draft's {what} quantised again, where its checkpoint has more bits: {stored.name}"
        )
    known = format_kinds()
    asked_kinds = [found.head_weight_dtype, *([found.weight_dtype] if rounds else [])]
    bits = min(known[each].bits if each in known else 0 for each in asked_kinds)
    bits = 0 if asked.weight_group_size is not None else bits  # groups of its own are asked for
    return DraftFormat(DraftWeights.of(found), rounds, rounds_head, tuple(reasons), bits)


def resolve_copy(
    asked: DraftWeights, build: BuildConfig, kept: NetworkStorage | None, place: Place
) -> DraftFormat:
    """How the copy of a target that drafts keeps its weights, with every default replaced. It is
    quantised from floats; a quantised checkpoint is dequantised first.

    build: the target's build, resolved. kept: the quantised weights that the target keeps.

    Raises:
        ConfigError: the copy would not have fewer bits than the target, or an option is unknown or
            not available there.
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
    own = replace(asked, weight_dtype=name).within(build)
    try:
        found, reasons = resolve_weights(own, build.dtype, None, place)
    except ConfigError as error:
        raise ConfigError(f"the copy of the target that drafts: {error}") from error
    if asked.weight_dtype == AUTO:
        reasons.insert(0, f"weight_dtype {name}: the fewest bits there are")
    if kept is not None:
        reasons.append(f"weight_dtype {name}: rounded from what the {target} weights stand for")
    said = tuple(f"copy's {reason}" for reason in reasons)
    return DraftFormat(DraftWeights.of(found), True, True, said)


def rounded_beside(
    kept: NetworkStorage | None, asked: BuildConfig, build: BuildConfig, place: Place
) -> tuple[DraftWeights | None, list[str]]:
    """Weight options for a draft of floats whose target keeps the quantised weights ``kept``, and a
    line about that choice: the format with the most bits, which hardly changes what is drafted.
    None, and no line, if the target has floats or weight_dtype was ``asked`` for: the options of
    the build apply. ``build``: the target's, resolved."""
    if kept is None or asked.weight_dtype != AUTO:
        return None, []
    kinds = format_kinds()
    name = max(kinds, key=lambda each: kinds[each].bits)
    found, _ = resolve_weights(DraftWeights(name).within(build), build.dtype, None, place)
    why = f"draft's weight_dtype {name}: floats would take long beside {kept.name} weights"
    return DraftWeights.of(found), [f"{why}, and the text is the target's whatever a draft reads"]


def _bits(name: str) -> int:
    """Bits of a weight in a format or dtype, by its name; 0: unknown."""
    kind = format_kinds().get(name)
    if kind is not None:
        return kind.bits
    dtype = getattr(torch, name, None)
    return dtype.itemsize * 8 if isinstance(dtype, torch.dtype) else 0
