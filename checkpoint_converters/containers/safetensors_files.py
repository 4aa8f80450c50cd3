"""The safetensors files of a checkpoint folder: headers checked first, tensors read on demand."""

from __future__ import annotations

import json
import math
from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import safe_open
from torch import Tensor

from trtspec.config.quantised import Weight
from trtspec.config.storage import WeightStorage
from trtspec.errors import CheckpointError

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"

DTYPES = {"F32": "float32", "BF16": "bfloat16", "F16": "float16"}
"""Supported tensor dtypes and their names in configs."""

_BITS = {
    **dict.fromkeys(("F64", "I64", "U64", "C64"), 64),
    **dict.fromkeys(("F32", "I32", "U32"), 32),
    **dict.fromkeys(("F16", "BF16", "I16", "U16"), 16),
    **dict.fromkeys(("BOOL", "I8", "U8", "F8_E4M3", "F8_E5M2", "F8_E8M0"), 8),
    **dict.fromkeys(("F8_E4M3FNUZ", "F8_E5M2FNUZ"), 8),
    **dict.fromkeys(("F6_E2M3", "F6_E3M2"), 6),
    "F4": 4,
}
_HEADER_LIMIT = 100_000_000  # bytes; the format's own limit


@dataclass(frozen=True)
class TensorHeader:
    """One tensor as described in its file's header; ``dtype`` in the format's spelling (BF16)."""

    name: str
    file: Path
    dtype: str
    shape: tuple[int, ...]

    def read(self) -> Tensor:
        """Read the tensor from its file; CheckpointError names both on failure."""
        return read_tensor(self)

    def read_index(self, index: int) -> Tensor:
        """``tensor[index]``, reading only that part of the file."""
        try:
            with safe_open(self.file, framework="pt") as file:
                part: Tensor = file.get_slice(self.name)[index]
                return part
        except Exception as error:  # the reader's errors share no base but this one
            raise CheckpointError(
                f"{self.file}: cannot read tensor {self.name}: {error}"
            ) from error

    def at(self, index: int) -> TensorHeader:
        """``tensor[index]`` as a header; only that part is read, on demand."""
        return _Entry(self.name, self.file, self.dtype, self.shape[1:], self, index)

    def weight(self) -> Weight:
        """The tensor as stored; a quantised one is not converted to floats."""
        return self.read()

    @property
    def storage(self) -> WeightStorage | None:
        """How a quantised weight is stored; None for floats."""
        return None


def read_headers(folder: Path) -> dict[str, TensorHeader]:
    """Every tensor in a folder's ``model.safetensors`` or in the shards that its index names.

    Raises CheckpointError, before reading any weight, for a folder without such files, a missing or
    truncated file, a damaged header, and an index that disagrees with the shards.
    """
    if (folder / SINGLE).is_file():
        return read_file_header(folder / SINGLE)
    if (folder / INDEX).is_file():
        return _read_shards(folder)
    raise CheckpointError(_nothing_found(folder))


def weight_files(headers: Mapping[str, TensorHeader]) -> list[Path]:
    """The files that hold the tensors, sorted."""
    return sorted({header.file for header in headers.values()})


def read_file_header(file: Path) -> dict[str, TensorHeader]:
    """The tensors of one safetensors file; CheckpointError unless header and size agree."""
    size = file.stat().st_size
    with file.open("rb") as stream:
        length = int.from_bytes(stream.read(8), "little")
        if size < 8 or length > size - 8 or length > _HEADER_LIMIT:
            raise CheckpointError(
                f"{file} is truncated or no safetensors file: its header should take {length} "
                f"bytes after the first 8, the file has {size} bytes in all; get the file again"
            )
        raw = stream.read(length)
    headers: dict[str, TensorHeader] = {}
    ranges: list[tuple[int, int, str]] = []
    try:
        entries = json.loads(raw)
        entries.pop("__metadata__", None)
        for name, entry in entries.items():
            headers[name] = TensorHeader(name, file, entry["dtype"], tuple(entry["shape"]))
            begin, end = entry["data_offsets"]
            bits = _BITS[entry["dtype"]] * math.prod(entry["shape"])
            if (end - begin) * 8 != bits:
                raise ValueError(f"{name} takes {bits // 8} bytes, its range has {end - begin}")
            ranges.append((begin, end, name))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise CheckpointError(f"{file}: damaged safetensors header ({error!r})") from error
    needed = 0
    for begin, end, name in sorted(ranges):
        if begin != needed:
            raise CheckpointError(
                f"{file}: damaged safetensors header: {name} begins at byte {begin}, the tensor "
                f"before it ends at {needed}"
            )
        needed = end
    data = size - 8 - length
    if needed != data:
        problem = "is truncated" if needed > data else "has bytes behind its last tensor"
        raise CheckpointError(
            f"{file} {problem}: its header describes {needed} bytes of tensors, the file holds "
            f"{data}; get the file again"
        )
    return headers


def read_json(file: Path) -> dict[str, Any]:
    """A JSON object from a file; CheckpointError if the file is missing or holds something else."""
    try:
        value = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CheckpointError(f"{file.parent} has no {file.name}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise CheckpointError(f"{file} cannot be read as JSON: {error}") from error
    if not isinstance(value, dict):
        raise CheckpointError(f"{file} holds a {type(value).__name__}, not a JSON object")
    return value


def _read_shards(folder: Path) -> dict[str, TensorHeader]:
    index = folder / INDEX
    weight_map = read_json(index).get("weight_map")
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{index} has no weight_map")
    shards = sorted({str(shard) for shard in weight_map.values()})
    absent = [shard for shard in shards if not (folder / shard).is_file()]
    if absent:
        raise CheckpointError(
            f"{folder} lacks {len(absent)} of the {len(shards)} weight files that {INDEX} names: "
            f"{', '.join(absent)}"
        )
    headers: dict[str, TensorHeader] = {}
    for shard in shards:
        for name, header in read_file_header(folder / shard).items():
            if weight_map.get(name) != shard:
                raise CheckpointError(
                    f"{folder / shard} holds tensor {name}, which {INDEX} places in "
                    f"{weight_map.get(name, 'no file')}"
                )
            headers[name] = header
    unfound = sorted(set(weight_map) - set(headers))
    if unfound:
        raise CheckpointError(
            f"{index} names {len(unfound)} tensors that its files lack: {', '.join(unfound)}"
        )
    return headers


def _nothing_found(folder: Path) -> str:
    pickles = sorted(f.name for pattern in ("*.bin", "*.pt", "*.pth") for f in folder.glob(pattern))
    if pickles:
        return (
            f"{folder} has weights only as pickles ({', '.join(pickles)}), which are not read here;"
            " convert once with transformers: AutoModelForCausalLM.from_pretrained(DIR)"
            ".save_pretrained(NEW_DIR), which writes safetensors"
        )
    others = sorted(f.name for f in folder.glob("*.safetensors"))
    found = f"; it has {', '.join(others)}" if others else ""
    if len(others) == 1:
        found += f", to be renamed to {SINGLE} if it is the whole model"
    return f"{folder} has neither {SINGLE} nor {INDEX}{found}"


class LazyTensors(Mapping[str, Weight]):
    """Tensors by internal name, each read from its file on demand (and not kept)."""

    def __init__(self, headers: Mapping[str, TensorHeader]) -> None:
        self.headers: Mapping[str, TensorHeader] = dict(headers)
        """Metadata of each tensor, available without reading it."""

    def __getitem__(self, name: str) -> Weight:
        return self.headers[name].weight()

    def __contains__(self, name: object) -> bool:
        return name in self.headers  # without reading it

    def __iter__(self) -> Iterator[str]:
        return iter(self.headers)

    def __len__(self) -> int:
        return len(self.headers)

    def in_floats(self, kept: Container[str] = ()) -> LazyTensors:
        """The same with floats in place of every quantised weight except those ``kept``."""
        return LazyTensors(
            {n: header if n in kept else _Floats.of(header) for n, header in self.headers.items()}
        )


@dataclass(frozen=True)
class _Floats(TensorHeader):
    """A tensor converted to floats."""

    whole: TensorHeader

    @classmethod
    def of(cls, whole: TensorHeader) -> _Floats:
        return cls(whole.name, whole.file, whole.dtype, whole.shape, whole)

    def read(self) -> Tensor:
        return self.whole.read()

    def read_index(self, index: int) -> Tensor:
        return self.whole.read_index(index)


@dataclass(frozen=True, eq=False)
class _Entry(TensorHeader):
    """One index of a tensor's first dimension."""

    whole: TensorHeader
    index: int

    def read(self) -> Tensor:
        return self.whole.read_index(self.index)


def read_tensor(header: TensorHeader) -> Tensor:
    """Read one tensor; CheckpointError names file and tensor on failure."""
    try:
        with safe_open(header.file, framework="pt") as file:
            tensor: Tensor = file.get_tensor(header.name)
            return tensor
    except Exception as error:  # the reader's errors share no base but this one
        raise CheckpointError(
            f"{header.file}: cannot read tensor {header.name}: {error}"
        ) from error
