"""The registry of weight formats."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cache, partial
from importlib.metadata import entry_points

import torch

from trtspec.config.model import DTYPES
from trtspec.config.storage import WeightStorage
from trtspec.errors import ConfigError
from trtspec.formats.base import Place, WeightFormat
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.plain import PANELS, ROWS, FewRowFormat, PlainFormat, RowFormat
from trtspec.formats.quantised import ROUNDED_INPUTS, QuantisedFormat, kept_as
from trtspec.formats.tiled import TiledFormat
from trtspec.ops.linear_quantised import GROUP_SIZES

ENTRY_POINTS = "trtspec.formats"
"""The group of entry points through which other packages add a `FormatKind`."""


@dataclass(frozen=True)
class FormatKind:
    """A weight format that users ask for by its name, as ``weight_dtype``.

    make: makes the format for a ``weight_group_size`` (inputs that share a scale; 0: all of them)
    and for products that round their inputs to 8 or 16 bits, or do not (0). group_sizes: the sizes
    it takes. weight_only_precision: its spelling in TensorRT-LLM's flag of this name; None: none.
    group_size: the default. head: the default format of heads, by name; None: this one.
    rounded_inputs: the ``activation_dtype`` that makes products round their inputs; None: they
    never do. bits: of a weight, to compare with those of checkpoints; 0: they have no such weights.
    keep: makes the format that keeps a checkpoint's weights of the storage of this name, for
    products that round their inputs likewise; None: checkpoints have no such weights.
    """

    name: str
    make: Callable[[int, int], WeightFormat]
    group_sizes: tuple[int, ...] = (0,)
    weight_only_precision: str | None = None
    group_size: int = 0
    head: str | None = None
    rounded_inputs: str | None = None
    bits: int = 0
    keep: Callable[[WeightStorage, int], WeightFormat] | None = None


@dataclass(frozen=True)
class StoredKind:
    """A format of weights that checkpoints have, to which floats are never converted. name: that of
    their storage. keep, rounded_inputs: see `FormatKind`."""

    name: str
    keep: Callable[[WeightStorage, int], WeightFormat]
    rounded_inputs: str | None = None


def _integers(scheme: WeightStorage, group_size: int, input_bits: int) -> QuantisedFormat:
    return QuantisedFormat(replace(scheme, group_size=group_size), input_bits)


_EIGHT, _FOUR = WeightStorage(8), WeightStorage(4, 32, "float16")
"""What floats are quantised to. With 4 bits the scale of a group adds half a bit to each weight."""
IN_PANELS = NetworkFormats.uniform(PANELS)
IN_ROWS = NetworkFormats.uniform(ROWS)
_BUILT_IN = tuple(
    FormatKind(
        scheme.name,
        partial(_integers, scheme),
        GROUP_SIZES,
        scheme.name,
        scheme.group_size,
        _EIGHT.name,
        ROUNDED_INPUTS,
        scheme.bits,
        kept_as,
    )
    for scheme in (_EIGHT, _FOUR)
)


_STORED = {
    kind.name: kind
    for kind in (
        StoredKind("float8", kept_as),
        StoredKind("float4", kept_as, ROUNDED_INPUTS),
        StoredKind("iq4", kept_as, ROUNDED_INPUTS),
    )
}


@cache
def format_kinds() -> Mapping[str, FormatKind]:
    """The formats by name, with those of other packages. Dtypes of floats are not among them.

    Raises:
        ConfigError: another package's format has a name that is taken.
    """
    kinds = {kind.name: kind for kind in _BUILT_IN}
    for entry in entry_points(group=ENTRY_POINTS):
        kind: FormatKind = entry.load()
        if kind.name in kinds or kind.name in ("auto", *_STORED, *DTYPES):
            raise ConfigError(
                f"the entry point {entry.value} adds a weight format {kind.name!r}, a name that is "
                "taken; rename it or uninstall its package"
            )
        kinds[kind.name] = kind
    return kinds


@cache
def kept_format(scheme: WeightStorage, input_bits: int) -> WeightFormat:
    """The format that keeps a checkpoint's weights of a scheme.

    Raises:
        ConfigError: no kernel reads such weights.
    """
    kind = _kept_kind(scheme)
    if kind is None or kind.keep is None:
        raise ConfigError(
            f"the checkpoint's {scheme.name} weights are kept by no format of this version: keep "
            "them in floats (weight_dtype bfloat16)"
        )
    return kind.keep(scheme, input_bits)


def activations_kept(scheme: WeightStorage) -> str | None:
    """The ``activation_dtype`` that makes products with kept weights of a scheme round their
    inputs; None: they never do."""
    kind = _kept_kind(scheme)
    return None if kind is None else kind.rounded_inputs


def _kept_kind(scheme: WeightStorage) -> FormatKind | StoredKind | None:
    return format_kinds().get(scheme.name, _STORED.get(scheme.name))


def weight_dtypes() -> tuple[str, ...]:
    """All values of `weight_dtype`."""
    return ("auto", *format_kinds(), *DTYPES)


def activation_dtypes() -> tuple[str, ...]:
    """All values of `activation_dtype`."""
    rounded = (kind.rounded_inputs for kind in format_kinds().values())
    return ("auto", *dict.fromkeys(filter(None, rounded)), *DTYPES)


def weight_group_sizes() -> tuple[int, ...]:
    """All values of `weight_group_size` that any format takes."""
    return tuple(sorted({size for kind in format_kinds().values() for size in kind.group_sizes}))


def weight_only_kinds() -> Mapping[str, FormatKind]:
    """The formats that TensorRT-LLM's ``--weight_only_precision`` names, by its spelling; the first
    is the default of that flag."""
    kinds = format_kinds().values()
    return {kind.weight_only_precision: kind for kind in kinds if kind.weight_only_precision}


def floats_of(dtype: str, network: str, in_panels: bool) -> WeightFormat:
    """The format of floats of ``dtype`` (``auto``: the network's) in a network that computes in the
    dtype ``network``."""
    floats = PANELS if in_panels else ROWS
    return floats if dtype in ("auto", network) else replace(floats, dtype=getattr(torch, dtype))


def for_few_rows(weights: WeightFormat, may_gate: bool = False) -> WeightFormat:
    """The format of the same weights for few-row products; the given one if there is none.
    ``may_gate``: whether layers may take their SwiGLU along, that is, nothing is added to gates."""
    if isinstance(weights, QuantisedFormat):
        return TiledFormat(weights.scheme, may_gate=may_gate)
    if isinstance(weights, RowFormat):
        return FewRowFormat(weights.dtype, may_gate=may_gate)
    return weights


def placed(weights: WeightFormat, place: Place) -> WeightFormat:
    """The format in which products at a place take the weights of a format."""
    return for_few_rows(weights) if place.few_rows else weights


def floats_beside(weights: WeightFormat) -> WeightFormat:
    """The format of small matrices that must be exact, beside layers in the format ``weights``."""
    if isinstance(weights, PlainFormat):
        return replace(weights, dtype=None)
    if isinstance(weights, TiledFormat):
        return FewRowFormat()
    return PANELS if weights.is_rounded else weights
