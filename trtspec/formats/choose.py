"""Which formats a build's networks get, from what was asked for and what the checkpoint holds."""

from __future__ import annotations

from dataclasses import replace

from trtspec.config.build_config import BuildConfig
from trtspec.config.model import DTYPES
from trtspec.config.storage import WeightStorage
from trtspec.config.strict import nearest
from trtspec.errors import ConfigError
from trtspec.formats.base import Place, WeightFormat
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import (
    IN_PANELS,
    IN_ROWS,
    activation_dtypes,
    format_kinds,
    weight_dtypes,
)


def formats_of(build: BuildConfig, in_panels: bool) -> NetworkFormats:
    """Of a resolved build; floats lie in panels where the ops of trtspec read them."""
    layers = _made(build, build.weight_dtype, build.weight_group_size, in_panels)
    head = layers
    if build.head_weight_dtype != build.weight_dtype:
        head = _made(build, build.head_weight_dtype, None, in_panels)
    return NetworkFormats(layers, head, head)


def _made(build: BuildConfig, name: str, group: int | None, in_panels: bool) -> WeightFormat:
    kind = format_kinds().get(name)
    if kind is None:
        return (IN_PANELS if in_panels else IN_ROWS).layers
    rounds_inputs = build.activation_dtype not in DTYPES
    return kind.make(kind.group_size if group is None else group, rounds_inputs)


def resolve_weights(
    build: BuildConfig, dtype: str, stored: WeightStorage | None, place: Place
) -> tuple[BuildConfig, list[str]]:
    """The build, which computes in ``dtype``, with all that it says of weights made concrete, and a
    line for each choice made. ``stored``: how the checkpoint's weights are quantised, None if they
    are floats.

    Raises:
        ConfigError: what was asked for is unknown, or does not fit dtype, checkpoint or place.
    """
    reasons: list[str] = []
    layers, group = build.weight_dtype, build.weight_group_size
    _check_name("weight_dtype", layers, dtype)
    if stored is not None and layers in DTYPES:
        became = f"weight_dtype {dtype}: {stored.name} weights of the checkpoint"
        reasons.append(f"{became} become floats")
    if layers == "auto":
        layers = dtype if stored is None else stored.name
        if stored is not None:
            reasons.append(f"weight_dtype {layers}: that of the checkpoint")
    kind = format_kinds().get(layers)
    _check_group(layers, group)
    if kind is not None and stored is not None and group:
        raise ConfigError(
            f"weight_group_size={group}: the checkpoint's {stored.name} weights have one scale for "
            "each output, and are not quantised again; leave weight_group_size out"
        )
    head = build.head_weight_dtype
    _check_name("head_weight_dtype", head, dtype)
    if head == "auto":
        head = (kind.head or kind.name) if kind else layers
        if head != layers:
            reasons.append(f"head_weight_dtype {head}: heads lose more by fewer bits")
    for flag, name in (("weight_dtype", layers), ("head_weight_dtype", head)):
        _check_place(flag, name, dtype, stored, place)
    chosen = replace(
        build,
        weight_dtype=layers,
        weight_group_size=(kind.group_size if kind else 0) if group is None else group,
        head_weight_dtype=head,
        activation_dtype=_activation(build.activation_dtype, dtype, (layers, head)),
    )
    return chosen, reasons


def _check_name(flag: str, asked: str, dtype: str) -> None:
    known = weight_dtypes()
    if asked not in known:
        raise ConfigError(
            f"{flag} {asked!r} is not supported{nearest(asked, known)} "
            f"(supported: {', '.join(known)})"
        )
    if asked in DTYPES and asked != dtype:
        raise ConfigError(
            f"{flag} {asked!r} with dtype {dtype!r}: weights are {', '.join(format_kinds())}, or "
            f"of the dtype that is computed in; leave {flag} out"
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


def _check_place(
    flag: str, name: str, dtype: str, stored: WeightStorage | None, place: Place
) -> None:
    kind = format_kinds().get(name)
    reason = kind.make(kind.group_size, False).unsupported(place) if kind else None
    if reason is None:
        return
    hint = f"leave {flag} out"
    if stored is not None:
        hint = (
            f"the checkpoint's weights are {stored.name}; give weight_dtype {dtype!r} to make "
            "floats of them"
        )
    raise ConfigError(f"{flag} {name} is not available {reason}; {hint}")


def _activation(asked: str, dtype: str, names: tuple[str, ...]) -> str:
    """In what the products of layers in these formats are computed."""
    kinds = format_kinds()
    able = [kinds[name].rounded_inputs for name in names if name in kinds]
    rounded = next(filter(None, able), None)
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
