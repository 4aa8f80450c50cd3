"""The internal checkpoint, and finding the family of a folder or GGUF file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import torch

from checkpoint_converters.auxiliary_weights import AuxiliaryWeights
from checkpoint_converters.base_names import base_note, read_model_headers
from checkpoint_converters.containers.gguf_file import GgufFile, find_gguf, open_gguf
from checkpoint_converters.containers.safetensors_files import (
    DTYPES,
    LazyTensors,
    TensorHeader,
    read_headers,
    weight_files,
)
from checkpoint_converters.content_hash import hash_files
from checkpoint_converters.families.family import Family
from checkpoint_converters.families.registry import families
from checkpoint_converters.gguf_config import ARCHITECTURE, BLOCKS_AS
from checkpoint_converters.hf_config import CONFIG, GENERATION_CONFIG, HfConfig, read_dtype
from checkpoint_converters.names import resolve
from checkpoint_converters.quantised.folded import fold, is_quantised, storage_of
from checkpoint_converters.quantised.registry import QUANTIZATION_FILES
from checkpoint_converters.rewrites import rewritten
from checkpoint_converters.unrun_mixers import refuse_unrun_mixers
from trtspec.config.model import ModelConfig
from trtspec.errors import CheckpointError, ConfigError

_ROUNDED = 0.25
"""Rounding to four bits moves a matrix by a tenth of its norm; two unrelated matrices are farther
apart than either norm."""


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose headers match its config: every tensor is used or listed in ``ignored``.

    ``tensors`` maps internal names to tensors, each read from its file on demand.
    """

    path: Path
    config: ModelConfig
    tensors: LazyTensors
    ignored: tuple[str, ...]
    files: tuple[Path, ...]

    @cached_property
    def fingerprint(self) -> str:
        """`fingerprint` of the folder; computed from all its weights on first use."""
        return fingerprint(self.path)


def content_of(path: Path) -> list[Path]:
    """The files that identify a checkpoint: its configs (model, generation, quantization) and
    weight files. The tokenizer is excluded, except in a GGUF file, which holds everything."""
    gguf = find_gguf(path)
    if gguf is not None:
        return list(open_gguf(gguf).files)
    return config_files(path) + weight_files(read_headers(path))


def config_files(path: Path) -> list[Path]:
    """The configs in a folder; none for a GGUF file."""
    if find_gguf(path) is not None:
        return []
    configs = (CONFIG, GENERATION_CONFIG, *QUANTIZATION_FILES)
    return [path / name for name in configs if (path / name).is_file()]


def fingerprint(path: Path) -> str:
    """Hash (32 hex digits) of a folder's `content_of`: names, sizes and every byte, but not
    paths."""
    return hash_files(content_of(path))


def reading_notes(path: Path) -> list[str]:
    """Lines about weights that are converted rather than taken as stored."""
    gguf = find_gguf(path)
    kinds = [] if gguf is None else open_gguf(gguf).block_types
    if gguf is None or not kinds:
        return []
    return [
        f"the checkpoint has blocks of {', '.join(kinds)} ({gguf.name}): those of 5 and 6 bits are "
        f"kept in 8; all else is {BLOCKS_AS} unless another dtype is asked for"
    ]


def read_config(path: Path, auxiliary: Sequence[AuxiliaryWeights] = ()) -> ModelConfig:
    """The resolved config of a checkpoint folder or GGUF file, without its weights. ``auxiliary``:
    see `load_checkpoint`.

    Reads headers of weight files only if config.json names no dtype or weights are quantised.
    Raises CheckpointError for an unsupported architecture, activation, rope type or quantization.
    """
    family, hf = _detect(path, auxiliary)
    if is_quantised(hf):
        return load_checkpoint(path, auxiliary).config
    return _config(family, hf, {} if read_dtype(hf) else read_model_headers(path))


def load_checkpoint(path: Path, auxiliary: Sequence[AuxiliaryWeights] = ()) -> Checkpoint:
    """Open a checkpoint folder or GGUF file (or a folder with one and no safetensors). Config and
    headers are checked in full; no weight is read yet. ``auxiliary``: what it may hold besides the
    model, which is ignored.

    A model whose head is tied to its embedding may store either. If it stores both, they are read
    and compared: the head is ignored if they are equal (or as close as rounding leaves a quantised
    one); otherwise the checkpoint contradicts its config and is refused. Names: see
    `checkpoint_converters.base_names`. Raises CheckpointError naming file, tensor, expected and
    found.
    """
    family, hf = _detect(path, auxiliary)
    stored = read_model_headers(path)
    headers = fold(hf, stored)
    where = f"{path}{base_note(headers)}"
    config = _config(family, hf, headers)
    headers = rewritten(family, config, headers)
    embedding, head = family.embedding, family.head
    redundant_head = config.head.tied and head in headers
    dropped = {head} if redundant_head else set()
    for part in _present(auxiliary, hf):
        dropped |= part.tensors(headers, config.num_layers)
    mapped = {n: h for n, h in headers.items() if n not in dropped}
    resolved = resolve(family.names, config, mapped, where)
    if redundant_head:
        _require_equal(headers[embedding], headers[head])
    ignored = tuple(sorted((*resolved.ignored, *dropped)))
    gguf = find_gguf(path)
    files = weight_files(stored) if gguf is None else open_gguf(gguf).files
    config = replace(config, storage=storage_of(resolved.tensors))
    return Checkpoint(path, config, LazyTensors(resolved.tensors), ignored, tuple(files))


def _present(auxiliary: Sequence[AuxiliaryWeights], hf: HfConfig) -> list[AuxiliaryWeights]:
    return [part for part in auxiliary if not part.key or hf.get(part.key)]


def _detect(path: Path, auxiliary: Sequence[AuxiliaryWeights] = ()) -> tuple[Family, HfConfig]:
    if not path.exists():
        raise CheckpointError(
            f"{path} is not a folder, nor a file; a checkpoint is a Hugging Face folder or a GGUF "
            "file"
        )
    gguf = find_gguf(path)
    if gguf is not None:
        return _of_gguf(open_gguf(gguf))
    hf = HfConfig.read(path)
    refuse_unrun_mixers(hf)
    names = hf.get("architectures")
    if names is None:
        key, found = "model_type", hf.require("model_type")
        known = {family.model_type: family for family in families()}
    else:
        key, found = "architectures", names[0] if isinstance(names, list) and names else names
        known = {family.architecture: family for family in families()}
        # A base model's save names itself; its weights lack nothing but an untied head.
        of_base = {family.base_architecture: family for family in families()}
        if isinstance(found, str) and found in of_base:
            return of_base[found], hf
        for part in _present(auxiliary, hf):
            if isinstance(found, str):
                found = found.removeprefix(part.class_prefix)
    composites = {each.architecture: (f, each) for f in families() for each in f.composites}
    if isinstance(found, str) and found in composites:
        family, composite = composites[found]
        has_head = family.head in read_model_headers(path)
        return family.within(composite), composite.text_config(hf, has_head)
    if not isinstance(found, str) or found not in known:
        supported = ", ".join([*known, *composites])
        raise hf.refuse(f"{key} {found!r} is not supported; supported: {supported}")
    return known[found], hf


def _of_gguf(file: GgufFile) -> tuple[Family, HfConfig]:
    known = [(family, family.gguf) for family in families() if family.gguf]
    named = file.text(ARCHITECTURE)
    found = {gguf.sign: (f, gguf) for f, gguf in known if gguf.architecture == named}
    if not found:
        supported = ", ".join(dict.fromkeys(gguf.architecture for _, gguf in known))
        raise file.refuse(f"{ARCHITECTURE} {named!r} is not supported; supported: {supported}")
    signs = [sign for sign in found if sign and file.get(f"{named}.{sign}")]
    family, gguf = found[signs[0] if signs else None]
    return family.in_gguf(), HfConfig.of_gguf(file, gguf.keys)


def _config(family: Family, hf: HfConfig, headers: Mapping[str, TensorHeader]) -> ModelConfig:
    try:
        return ModelConfig(
            architecture=family.architecture,
            dtype=read_dtype(hf) or _dtype_of(family, headers),
            **family.fields_of(hf),
        )
    except ConfigError as error:
        raise hf.refuse(str(error)) from error


def _dtype_of(family: Family, headers: Mapping[str, TensorHeader]) -> str:
    """The dtype of a checkpoint whose config names none: that of its embedding, or of a head in its
    place."""
    header = headers.get(family.embedding, headers.get(family.head))
    return DTYPES.get(header.dtype, "float32") if header is not None else "float32"


def _require_equal(embedding: TensorHeader, head: TensorHeader) -> None:
    if head.shape == embedding.shape and _agree(embedding, head):
        return
    raise CheckpointError(
        f"{head.file}: config.json says tie_word_embeddings, yet {head.name} "
        f"{list(head.shape)} differs from {embedding.name} {list(embedding.shape)}; "
        "set tie_word_embeddings to false to use both, or remove the head"
    )


def _agree(embedding: TensorHeader, head: TensorHeader) -> bool:
    """Whether two matrices are the same apart from rounding, if one is quantised."""
    ours, theirs = embedding.read(), head.read()
    if embedding.storage is None and head.storage is None:
        return ours.dtype == theirs.dtype and torch.equal(ours, theirs)
    ours, theirs = ours.float(), theirs.float()
    return bool((ours - theirs).norm() <= _ROUNDED * ours.norm())
