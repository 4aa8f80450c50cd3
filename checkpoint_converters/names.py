"""Name maps as data: which tensor of a format fills which internal tensor, and of what shape."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from checkpoint_converters.safetensors_files import DTYPES, TensorHeader
from trtspec.config.model import ModelConfig
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


def resolve(
    names: NameMap, config: ModelConfig, headers: Mapping[str, TensorHeader], where: str
) -> Resolved:
    """Match a checkpoint's tensors with a map, strictly: nothing left over, nothing missing.

    Raises CheckpointError listing both kinds at once, then for wrong shapes (expected and found)
    and for dtypes that are not plain floats.
    """
    expected = dict(_expand(names, config))
    unused: list[str] = []
    ignored: list[str] = []
    for name in sorted(set(headers) - set(expected)):
        known = any(re.fullmatch(pattern, name) for pattern in names.ignored)
        (ignored if known else unused).append(name)
    missing = [name for name in expected if name not in headers]
    if unused or missing:
        raise CheckpointError(
            f"{where} does not fit {config.architecture}: "
            f"{len(missing)} tensors are missing: {', '.join(missing) or 'none'}; "
            f"{len(unused)} tensors have no use: {', '.join(unused) or 'none'}"
            + _tie_hint(missing, unused, config)
        )
    for name, (_, shape) in expected.items():
        header = headers[name]
        if header.shape != shape:
            raise CheckpointError(
                f"{header.file}: tensor {name} has shape {list(header.shape)}, its config.json "
                f"asks for {list(shape)}"
            )
        if header.dtype not in DTYPES:
            raise CheckpointError(
                f"{header.file}: tensor {name} has dtype {header.dtype}; "
                f"supported: {', '.join(DTYPES)}"
            )
    tensors = {target: headers[name] for name, (target, _) in expected.items()}
    return Resolved(tensors, tuple(ignored))


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
