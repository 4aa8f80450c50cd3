"""Name maps as data: a family's names for the tensors that its layers' specs require."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from itertools import product

from torch import Tensor

from checkpoint_converters.containers.safetensors_files import DTYPES, TensorHeader
from checkpoint_converters.containers.tensor_sources import PickedRows, RowRange
from trtspec.config.feed_forwards.experts import EXPERTS
from trtspec.config.layer_tensors import model_tensors
from trtspec.config.mixers.base import MixerSpec
from trtspec.config.model import ModelConfig
from trtspec.errors import CheckpointError

CACHE_SCALES = r".*\.(k|v|kv|q|prob)_(scale|zero_point)"
"""Scales with which other engines quantise K and V, whether or not the config mentions it. Never
used here, so they are ignored in every checkpoint."""


@dataclass(frozen=True)
class NameMap:
    """A format's tensor names: ``names`` by internal names (see `model_tensors`), with ``{i}`` for
    every decoder layer and ``{e}`` for every expert in it. The specs determine which of them exist.

    ``ignored`` are patterns (regular expressions over whole names) of unused tensors that a
    checkpoint may hold.
    """

    names: Mapping[str, str]
    ignored: tuple[str, ...] = ()

    def in_layer(self, name: str) -> str:
        """The name, after the layer's number, of a layer's tensor named as in `layer_tensors`."""
        expert = re.match(EXPERTS + r"(\d+)", name)
        number = expert.group(1) if expert else ""
        ours = name.replace(f".{number}.", ".{e}.", 1) if expert else name
        theirs = self.names["layers.{i}." + ours]
        return theirs.partition(".{i}.")[2].replace("{e}", number)

    def renamed(self, names: Mapping[str, str]) -> NameMap:
        """A copy with these names, which override or extend its own."""
        return replace(self, names={**self.names, **names})

    def ignoring(self, *patterns: str) -> NameMap:
        """A copy with further patterns of unused tensors."""
        return replace(self, ignored=(*self.ignored, *patterns))


@dataclass(frozen=True)
class Resolved:
    """``tensors``: headers by internal name; ``ignored``: names that the map leaves out, sorted."""

    tensors: dict[str, TensorHeader]
    ignored: tuple[str, ...]


Expected = Mapping[str, tuple[str, tuple[int, ...]]]
"""(internal name, shape) of every tensor that a config requires, by its name in the checkpoint."""


def resolve(
    names: NameMap, config: ModelConfig, headers: Mapping[str, TensorHeader], where: str
) -> Resolved:
    """Match a checkpoint's tensors with a map, strictly: nothing left over, nothing missing.

    Raises CheckpointError listing both kinds at once, then for wrong shapes (expected and found)
    and for dtypes that are not floats.
    """
    expected = dict(_expand(names, config))
    missing, unused = differences(expected, headers, names.ignored)
    hint = _tie_hint(missing, unused, config)
    return match(
        expected, headers, names.ignored, f"{where} does not fit {config.architecture}", hint
    )


def split_fused(
    fused: Mapping[str, tuple[str, ...]],
    names: NameMap,
    config: ModelConfig,
    headers: Mapping[str, TensorHeader],
) -> dict[str, TensorHeader]:
    """The tensors with each fused one (see `Family`) split into its parts, under their own names.
    Raises CheckpointError for a wrong number of rows."""
    found, shapes = dict(headers), model_tensors(config)
    for theirs, known in fused.items():
        for i in range(config.num_layers):
            parts = [part for part in known if f"layers.{i}.{part}.weight" in shapes]
            rows = [shapes[f"layers.{i}.{part}.weight"][0] for part in parts]
            for kind in ("weight", "bias"):
                whole = found.pop(f"{theirs.format(i=i)}.{kind}", None)
                if whole is None:
                    continue
                if whole.shape[:1] != (sum(rows),):
                    raise CheckpointError(
                        f"{whole.file}: tensor {whole.name} has shape {list(whole.shape)}, its "
                        f"config.json asks for {' + '.join(map(str, rows))} rows"
                    )
                for k, part in enumerate(parts):
                    name = names.names[f"layers.{{i}}.{part}.weight"].format(i=i)
                    name = name.removesuffix("weight") + kind
                    found[name] = RowRange.of(whole, sum(rows[:k]), rows[k])
    return found


def split_mixed(
    mixed: Mapping[str, Callable[[MixerSpec], Mapping[str, Tensor]]],
    names: NameMap,
    config: ModelConfig,
    headers: Mapping[str, TensorHeader],
) -> dict[str, TensorHeader]:
    """The tensors with each mixed one (see `Family`) split into its parts, under their own names.
    Raises CheckpointError for a wrong number of rows."""
    found = dict(headers)
    for i, spec in enumerate(config.layers):
        for theirs, rows_of in mixed.items():
            whole = found.pop(f"{theirs.format(i=i)}.weight", None)
            if whole is None:
                continue
            parts = rows_of(spec.mixer)
            wanted = sum(map(len, parts.values()))
            if whole.shape[:1] != (wanted,):
                raise CheckpointError(
                    f"{whole.file}: tensor {whole.name} has shape {list(whole.shape)}, its "
                    f"config.json asks for {wanted} rows"
                )
            for part, rows in parts.items():
                name = names.names[f"layers.{{i}}.{part}.weight"].format(i=i)
                found[name] = PickedRows.of(whole, rows)
    return found


def by_usual_names(
    also: Mapping[str, str], config: ModelConfig, headers: Mapping[str, TensorHeader]
) -> dict[str, TensorHeader]:
    """The tensors with alternative names replaced by those in the map (see `Family`)."""
    found = dict(headers)
    for theirs, usual in also.items():
        for i in range(config.num_layers):
            if theirs.format(i=i) in found:
                found[usual.format(i=i)] = found.pop(theirs.format(i=i))
    return found


def match(
    expected: Expected,
    headers: Mapping[str, TensorHeader],
    ignored: tuple[str, ...],
    misfit: str,
    hint: str = "",
) -> Resolved:
    """`resolve` for an explicit list of tensors; ``misfit`` begins its first message."""
    missing, unused = differences(expected, headers, ignored)
    if unused or missing:
        raise CheckpointError(
            f"{misfit}: {len(missing)} tensors are missing: {', '.join(missing) or 'none'}; "
            f"{len(unused)} tensors have no use: {', '.join(unused) or 'none'}{hint}"
        )
    for name, (_, shape) in expected.items():
        header = headers[name]
        if header.shape != shape:
            raise CheckpointError(
                f"{header.file}: tensor {header.name} has shape {list(header.shape)}, its "
                f"config.json asks for {list(shape)}"
            )
        if header.dtype not in DTYPES:
            raise CheckpointError(
                f"{header.file}: tensor {header.name} has dtype {header.dtype}; "
                f"supported: {', '.join(DTYPES)}"
            )
    tensors = {target: headers[name] for name, (target, _) in expected.items()}
    return Resolved(tensors, tuple(sorted(set(headers) - set(expected))))


def differences(
    expected: Expected, headers: Mapping[str, TensorHeader], ignored: tuple[str, ...]
) -> tuple[list[str], list[str]]:
    """Missing names, in the order of ``expected``, and unused names, sorted."""
    extra = sorted(set(headers) - set(expected))
    none = (CACHE_SCALES, *ignored)
    unused = [n for n in extra if not any(re.fullmatch(pattern, n) for pattern in none)]
    return [name for name in expected if name not in headers], unused


def _expand(names: NameMap, config: ModelConfig) -> Expected:
    """Every tensor that the config requires, in the order of the map and then of the layers."""
    shapes, found = model_tensors(config), {}
    most = max(spec.ffn.choice[1] for spec in config.layers.specs if spec.ffn is not None)
    for ours, theirs in names.names.items():
        layers = range(config.num_layers) if "{i}" in ours else (0,)
        for i, e in product(layers, range(most) if "{e}" in ours else (0,)):
            target = ours.format(i=i, e=e)
            if target in shapes:
                found[theirs.format(i=i, e=e)] = target, shapes.pop(target)
    if shapes:
        raise CheckpointError(
            f"{config.architecture} has tensors that its family does not name: {', '.join(shapes)}"
        )
    return found


def _tie_hint(missing: list[str], unused: list[str], config: ModelConfig) -> str:
    if missing == ["lm_head.weight"] and not unused and not config.head.tied:
        return "; if the model ties its head to its embedding, config.json must say so"
    return ""
