"""Choose the weight formats of a build's networks, from its options and its checkpoint."""

from __future__ import annotations

from dataclasses import replace

import torch

from trtspec.config.build_config import BuildConfig
from trtspec.config.model import DTYPES
from trtspec.config.storage import NetworkStorage
from trtspec.config.strict import nearest
from trtspec.errors import ConfigError
from trtspec.formats.base import Place, WeightFormat
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import (
    activation_dtypes,
    activations_kept,
    floats_of,
    for_few_rows,
    format_kinds,
    kept_format,
    placed,
    weight_dtypes,
)


def formats_of(
    build: BuildConfig,
    in_panels: bool,
    storage: NetworkStorage | None = None,
    rounds_head: bool = False,
) -> NetworkFormats:
    """The formats of one network of a resolved build.

    in_panels: whether floats are laid out in panels, for the ops of trtspec. storage: how the
    checkpoint quantised the weights that are kept as they are. rounds_head: whether products with
    heads round their inputs to 8 bits, as other products do; otherwise to 16. 8 cost logits as much
    accuracy as in several layers, so only a draft, which may be wrong, affords them. The formats of
    what a draft borrows are those of the network's own head and embedding here.
    """
    input_bits = 0 if build.activation_dtype in ("auto", *DTYPES) else 8
    head_bits = input_bits if rounds_head else 2 * input_bits

    def at_place(kind: WeightFormat) -> WeightFormat:
        return for_few_rows(kind, not build.enable_lora) if build.few_row_products else kind

    def made(name: str, group: int | None, bits: int) -> WeightFormat:
        kind = format_kinds().get(name)
        if kind is None:
            return at_place(floats_of(name, build.dtype, in_panels))
        return at_place(kind.make(kind.group_size if group is None else group, bits))

    group = build.weight_group_size
    layers = made(build.weight_dtype, group, input_bits)
    alike = build.head_weight_dtype == build.weight_dtype
    head = made(build.head_weight_dtype, group if alike else None, head_bits)
    name = build.embedding_weight_dtype
    embedding: WeightFormat | None = None
    if name in format_kinds():
        alike = name == build.head_weight_dtype
        embedding = head if alike else made(name, None, head_bits)
    elif name not in ("auto", build.dtype):
        embedding = floats_of(name, build.dtype, in_panels=False)
    schemes = () if storage is None else storage.schemes
    # Engine folders of earlier versions say auto, and hold embeddings in floats.
    return NetworkFormats(
        layers,
        head,
        target_head=head,
        storage=storage,
        kept={scheme: at_place(kept_format(scheme, input_bits)) for scheme in schemes},
        kept_heads={scheme: at_place(kept_format(scheme, head_bits)) for scheme in schemes},
        embedding=embedding,
        target_embedding=embedding,
        keeps_rows=name != "auto",
    )


def usual_dtypes(asked: BuildConfig, stored: NetworkStorage | None, floats: str) -> tuple[str, str]:
    """The default dtypes of a network: the one it computes in, and that of its float weights.
    ``stored``: see `resolve_weights`. ``floats``: the dtype of the checkpoint's floats."""
    kind = format_kinds().get(asked.weight_dtype)
    if stored is not None and asked.weight_dtype not in DTYPES:
        weights = kept_format(stored.usual, 0)
    elif kind is not None:
        weights = kind.make(kind.group_size, 0)
    else:
        return floats, floats
    if asked.activation_dtype in DTYPES:
        return asked.activation_dtype, asked.activation_dtype
    weights = for_few_rows(weights) if asked.few_row_products else weights
    return weights.network_dtype or floats, floats


def kept_storage(
    asked: BuildConfig, storage: NetworkStorage | None, place: Place, floats: str
) -> NetworkStorage | None:
    """The quantised weights of a checkpoint that a build keeps as they are: all of them, or None if
    floats were asked for. ``floats``: the dtype that messages recommend for floats.

    Raises:
        ConfigError: no kernel reads them there, or they have more bits than were asked for.
    """
    if storage is None or asked.weight_dtype in DTYPES:
        return None
    remedy = f"give weight_dtype {floats!r} to make floats of them"
    for scheme in storage.schemes:
        reason = placed(kept_format(scheme, 0), place).unsupported(place)
        if reason is not None:
            raise ConfigError(
                f"the checkpoint's weights are {storage.name}, which is not available {reason}; "
                f"{remedy}"
            )
    kind = format_kinds().get(asked.weight_dtype)
    if kind is not None and kind.bits and kind.bits < max(each.bits for each in storage.schemes):
        raise ConfigError(
            f"weight_dtype {kind.name}: the checkpoint's weights are {storage.name}, and are not "
            "quantised again; leave weight_dtype out to keep them"
        )
    if kind is not None and asked.weight_group_size:
        raise ConfigError(
            f"weight_group_size={asked.weight_group_size}: the checkpoint's {storage.name} weights "
            "have groups of their own, and are not quantised again; leave weight_group_size out"
        )
    return storage


def resolve_weights(
    build: BuildConfig,
    dtype: str,
    stored: NetworkStorage | None,
    place: Place,
    floats: str | None = None,
) -> tuple[BuildConfig, list[str]]:
    """Replace every default among a build's weight options; returns the build, and a line for each
    choice made.

    dtype: what the network computes in. stored: how the checkpoint's weights are quantised; None:
    they are floats. `kept_storage` decides whether they stay quantised. floats: the default dtype
    of float weights; None: ``dtype``.

    Raises:
        ConfigError: an option is unknown, or does not fit the dtype, the checkpoint or the place.
    """
    reasons: list[str] = []
    floats = floats or dtype
    layers, group = build.weight_dtype, build.weight_group_size
    _check_name("weight_dtype", layers, dtype, place)
    kept = kept_storage(build, stored, place, floats)
    if kept is not None:
        reasons.append(f"weights {kept.name}: as the checkpoint stores them")
    elif stored is not None:
        became = f"weight_dtype {layers}: {stored.name} weights of the checkpoint"
        reasons.append(f"{became} become floats")
    layers = floats if layers == "auto" else layers
    kind = format_kinds().get(layers)
    _check_group(layers, group)
    head = build.head_weight_dtype
    _check_name("head_weight_dtype", head, dtype, place)
    if head == "auto":
        head = (kind.head or kind.name) if kind else layers
        if head != layers:
            reasons.append(f"head_weight_dtype {head}: heads lose more by fewer bits")
    rows = build.embedding_weight_dtype
    _check_name("embedding_weight_dtype", rows, dtype, place)
    rows = floats if rows == "auto" else rows
    named = ("weight_dtype", layers), ("head_weight_dtype", head), ("embedding_weight_dtype", rows)
    for flag, name in named:
        _check_place(flag, name, place)
    chosen = replace(
        build,
        weight_dtype=layers,
        weight_group_size=(kind.group_size if kind else 0) if group is None else group,
        head_weight_dtype=head,
        embedding_weight_dtype=rows,
    )
    activation = _activation(build.activation_dtype, dtype, (layers, head), kept, place)
    return replace(chosen, activation_dtype=activation), reasons


def check_tied(build: BuildConfig, tied: bool) -> None:
    """ConfigError if a resolved build quantises an embedding that is tied to a head of floats: its
    rows can be read from the head, so a table of its own would only take memory."""
    rows, head, kinds = build.embedding_weight_dtype, build.head_weight_dtype, format_kinds()
    if tied and rows in kinds and head not in kinds:
        raise ConfigError(
            f"embedding_weight_dtype {rows}: the model ties its embedding to its head, whose "
            f"weights are {head}, and reads it there; give head_weight_dtype {rows} too, or leave "
            "embedding_weight_dtype out"
        )


def _check_name(flag: str, asked: str, dtype: str, place: Place) -> None:
    known = weight_dtypes()
    if asked not in known:
        raise ConfigError(
            f"{flag} {asked!r} is not supported{nearest(asked, known)} "
            f"(supported: {', '.join(known)})"
        )
    if asked not in DTYPES or asked == dtype:
        return
    rounds = getattr(torch, asked).itemsize < getattr(torch, dtype).itemsize
    if not rounds or not place.runs_ops or place.device != "cpu":
        raise ConfigError(
            f"{flag} {asked!r} with dtype {dtype!r}: weights are {', '.join(format_kinds())}, or "
            "of the dtype that is computed in, of fewer bits than that on CPUs by the ops of "
            f"trtspec alone; leave {flag} out"
        )


def _check_group(name: str, group: int | None) -> None:
    kinds = format_kinds()
    if name in kinds:
        sizes = kinds[name].group_sizes
        if group is not None and group not in sizes:
            raise ConfigError(
                f"weight_group_size={group} is not one of {', '.join(map(str, sizes))}"
            )
    elif group:
        with_groups = [kind.name for kind in kinds.values() if len(kind.group_sizes) > 1]
        raise ConfigError(
            f"weight_group_size={group} was given without weight_dtype {' or '.join(with_groups)}, "
            "whose scales it is about; give both or neither"
        )


def _check_place(flag: str, name: str, place: Place) -> None:
    kind = format_kinds().get(name)
    made = kind.make(kind.group_size, 0) if kind else None
    reason = placed(made, place).unsupported(place) if made else None
    if reason is not None:
        raise ConfigError(f"{flag} {name} is not available {reason}; leave {flag} out")


def _activation(
    asked: str, dtype: str, names: tuple[str, ...], kept: NetworkStorage | None, place: Place
) -> str:
    """The ``activation_dtype`` of a network with weights in the formats ``names``, and ``kept``."""
    kinds = format_kinds()
    able = [kinds[name].rounded_inputs for name in names if name in kinds]
    able += [] if kept is None else map(activations_kept, kept.schemes)
    rounded = None if place.few_rows else next(filter(None, able), None)
    if asked == "auto":
        return rounded or dtype
    known = activation_dtypes()
    if asked not in known:
        raise ConfigError(
            f"activation_dtype {asked!r} is not supported{nearest(asked, known)} "
            f"(supported: {', '.join(known)})"
        )
    if asked in DTYPES:
        if asked != dtype:
            raise ConfigError(
                f"activation_dtype {asked!r} with dtype {dtype!r}: products are computed in one "
                "of both; leave activation_dtype out"
            )
        return asked
    if asked != rounded:
        needed = [kind.name for kind in kinds.values() if kind.rounded_inputs == asked]
        raise ConfigError(
            f"activation_dtype {asked!r} was given without weight_dtype {' or '.join(needed)}, "
            "whose products it is about; give both or neither"
        )
    return asked
