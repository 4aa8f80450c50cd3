"""Low-rank adapters in PEFT's format: a folder with adapter_config.json and
adapter_model.safetensors."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from checkpoint_converters.base_names import as_causal
from checkpoint_converters.containers.safetensors_files import (
    DTYPES,
    TensorHeader,
    read_file_header,
)
from checkpoint_converters.content_hash import hash_files
from checkpoint_converters.families.family import Family
from checkpoint_converters.families.registry import family_of
from checkpoint_converters.peft_config import CONFIG, PeftConfig
from trtspec.config.layer_tensors import model_tensors
from trtspec.config.model import ModelConfig
from trtspec.errors import CheckpointError

WEIGHTS = "adapter_model.safetensors"

_TENSOR = re.compile(r"(?:base_model\.model\.)?(?P<module>.+)\.lora_(?P<kind>[AB])\.weight")
_REFUSED = {
    "lora_embedding_": "an adapter of embeddings, which are not adapted",
    "lora_magnitude_vector": "a part of DoRA, which is not offered",
    ".bias": "a bias, which adapters do not have here",
    "modules_to_save": "a module of its own (modules_to_save), which is not read",
    "original_module": "a module of its own (modules_to_save), which is not read",
    "lm_head": "beside the head, which is not adapted",
    "embed_tokens": "of the embeddings, which are not adapted",
}
"""What a tensor is, by a part of its name."""


class LowRank(NamedTuple):
    """What an adapter adds to a weight ``[N, K]``: ``b @ a``, with ``a [r, K]`` and ``b [N, r]`` in
    float32; b includes the scale."""

    a: Tensor
    b: Tensor


@dataclass(frozen=True)
class PeftAdapter:
    """An adapter that fits its base. layers: by internal names of the base's weights, without
    ``.weight``. rank: their largest. files: all that it was read from."""

    path: Path
    layers: Mapping[str, LowRank]
    rank: int
    files: tuple[Path, ...]

    @property
    def fingerprint(self) -> str:
        """Hash (32 hex digits) of its files."""
        return hash_files(list(self.files))


class _Module(NamedTuple):
    """A module of the base: the weights that it concatenates along its outputs, with their rows,
    and its number of inputs."""

    parts: tuple[tuple[str, int], ...]
    inputs: int

    @property
    def outputs(self) -> int:
        return sum(rows for _, rows in self.parts)


def read_adapter(folder: Path, base: ModelConfig) -> PeftAdapter:
    """Read an adapter of attention and feed-forward projections.

    Raises:
        CheckpointError: the folder holds no adapter; its kind or an option is unsupported; tensors
            are missing, unused, of a shape other than ``base`` and the config require, or hold
            non-finite values. File, tensor, expected and found are named.
    """
    config, file = PeftConfig.read(folder), folder / WEIGHTS
    if not file.is_file():
        found = sorted(each.name for each in folder.glob("adapter_model*"))
        pickles = "; pickles are not read: save it with safetensors" if found else ""
        raise CheckpointError(f"{folder} has no {WEIGHTS} (found: {', '.join(found)}){pickles}")
    modules = dict(_modules(family_of(base.architecture), base))
    pairs = _pairs(read_file_header(file), modules, base)
    wanted = [name for name in modules if config.targets(name)]
    missing = [
        f"{name}.lora_{kind}.weight"
        for name in sorted({*wanted, *pairs})
        for kind in "AB"
        if kind not in pairs.get(name, {})
    ]
    if missing or not wanted:
        asked = config.values.get("target_modules")
        raise CheckpointError(
            f"{file} lacks {len(missing)} tensors of target_modules {asked!r:.80}: "
            f"{', '.join(missing[:8]) or 'no projection of the model has such a name'}"
        )
    unused = sorted(set(pairs) - set(wanted))
    if unused:
        raise config.refuse(
            f"target_modules leave out {len(unused)} modules of which {WEIGHTS} has tensors: "
            f"{', '.join(unused[:8])}"
        )
    layers: dict[str, LowRank] = {}
    rank = max(config.rank(name) for name in wanted)
    for name in wanted:
        layers |= _read(config, name, modules[name], pairs[name])
    return PeftAdapter(folder, layers, rank, (folder / CONFIG, file))


def _modules(family: Family, base: ModelConfig) -> Iterator[tuple[str, _Module]]:
    """The projections of a base, by its family's names."""
    shapes = model_tensors(base)
    held = {part for parts in family.fused.values() for part in parts}
    known = dict(family.fused)
    for ours, theirs in family.names.names.items():
        match = re.fullmatch(r"layers\.\{i\}\.((?:attn|mlp)\.\w+)\.weight", ours)
        if match and match[1] not in held:
            known[theirs.removesuffix(".weight")] = (match[1],)
    for i in range(base.num_layers):
        for theirs, names in known.items():
            own = [(f"layers.{i}.{n}", shapes.get(f"layers.{i}.{n}.weight", ())) for n in names]
            parts = tuple((name, shape[0]) for name, shape in own if len(shape) == 2)
            if parts:
                inputs = shapes[f"{parts[0][0]}.weight"][1]
                yield theirs.format(i=i), _Module(parts, inputs)


def _pairs(
    headers: Mapping[str, TensorHeader], modules: Mapping[str, _Module], base: ModelConfig
) -> dict[str, dict[str, TensorHeader]]:
    """The tensors by module and kind, A or B; CheckpointError for any other."""
    found: dict[str, dict[str, TensorHeader]] = {}
    for name, header in headers.items():
        match = _TENSOR.fullmatch(name)
        module = as_causal(match["module"]) if match else name
        if match is None or module not in modules:
            is_what = next((why for key, why in _REFUSED.items() if key in name), None)
            raise CheckpointError(
                f"{header.file}: tensor {name} "
                + (f"is {is_what}" if is_what else f"has no use: {_unknown(module, base)}")
            )
        found.setdefault(module, {})[match["kind"]] = header
    return found


def _unknown(module: str, base: ModelConfig) -> str:
    return (
        f"{base.architecture} of {base.num_layers} layers has no projection {module}; is it an "
        "adapter of another base?"
    )


def _read(
    config: PeftConfig, name: str, module: _Module, pair: Mapping[str, TensorHeader]
) -> dict[str, LowRank]:
    """What an adapter adds to each weight in a module."""
    rank = config.rank(name)
    for kind, shape in (("A", (rank, module.inputs)), ("B", (module.outputs, rank))):
        header = pair[kind]
        if header.shape != shape:
            raise CheckpointError(
                f"{header.file}: tensor {header.name} has shape {list(header.shape)}, its base and "
                f"{CONFIG} ask for {list(shape)} (rank {rank})"
            )
        if header.dtype not in DTYPES:
            raise CheckpointError(
                f"{header.file}: tensor {header.name} has dtype {header.dtype}; "
                f"supported: {', '.join(DTYPES)}"
            )
    a, b = pair["A"].read().float(), pair["B"].read().float() * config.scale(name)
    for kind, tensor in (("A", a), ("B", b)):
        if not bool(torch.isfinite(tensor).all()):
            raise CheckpointError(
                f"{pair[kind].file}: tensor {pair[kind].name} holds NaN or infinite values"
            )
    rows = torch.split(b, [count for _, count in module.parts])
    return {part: LowRank(a, own) for (part, _), own in zip(module.parts, rows, strict=True)}
