"""Medusa heads: FasterDecoding's own files, and models that ModelOpt saved with their heads."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path

from checkpoint_converters.auxiliary_weights import AuxiliaryWeights
from checkpoint_converters.containers.pickle_files import read_pickle_headers
from checkpoint_converters.containers.safetensors_files import (
    LazyTensors,
    TensorHeader,
    read_file_header,
    weight_files,
)
from checkpoint_converters.draft_checkpoint import DraftCheckpoint, DraftFolder
from checkpoint_converters.draft_fields import nested
from checkpoint_converters.hf_config import HfConfig
from checkpoint_converters.names import Expected, Resolved, match
from checkpoint_converters.quantised.folded import fold
from trtspec.config.model import ModelConfig
from trtspec.errors import CheckpointError, ConfigError
from trtspec.speculative.draft_reader import DraftReader
from trtspec.speculative.medusa.options import MedusaDecodingConfig
from trtspec.speculative.medusa.shape import MedusaConfig

FILES = ("medusa_lm_head.safetensors", "medusa_lm_head.pt")
"""Where FasterDecoding keeps heads without their model; the first one found is read."""

_PREFIXES = re.compile(r"medusa_heads?\.(?=\d+\.)")
_PLACE = re.compile(r"(\d+)\.(\d+)\.(linear\.)?(?:weight|bias)")
_BASE = (r"model\..+", r"lm_head\.weight")
"""The model that ModelOpt saves along with the heads: the target, which has a folder of its own."""

Headers = Mapping[str, TensorHeader]


@dataclass(frozen=True)
class MedusaReading:
    """Heads that fit their target: config, tensors by internal names, lines to print."""

    config: MedusaConfig
    resolved: Resolved
    notes: tuple[str, ...]


def _heads(folder: DraftFolder) -> dict[str, TensorHeader]:
    """The tensors of FasterDecoding's file or, without one, of the folder's model; heads by the
    names ``{head}.{layer}.*``, whatever their prefix.

    Raises CheckpointError like `read_any_headers`, and if two tensors get one name.
    """
    path = folder.path
    file = next((path / name for name in FILES if (path / name).is_file()), None)
    if file is None:
        headers = folder.headers
    else:
        read = read_pickle_headers if file.suffix == ".pt" else read_file_header
        headers = fold(folder.hf, read(file))
    found: dict[str, TensorHeader] = {}
    for original, header in headers.items():
        name = _PREFIXES.sub("", original, count=1) if _PREFIXES.match(original) else original
        if name in found:
            raise CheckpointError(
                f"{header.file}: tensors {found[name].name} and {original} are both {name}"
            )
        found[name] = header
    return found


def recognises(folder: DraftFolder) -> bool:
    """Whether config.json, a file's name or a tensor shows Medusa heads."""
    said = any(folder.hf.get(key) is not None for key in ("medusa", "medusa_num_heads"))
    in_file = any((folder.path / name).is_file() for name in FILES)
    first = re.compile(r"\d+\.0\.linear\.weight")
    return said or in_file or any(first.match(name) for name in _heads(folder))


def describe_medusa(headers: Headers) -> str:
    """The decision: ``draft: Medusa (heads: 3, blocks of each: 1), ModelOpt export``."""
    heads, blocks = _count(headers)
    prefixed = any(_PREFIXES.match(header.name) for header in headers.values())
    source = "ModelOpt export" if prefixed else "FasterDecoding checkpoint"
    return f"draft: Medusa (heads: {heads}, blocks of each: {blocks}), {source}"


def read_medusa(hf: HfConfig, headers: Headers, target: ModelConfig) -> MedusaReading:
    """Resolve heads, as named by `_heads`, against their target.

    Raises CheckpointError, before a weight is read, if they cannot fit; missing and unused tensors,
    and found and expected sizes, are named.
    """
    heads, blocks = _count(headers)
    if not heads:
        raise hf.refuse(
            f"the folder is one of Medusa heads, but none of its {len(headers)} tensors is a "
            "head's: they are called 0.0.linear.weight or medusa_heads.0.0.linear.weight and so on"
        )
    notes = [describe_medusa(headers), *_compare(hf, heads, blocks)]
    matrix = headers.get(f"0.{blocks}.weight")
    block = headers.get("0.0.linear.weight")
    _require(hf, "hidden size", block or matrix, 1, target.hidden_size)
    _require(hf, "vocabulary", matrix, 0, target.vocab_size)
    try:
        config = MedusaConfig(
            num_heads=heads,
            num_layers=blocks,
            hidden_size=target.hidden_size,
            vocab_size=target.vocab_size,
            capture_layers=(target.num_layers,),
            own_head=any(f"{head}.{blocks}.weight" in headers for head in range(heads)),
        )
    except ConfigError as error:
        raise hf.refuse(str(error)) from error
    what = f"{hf.folder} does not fit {heads} Medusa heads (blocks of each: {blocks})"
    resolved = match(_expected(config), headers, _BASE, what)
    notes.append("reads the output of the target's final norm")
    if not config.own_head:
        notes.append("the head is the target's")
    return MedusaReading(config, resolved, tuple(notes))


def _count(headers: Headers) -> tuple[int, int]:
    """Numbers of heads and of blocks per head: the maximum found; whatever others lack is then
    missing."""
    places = [place for place in map(_PLACE.fullmatch, headers) if place]
    heads = max((int(place.group(1)) + 1 for place in places), default=0)
    blocks = max((int(place.group(2)) + 1 for place in places if place.group(3)), default=0)
    return heads, blocks


def _compare(hf: HfConfig, heads: int, blocks: int) -> list[str]:
    """Compare config.json with the tensors. FasterDecoding's often states fewer heads than there
    are, all of which can be used."""
    said = nested(hf.get("medusa"))
    layers = hf.get("medusa_num_layers", said.get("num_medusa_layers"))
    if layers not in (None, blocks):
        raise hf.refuse(f"medusa_num_layers is {layers!r}, the tensors are of {blocks}")
    number = hf.get("medusa_num_heads", said.get("num_medusa_heads"))
    notes = []
    if number not in (None, heads):
        if type(number) is not int or number > heads:
            raise hf.refuse(f"medusa_num_heads is {number!r}, the tensors are of {heads}")
        notes.append(f"config.json says {number} heads, the tensors are of {heads}: all may serve")
    base = hf.get("base_model_name_or_path")
    return [*notes, *([f"made for {base}"] if base else [])]


def _require(
    hf: HfConfig, what: str, header: TensorHeader | None, dimension: int, wanted: int
) -> None:
    if header is None or len(header.shape) != 2 or header.shape[dimension] == wanted:
        return
    raise hf.refuse(
        f"the heads are for a {what} of {header.shape[dimension]} ({header.name} "
        f"{list(header.shape)}), the target's is {wanted}"
    )


def _expected(config: MedusaConfig) -> Expected:
    hidden = config.hidden_size
    expected: dict[str, tuple[str, tuple[int, ...]]] = {}
    for head in range(config.num_heads):
        for layer in range(config.num_layers):
            ours, theirs = f"heads.{head}.blocks.{layer}", f"{head}.{layer}.linear"
            expected[f"{theirs}.weight"] = f"{ours}.weight", (hidden, hidden)
            expected[f"{theirs}.bias"] = f"{ours}.bias", (hidden,)
        if config.own_head:
            matrix = f"heads.{head}.lm_head.weight"
            expected[f"{head}.{config.num_layers}.weight"] = matrix, (config.vocab_size, hidden)
    return expected


def _read(folder: DraftFolder, target: ModelConfig, token_map: Path | None) -> DraftCheckpoint:
    folder.refuse_token_map("Medusa heads", token_map)
    headers = _heads(folder)
    reading = read_medusa(folder.hf, headers, target)
    found = reading.resolved
    return DraftCheckpoint(
        folder.path,
        MedusaDecodingConfig.method,
        reading.config,
        LazyTensors(found.tensors),
        found.ignored,
        reading.notes,
        tuple(weight_files(headers)),
    )


def _of_target(names: Collection[str], num_layers: int) -> set[str]:
    return {name for name in names if name.startswith("medusa_heads.")}


IN_TARGET = AuxiliaryWeights(_of_target, key="medusa", class_prefix="Medusa")
"""ModelOpt saves heads inside their target, the model that its config describes."""
MEDUSA_READER = DraftReader(
    "Medusa heads", recognises, lambda folder: describe_medusa(_heads(folder)), _read, rank=50
)
