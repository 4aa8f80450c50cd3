"""The weight formats by name, and which one a build gets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib.metadata import entry_points

from trtspec.config.build_config import BuildConfig
from trtspec.config.model import DTYPES
from trtspec.config.storage import WeightStorage
from trtspec.config.strict import nearest
from trtspec.errors import ConfigError
from trtspec.formats.base import Place, WeightFormat
from trtspec.formats.int8 import Int8Format
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.plain import PANELS, ROWS
from trtspec.ops.linear_int8 import GROUP_SIZES

ENTRY_POINTS = "trtspec.formats"
"""Group of the entry points by which other packages add a `FormatKind`."""


@dataclass(frozen=True)
class FormatKind:
    """A format that users ask for by name, ``weight_dtype``.

    weight_only_precision: how TensorRT-LLM's flag of that name spells it; None: it does not.

    make: the format for a ``weight_group_size`` (input features that share a scale; 0: all), one of
    ``group_sizes``.
    """

    name: str
    make: Callable[[int], WeightFormat]
    group_sizes: tuple[int, ...] = (0,)
    weight_only_precision: str | None = None


IN_PANELS = NetworkFormats.uniform(PANELS)
IN_ROWS = NetworkFormats.uniform(ROWS)
_BUILT_IN = (FormatKind(Int8Format.name, Int8Format, GROUP_SIZES, weight_only_precision="int8"),)


@cache
def format_kinds() -> Mapping[str, FormatKind]:
    """By name: those here and those of other packages. Floats of a dtype are none of them.

    Raises:
        ConfigError: another package's format has a name that is taken.
    """
    kinds = {kind.name: kind for kind in _BUILT_IN}
    for entry in entry_points(group=ENTRY_POINTS):
        kind: FormatKind = entry.load()
        if kind.name in kinds or kind.name in ("auto", *DTYPES):
            raise ConfigError(
                f"the entry point {entry.value} adds a weight format {kind.name!r}, a name that is "
                "taken; rename it or uninstall its package"
            )
        kinds[kind.name] = kind
    return kinds


def weight_dtypes() -> tuple[str, ...]:
    """All that `weight_dtype` may be."""
    return ("auto", *format_kinds(), *DTYPES)


def weight_group_sizes() -> tuple[int, ...]:
    """All that `weight_group_size` may be with some format."""
    return tuple(sorted({size for kind in format_kinds().values() for size in kind.group_sizes}))


def weight_only_kinds() -> Mapping[str, FormatKind]:
    """Those that TensorRT-LLM's ``--weight_only_precision`` knows, by its words; the first one is
    what it means where it is left out."""
    kinds = format_kinds().values()
    return {kind.weight_only_precision: kind for kind in kinds if kind.weight_only_precision}


def format_of(build: BuildConfig, in_panels: bool) -> WeightFormat:
    """Of a resolved build; floats lie in panels where the ops of trtspec read them."""
    kind = format_kinds().get(build.weight_dtype)
    if kind is None:
        return PANELS if in_panels else ROWS
    return kind.make(build.weight_group_size)


def floats_beside(weights: WeightFormat) -> WeightFormat:
    """The format of small matrices that must be exact, in a network whose others have this one."""
    return PANELS if weights.is_rounded else weights


def resolve_weights(
    build: BuildConfig, dtype: str, stored: WeightStorage | None, place: Place
) -> tuple[str, list[str]]:
    """The ``weight_dtype`` of a build that computes in ``dtype``, and a line for each choice made.
    ``stored``: how the checkpoint's weights are quantised, None if they are floats.

    Raises:
        ConfigError: what was asked for is unknown, or does not fit dtype, checkpoint or place.
    """
    kinds = format_kinds()
    asked, group = build.weight_dtype, build.weight_group_size
    _check_names(asked, group, kinds)
    if asked in DTYPES:
        if asked != dtype:
            raise ConfigError(
                f"weight_dtype {asked!r} with dtype {dtype!r}: weights are {', '.join(kinds)}, or "
                "of the dtype that is computed in; leave weight_dtype out"
            )
        became = f"weight_dtype {dtype}: {stored.name if stored else ''} weights of the checkpoint"
        return dtype, [f"{became} become floats"] if stored else []
    reasons = []
    if asked == "auto":
        if stored is None:
            return dtype, []
        asked = stored.name
        reasons.append(f"weight_dtype {asked}: that of the checkpoint")
    reason = kinds[asked].make(group).unsupported(place)
    if reason is not None:
        hint = "leave weight_dtype out"
        if stored is not None:
            hint = (
                f"the checkpoint's weights are {stored.name}; give weight_dtype {dtype!r} to make "
                "floats of them"
            )
        raise ConfigError(f"weight_dtype {asked} is not available {reason}; {hint}")
    if stored is not None and group:
        raise ConfigError(
            f"weight_group_size={group}: the checkpoint's {stored.name} weights have one scale for "
            "each output, and are not quantised again; leave weight_group_size out"
        )
    return asked, reasons


def _check_names(asked: str, group: int, kinds: Mapping[str, FormatKind]) -> None:
    known = weight_dtypes()
    if asked not in known:
        raise ConfigError(
            f"weight_dtype {asked!r} is not supported{nearest(asked, known)} "
            f"(supported: {', '.join(known)})"
        )
    if asked in kinds:
        sizes = kinds[asked].group_sizes
        if group not in sizes:
            raise ConfigError(
                f"weight_group_size={group} is not one of {', '.join(map(str, sizes))}"
            )
    elif group:
        with_groups = [kind.name for kind in kinds.values() if len(kind.group_sizes) > 1]
        raise ConfigError(
            f"weight_group_size={group} was given without weight_dtype {' or '.join(with_groups)}, "
            "whose scales it is about; give both or neither"
        )
