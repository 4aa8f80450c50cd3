"""Name maps as data: which tensor of a format fills which internal tensor, and of what shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from checkpoint_converters.containers.safetensors_files import DTYPES, TensorHeader
from checkpoint_converters.quantised.modelopt import INT8, expected_scales
from trtspec.config.model import ModelConfig
from trtspec.config.storage import SCALE_SUFFIX
from trtspec.errors import CheckpointError


@dataclass(frozen=True)
class Rule:
    """One tensor of a format. ``{i}`` in the names stands for every decoder layer.

    ``shape`` is in the symbols of `sizes` ("Q H" is ``[num_heads * head_dim, hidden_size]``);
    ``when`` names the flag (a key of `flags`) that must be true for the tensor to exist.
    """

    source: str
    target: str
    shape: str
    when: str | None = None


@dataclass(frozen=True)
class NameMap:
    """All tensors of a format; ``ignored`` are patterns (regular expressions over whole names) of
    tensors that a checkpoint may hold and that nothing needs."""

    rules: tuple[Rule, ...]
    ignored: tuple[str, ...] = ()


def sizes(config: ModelConfig) -> dict[str, int]:
    """The symbols of `Rule.shape`."""
    return {
        "V": config.vocab_size,
        "H": config.hidden_size,
        "I": config.intermediate_size,
        "Q": config.num_heads * config.head_dim,
        "KV": config.num_kv_heads * config.head_dim,
        "D": config.head_dim,
    }


def flags(config: ModelConfig) -> dict[str, bool]:
    """The flags of `Rule.when`."""
    return {
        "attention_bias": config.attention_bias,
        "attention_output_bias": config.attention_output_bias,
        "mlp_bias": config.mlp_bias,
        "qk_norm": config.qk_norm,
        "untied": not config.tie_word_embeddings,
    }


@dataclass(frozen=True)
class Resolved:
    """``tensors``: header by internal name; ``ignored``: names that the map leaves out, sorted."""

    tensors: dict[str, TensorHeader]
    ignored: tuple[str, ...]


Expected = Mapping[str, tuple[str, tuple[int, ...]]]
"""(internal name, shape) of every tensor that a config asks for, by its name in the checkpoint."""


def resolve(
    names: NameMap, config: ModelConfig, headers: Mapping[str, TensorHeader], where: str
) -> Resolved:
    """Match a checkpoint's tensors with a map, strictly: nothing left over, nothing missing.

    Raises CheckpointError listing both kinds at once, then for wrong shapes (expected and found)
    and for dtypes that are not plain floats, nor int8 with scales where the config says so.
    """
    expected = dict(_expand(names, config))
    if config.storage is not None:
        expected |= expected_scales(expected, headers)
    missing, unused = differences(expected, headers, names.ignored)
    hint = _tie_hint(missing, unused, config)
    return match(
        expected, headers, names.ignored, f"{where} does not fit {config.architecture}", hint
    )


def match(
    expected: Expected,
    headers: Mapping[str, TensorHeader],
    ignored: tuple[str, ...],
    misfit: str,
    hint: str = "",
) -> Resolved:
    """What `resolve` does, for tensors listed one by one; ``misfit`` begins its first message."""
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
        has_scales = header.dtype == INT8 and name + SCALE_SUFFIX in expected
        if header.dtype not in DTYPES and not has_scales:
            raise CheckpointError(
                f"{header.file}: tensor {header.name} has dtype {header.dtype}; "
                f"supported: {', '.join(DTYPES)}"
            )
    tensors = {target: headers[name] for name, (target, _) in expected.items()}
    return Resolved(tensors, tuple(sorted(set(headers) - set(expected))))


def differences(
    expected: Expected, headers: Mapping[str, TensorHeader], ignored: tuple[str, ...]
) -> tuple[list[str], list[str]]:
    """Names that are missing, in the order of ``expected``, and names without a use, sorted."""
    extra = sorted(set(headers) - set(expected))
    unused = [n for n in extra if not any(re.fullmatch(pattern, n) for pattern in ignored)]
    return [name for name in expected if name not in headers], unused


def _expand(names: NameMap, config: ModelConfig) -> list[tuple[str, tuple[str, tuple[int, ...]]]]:
    """(source, (target, shape)) of every tensor that the config asks for."""
    symbols, present = sizes(config), flags(config)
    found = []
    for rule in names.rules:
        if rule.when is not None and not present[rule.when]:
            continue
        shape = tuple(symbols[symbol] for symbol in rule.shape.split())
        layers = range(config.num_layers) if "{i}" in rule.source else (0,)
        found += [(rule.source.format(i=i), (rule.target.format(i=i), shape)) for i in layers]
    return found


def _tie_hint(missing: list[str], unused: list[str], config: ModelConfig) -> str:
    if missing == ["lm_head.weight"] and not unused and not config.tie_word_embeddings:
        return "; if the model ties its head to its embedding, config.json must say so"
    return ""
