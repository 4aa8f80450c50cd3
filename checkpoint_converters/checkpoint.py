"""The internal checkpoint, and finding out which family a Hugging Face folder holds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from checkpoint_converters.base_names import base_note, read_model_headers
from checkpoint_converters.containers.safetensors_files import (
    DTYPES,
    LazyTensors,
    TensorHeader,
    read_headers,
    read_tensor,
    weight_files,
)
from checkpoint_converters.content_hash import hash_files
from checkpoint_converters.families.family import Family
from checkpoint_converters.families.registry import families
from checkpoint_converters.guest import Guest
from checkpoint_converters.hf_config import CONFIG, GENERATION_CONFIG, HfConfig, read_dtype
from checkpoint_converters.names import resolve
from checkpoint_converters.quantised.modelopt import HF_QUANTIZATION, read_storage
from trtspec.config.model import ModelConfig
from trtspec.errors import CheckpointError, ConfigError


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint whose headers fit its config: every tensor has a use or stands in ``ignored``.

    ``tensors`` maps internal names to tensors, each read from its file when asked for.
    """

    path: Path
    config: ModelConfig
    tensors: LazyTensors
    ignored: tuple[str, ...]
    files: tuple[Path, ...]

    @cached_property
    def fingerprint(self) -> str:
        """`fingerprint` of the folder; reads all its weights, once, when first asked for."""
        return fingerprint(self.path)


def content_of(path: Path) -> list[Path]:
    """The files by which a checkpoint is known: its configs (the model's, of generation and of
    quantization) and weight files. The tokenizer is no part of it."""
    return config_files(path) + weight_files(read_headers(path))


def config_files(path: Path) -> list[Path]:
    """The configs that a folder has."""
    configs = (path / CONFIG, path / GENERATION_CONFIG, path / HF_QUANTIZATION)
    return [file for file in configs if file.is_file()]


def fingerprint(path: Path) -> str:
    """Hash (32 hex digits) of `content_of` a folder: names, sizes and every byte, not where the
    files lie."""
    return hash_files(content_of(path))


def read_config(path: Path, guests: Sequence[Guest] = ()) -> ModelConfig:
    """The resolved config of a checkpoint folder, without its weights. ``guests``: see
    `load_checkpoint`.

    Only if config.json names no dtype are the weight files' headers read for it. Raises
    CheckpointError for an architecture, activation, rope type or quantization not supported.
    """
    family, hf = _detect(path, guests)
    dtype = read_dtype(hf)
    return _config(family, hf, dtype or _dtype_of(family, read_model_headers(path)))


def load_checkpoint(path: Path, guests: Sequence[Guest] = ()) -> Checkpoint:
    """Open a checkpoint folder: config and headers are checked in full, no weight is read yet.
    ``guests``: what it may hold besides the model, which is ignored.

    A model that ties its head to its embedding may store either. One that stores both has them
    compared here, and so read: equal, the head is ignored; different, the checkpoint contradicts
    its config and is refused. Names: see `checkpoint_converters.base_names`. Raises
    CheckpointError naming file, tensor, expected and found.
    """
    family, hf = _detect(path, guests)
    headers = read_model_headers(path)
    where = f"{path}{base_note(headers)}"
    config = _config(family, hf, read_dtype(hf) or _dtype_of(family, headers))
    embedding, head = family.embedding, family.head
    redundant_head = config.head.tied and head in headers and embedding in headers
    if config.head.tied and embedding not in headers and head in headers:
        headers[embedding] = headers.pop(head)  # as safetensors.torch.save_model leaves of the two
    dropped = {head} if redundant_head else set()
    for guest in _present(guests, hf):
        dropped |= guest.tensors(headers, config.num_layers)
    mapped = {n: h for n, h in headers.items() if n not in dropped}
    resolved = resolve(family.names, config, mapped, where)
    if redundant_head:
        _require_equal(headers[embedding], headers[head])
    ignored = tuple(sorted((*resolved.ignored, *dropped)))
    files = tuple(weight_files(headers))
    return Checkpoint(path, config, LazyTensors(resolved.tensors), ignored, files)


def _present(guests: Sequence[Guest], hf: HfConfig) -> list[Guest]:
    return [guest for guest in guests if not guest.key or hf.get(guest.key)]


def _detect(path: Path, guests: Sequence[Guest] = ()) -> tuple[Family, HfConfig]:
    if not path.is_dir():
        raise CheckpointError(f"{path} is not a folder; a checkpoint is a Hugging Face folder")
    hf = HfConfig.read(path)
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
        for guest in _present(guests, hf):
            if isinstance(found, str):
                found = found.removeprefix(guest.class_prefix)
    if not isinstance(found, str) or found not in known:
        raise hf.refuse(f"{key} {found!r} is not supported; supported: {', '.join(known)}")
    return known[found], hf


def _config(family: Family, hf: HfConfig, dtype: str) -> ModelConfig:
    try:
        return ModelConfig(
            architecture=family.architecture,
            dtype=dtype,
            storage=read_storage(hf),
            **family.read_fields(hf),
        )
    except ConfigError as error:
        raise hf.refuse(str(error)) from error


def _dtype_of(family: Family, headers: Mapping[str, TensorHeader]) -> str:
    """The dtype of a checkpoint whose config names none: that of its embedding, or of a head that
    stands for both."""
    header = headers.get(family.embedding, headers.get(family.head))
    return DTYPES.get(header.dtype, "float32") if header is not None else "float32"


def _require_equal(embedding: TensorHeader, head: TensorHeader) -> None:
    if head.shape == embedding.shape and torch.equal(read_tensor(head), read_tensor(embedding)):
        return
    raise CheckpointError(
        f"{head.file}: config.json says tie_word_embeddings, yet {head.name} "
        f"{list(head.shape)} differs from {embedding.name} {list(embedding.shape)}; "
        "set tie_word_embeddings to false to use both, or remove the head"
    )
