"""The header of one GGUF file: its metadata, and the names and places of its tensors.

Not read with the ``gguf`` package, which takes seconds for a vocabulary, at every start of a model.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from trtspec.errors import CheckpointError

MAGIC = b"GGUF"
VERSIONS = (2, 3)
FLOATS: Mapping[str, int] = {"F32": 4, "F16": 2, "BF16": 2}
"""Bytes per number, by type."""
BLOCKS: Mapping[str, tuple[int, int]] = {
    "Q4_0": (32, 18),
    "Q4_1": (32, 20),
    "Q5_0": (32, 22),
    "Q5_1": (32, 24),
    "Q8_0": (32, 34),
    "Q2_K": (256, 84),
    "Q3_K": (256, 110),
    "Q4_K": (256, 144),
    "Q5_K": (256, 176),
    "Q6_K": (256, 210),
    "IQ4_NL": (32, 18),
    "IQ4_XS": (256, 136),
    "MXFP4": (32, 17),
}
"""Values and bytes per block, by type."""

_NAMES = (
    "F32 F16 Q4_0 Q4_1 Q4_2 Q4_3 Q5_0 Q5_1 Q8_0 Q8_1 Q2_K Q3_K Q4_K Q5_K Q6_K Q8_K IQ2_XXS IQ2_XS "
    "IQ3_XXS IQ1_S IQ4_NL IQ3_S IQ2_S IQ4_XS I8 I16 I32 I64 F64 IQ1_M BF16 Q4_0_4_4 Q4_0_4_8 "
    "Q4_0_8_8 TQ1_0 TQ2_0 IQ4_NL_4_4 IQ4_NL_4_8 IQ4_NL_8_8 MXFP4 NVFP4"
)
_TYPES = _NAMES.split()
"""ggml's types, by number."""
_SCALARS = {
    0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4", 6: "<f4", 7: "|b1", 10: "<u8",
    11: "<i8", 12: "<f8",
}  # fmt: skip
_TEXT, _ARRAY = 8, 9
_ALIGNMENT = "general.alignment"
_MAX_DIMENSIONS = 4
_GENERAL = "general."


@dataclass(frozen=True)
class TensorPlace:
    """A tensor of type ``kind``: ``size`` bytes from byte ``begin`` of its file."""

    name: str
    kind: str
    shape: tuple[int, ...]
    begin: int
    size: int


@dataclass(frozen=True)
class GgufHeader:
    """``metadata``: numbers, strings and lists of these, by key. ``spans``: the first and end byte
    of each entry in the file, key included."""

    metadata: Mapping[str, Any]
    spans: Mapping[str, tuple[int, int]]
    tensors: tuple[TensorPlace, ...]


def read_header(file: Path) -> GgufHeader:
    """The header of a file, checked against its size.

    Raises:
        CheckpointError: the file is not GGUF, truncated or damaged, or has tensors of an
            unsupported type.
    """
    with _reading(file) as reader:
        return reader.header()


def read_general(file: Path) -> Mapping[str, Any]:
    """The general metadata at the beginning of a file, such as its type.

    Raises:
        CheckpointError: the file is not GGUF, or its header is truncated or damaged.
    """
    with _reading(file) as reader:
        return reader.general()


@contextmanager
def _reading(file: Path) -> Iterator[_Reader]:
    try:
        with file.open("rb") as stream:
            begins = stream.read(len(MAGIC))
            if begins != MAGIC:
                raise CheckpointError(
                    f"{file} is no GGUF file: it begins with {begins!r}, not {MAGIC!r}; a model is "
                    "a folder with a config.json, or a GGUF file"
                )
            with mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as content:
                yield _Reader(file, content)
    except OSError as error:
        raise CheckpointError(f"{file} cannot be read: {error}") from error


def copy_metadata(file: Path, target: Path, keys: tuple[str, ...]) -> None:
    """Write a GGUF file without tensors that has those metadata of another whose keys have one of
    these prefixes.

    Raises:
        CheckpointError: see `read_header`.
    """
    spans = read_header(file).spans
    kept = [span for key, span in spans.items() if key.startswith(keys)]
    with file.open("rb") as stream, target.open("wb") as out:
        version = stream.read(len(MAGIC) + 4)
        out.write(version + struct.pack("<QQ", 0, len(kept)))
        for begin, end in kept:
            stream.seek(begin)
            out.write(stream.read(end - begin))


class _Reader:
    """Reads a file's header once, from the magic on."""

    def __init__(self, file: Path, content: mmap.mmap) -> None:
        self._file, self._content, self._at = file, content, len(MAGIC)

    def header(self) -> GgufHeader:
        num_tensors, num_keys = self._begin()
        metadata: dict[str, Any] = {}
        spans = {}
        for _ in range(num_keys):
            begin = self._at
            key = self._text()
            if key in metadata:
                raise self._damaged(f"has metadata {key} twice")
            metadata[key] = self._value(self._number("<I"))
            spans[key] = begin, self._at
        found = [self._tensor() for _ in range(num_tensors)]
        alignment = metadata.get(_ALIGNMENT, 32)
        if not isinstance(alignment, int) or alignment < 1:
            raise self._damaged(f"has {_ALIGNMENT} {alignment!r}")
        places = self._placed(found, -(-self._at // alignment) * alignment)
        return GgufHeader(metadata, spans, places)

    def general(self) -> dict[str, Any]:
        _, num_keys = self._begin()
        found: dict[str, Any] = {}
        for _ in range(num_keys):
            key = self._text()
            if not key.startswith(_GENERAL):
                break
            found[key] = self._value(self._number("<I"))
        return found

    def _begin(self) -> tuple[int, int]:
        """The numbers of tensors and of metadata entries; CheckpointError for another version."""
        version = self._number("<I")
        if version not in VERSIONS:
            raise self._damaged(
                f"is of version {version}; versions {' and '.join(map(str, VERSIONS))}, little-"
                "endian, are read: convert the model anew"
            )
        return self._number("<Q"), self._number("<Q")

    def _tensor(self) -> tuple[str, int, tuple[int, ...], int]:
        """Name, type number, shape, and offset among the tensors."""
        name, count = self._text(), self._number("<I")
        if not 1 <= count <= _MAX_DIMENSIONS:
            raise self._damaged(f"has tensor {name} with {count} dimensions")
        shape = tuple(self._number("<Q") for _ in range(count))[::-1]  # the innermost comes first
        return name, self._number("<I"), shape, self._number("<Q")

    def _placed(
        self, found: list[tuple[str, int, tuple[int, ...], int]], begin: int
    ) -> tuple[TensorPlace, ...]:
        self._check_types([(name, number) for name, number, *_ in found])
        places = []
        for name, number, shape, offset in found:
            kind = _TYPES[number]
            numbers, size = BLOCKS[kind] if kind in BLOCKS else (1, FLOATS[kind])
            if shape[-1] % numbers:
                raise self._damaged(
                    f"has tensor {name} with rows of {shape[-1]} in blocks of {numbers} ({kind})"
                )
            total = math.prod(shape) // numbers * size
            places.append(TensorPlace(name, kind, shape, begin + offset, total))
        if len({place.name for place in places}) < len(places):
            raise self._damaged("has two tensors of one name")
        end = max((place.begin + place.size for place in places), default=0)
        if end > len(self._content):
            raise self._truncated(f"its tensors end at byte {end}")
        return tuple(places)

    def _check_types(self, found: list[tuple[str, int]]) -> None:
        supported = [*FLOATS, *BLOCKS]
        named = [(n, _TYPES[i] if i < len(_TYPES) else f"type number {i}") for n, i in found]
        wrong = [(name, kind) for name, kind in named if kind not in supported]
        if wrong:
            name, kind = wrong[0]
            raise CheckpointError(
                f"{self._file}: {len(wrong)} of its {len(found)} tensors have types that are not "
                f"supported, first {name} with {kind}; "
                f"supported: {', '.join(supported)}; get the model in one of these"
            )

    def _value(self, kind: int) -> Any:
        if kind == _TEXT:
            return self._text()
        if kind == _ARRAY:
            kind, count = self._number("<I"), self._number("<Q")
            if kind == _TEXT:
                return [self._text() for _ in range(count)]
            return self._numbers(kind, count).tolist()
        value = self._numbers(kind, 1)[0]
        # 1e-05 as a float32 is 1e-05, and not 9.999999747378752e-06.
        return float(str(value)) if value.dtype == np.float32 else value.item()

    def _numbers(self, kind: int, count: int) -> Any:
        if kind not in _SCALARS:
            raise self._damaged(f"has metadata of type number {kind}, which is not known")
        dtype = np.dtype(_SCALARS[kind])
        return np.frombuffer(self._take(count * dtype.itemsize), dtype)

    def _text(self) -> str:
        raw = self._take(self._number("<Q"))
        try:
            return raw.decode()
        except UnicodeDecodeError as error:
            raise self._damaged(f"has a text that is not UTF-8: {raw[:40]!r}") from error

    def _number(self, form: str) -> int:
        value: int
        (value,) = struct.unpack(form, self._take(struct.calcsize(form)))
        return value

    def _take(self, size: int) -> bytes:
        end = self._at + size
        if end > len(self._content):
            raise self._truncated(f"its header goes on to byte {end} and further")
        self._at, begin = end, self._at
        return self._content[begin:end]

    def _truncated(self, what: str) -> CheckpointError:
        return self._damaged(f"is truncated: {what}, the file has {len(self._content)} bytes")

    def _damaged(self, what: str) -> CheckpointError:
        return CheckpointError(f"{self._file} {what}; get the file again")
