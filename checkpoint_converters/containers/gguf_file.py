"""GGUF files: a whole model (metadata, tokenizer, tensors) in one file or in numbered parts."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from checkpoint_converters.containers.gguf_header import (
    FLOATS,
    GgufHeader,
    TensorPlace,
    read_general,
    read_header,
)
from checkpoint_converters.containers.safetensors_files import TensorHeader
from trtspec.errors import CheckpointError

SUFFIX = ".gguf"
_PART = re.compile(
    r"(?P<model>.+)-(?P<number>\d{5})(?P<of>-of-)(?P<count>\d{5})(?P<suffix>\.gguf)", re.IGNORECASE
)
_PARTS = "split.count"
_REMEMBERED = 4  # models: a target and its drafts
_NO_ID = (0xFFFF_FFFF, -1)
"""Token ids that mean there is no such token."""
_TYPE, _NO_MODELS = "general.type", ("mmproj", "imatrix", "adapter")
_ARCHITECTURE, _OF_IMAGES = "general.architecture", "clip"
"""Architecture of vision files that accompany a model; old ones do not state their type."""
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
_REQUIRED: Any = object()


def find_gguf(path: Path) -> Path | None:
    """The GGUF file that a path refers to: the file itself, or the only model in a folder without
    safetensors (the first part of a model in parts), ignoring vision files, adapters and importance
    matrices. None for any other folder.

    Raises:
        CheckpointError: the folder holds several models.
    """
    if path.is_file():
        part = _PART.fullmatch(path.name)
        return path.with_name(_part_name(part, 1)) if part else path
    if not path.is_dir() or any(path.glob("*.safetensors*")):
        return None
    found = {}
    for file in sorted(path.iterdir()):
        if file.suffix.lower() == SUFFIX and file.is_file():
            part = _PART.fullmatch(file.name)
            found[_part_name(part, 1) if part else file.name] = file
    if len(found) > 1:
        models = {name: file for name, file in found.items() if _may_be_model(file, _facts(file))}
        found = models or found
    if len(found) > 1:
        raise CheckpointError(
            f"{path} holds {len(found)} GGUF models ({', '.join(found)}); give the path of one file"
        )
    return next((path / name for name in found), None)


def token_key(name: str) -> str:
    """The key of the token with a role such as ``eos``."""
    return f"tokenizer.ggml.{name}_token_id"


def open_gguf(file: Path) -> GgufFile:
    """Open a model by its file or its first part, without reading weights.

    Raises:
        CheckpointError: a part is missing, or a file is not GGUF, truncated or damaged, or has
            tensors of an unsupported type.
    """
    part = _PART.fullmatch(file.name)
    count = int(part["count"]) if part else 1
    names = [_part_name(part, i + 1) for i in range(count)] if part else [file.name]
    files = tuple(file.with_name(name) for name in names)
    missing = [each.name for each in files if not each.is_file()]
    if missing:
        raise CheckpointError(
            f"{file.parent} lacks {len(missing)} of the {count} parts of the model: "
            f"{', '.join(missing)}; put all parts there"
        )
    opened = _open(files, tuple(_facts(each) for each in files))
    said = opened.integer(_PARTS, count)
    if max(said, 1) != count:
        raise CheckpointError(
            f"{file} is a part of a model in {said} parts ({_PARTS}), by its name of {count}; "
            f"name the parts <model>-00001-of-{said:05}{SUFFIX} and so on"
        )
    return opened


@dataclass(frozen=True, eq=False)
class GgufTensor(TensorHeader):
    """A tensor of a GGUF file; ``dtype`` may be a block type such as Q4_K. ``shape`` counts
    numbers, not blocks."""

    place: TensorPlace

    @classmethod
    def of(cls, place: TensorPlace, file: Path) -> GgufTensor:
        return cls(place.name, file, place.kind, place.shape, place)

    def at(self, index: int) -> GgufTensor:
        place = self.place
        size = place.size // place.shape[0]
        part = replace(place, shape=place.shape[1:], begin=place.begin + index * size, size=size)
        return GgufTensor.of(part, self.file)

    @property
    def is_quantised(self) -> bool:
        return self.dtype not in FLOATS

    def read(self) -> Tensor:
        """Its floats, or its blocks as bytes ``[size] u8``; CheckpointError if the file no longer
        holds them."""
        place = self.place
        try:
            raw = np.fromfile(self.file, np.uint8, place.size, offset=place.begin)
        except OSError as error:
            raise CheckpointError(
                f"{self.file}: cannot read tensor {self.name}: {error}"
            ) from error
        if raw.size != place.size:
            raise CheckpointError(f"{self.file}: cannot read tensor {self.name}: it was truncated")
        values = torch.from_numpy(raw)
        return values if self.is_quantised else values.view(_DTYPES[self.dtype]).view(self.shape)


@dataclass(frozen=True)
class GgufFile:
    """A model: ``path`` is its file or its first part; ``files`` are all parts."""

    path: Path
    files: tuple[Path, ...]
    metadata: Mapping[str, Any]
    tensors: Mapping[str, GgufTensor]

    @cached_property
    def block_types(self) -> list[str]:
        """Types of its quantised tensors, in the order of the tensors."""
        kinds = (tensor.dtype for tensor in self.tensors.values() if tensor.is_quantised)
        return list(dict.fromkeys(kinds))

    def get(self, key: str, default: Any = None) -> Any:
        return self.metadata.get(key, default)

    def text(self, key: str, default: Any = _REQUIRED) -> Any:
        """A string from the metadata; CheckpointError if absent and without a default."""
        return self._of(str, "a text", key, default)

    def integer(self, key: str, default: Any = _REQUIRED) -> Any:
        """An integer; see `text`."""
        return self._of(int, "a whole number", key, default)

    def token_id(self, name: str) -> int | None:
        """The id of the token with a role such as ``eos``, or None."""
        token: int | None = self.integer(token_key(name), None)
        return None if token in _NO_ID else token

    def number(self, key: str, default: Any = _REQUIRED) -> Any:
        """A number; see `text`."""
        return self._of((int, float), "a number", key, default)

    def texts(self, key: str) -> list[str]:
        """A list of strings; CheckpointError if absent."""
        values: list[str] = self._of(list, "a list of texts", key, _REQUIRED)
        if any(not isinstance(value, str) for value in values):
            raise self.refuse(f"{key} has values that are no texts")
        return values

    def refuse(self, message: str) -> CheckpointError:
        """An error about this file, to raise."""
        return CheckpointError(f"{self.path}: {message}")

    def _of(self, kind: type | tuple[type, ...], what: str, key: str, default: Any) -> Any:
        value = self.metadata.get(key, default)
        if value is _REQUIRED:
            raise self.refuse(f"its metadata do not say {key}, {what}; convert the model anew")
        if value is default or (isinstance(value, kind) and not isinstance(value, bool)):
            return value
        raise self.refuse(f"{key} is {value!r:.60}, not {what}")


@lru_cache
def _may_be_model(file: Path, facts: tuple[int, int, int]) -> bool:
    """Whether a file may be a model, that is, does not declare itself something else; ``facts``:
    see `_facts`."""
    try:
        said = read_general(file)
    except CheckpointError:
        return True  # opening it will say what is wrong
    return said.get(_TYPE) not in _NO_MODELS and said.get(_ARCHITECTURE) != _OF_IMAGES


def _part_name(part: re.Match[str], number: int) -> str:
    return f"{part['model']}-{number:05}{part['of']}{part['count']}{part['suffix']}"


def _facts(file: Path) -> tuple[int, int, int]:
    """What tells whether a file is still the one that was read."""
    status = file.stat()
    return status.st_size, status.st_mtime_ns, status.st_ino


@lru_cache(maxsize=_REMEMBERED)
def _open(files: tuple[Path, ...], facts: tuple[tuple[int, int, int], ...]) -> GgufFile:
    """Cached, because config, headers and tokenizer are read one after another."""
    headers: dict[Path, GgufHeader] = {file: read_header(file) for file in files}
    tensors: dict[str, GgufTensor] = {}
    for file, header in headers.items():
        for place in header.tensors:
            if place.name in tensors:
                raise CheckpointError(
                    f"{file} holds tensor {place.name}, as does {tensors[place.name].file.name}; "
                    "put the parts of one model there"
                )
            tensors[place.name] = GgufTensor.of(place, file)
    return GgufFile(files[0], files, headers[files[0]].metadata, tensors)
