"""Hugging Face folders for fixtures: read tensor by tensor, written shard by shard."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod
from pathlib import Path
from types import MappingProxyType
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor
from tqdm import tqdm

from trtspec.errors import CheckpointError
from trtspec.writable import check_folder

SHARD_BYTES = 2 << 30
_SPARE_BYTES = 64 << 20  # left free on the disk


@dataclass(frozen=True)
class SourceCheckpoint:
    """A folder with config.json and safetensors; tensors are read when asked for, and not kept."""

    path: Path

    @cached_property
    def config(self) -> dict[str, Any]:
        """config.json; CheckpointError if it is missing or damaged."""
        file = self.path / "config.json"
        try:
            config = json.loads(file.read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise CheckpointError(f"{file} cannot be read: {error}") from error
        if not isinstance(config, dict):
            raise CheckpointError(f"{file} holds a {type(config).__name__}, not a JSON object")
        return config

    def integer(self, key: str, default: int | None = None) -> int:
        """A whole number of config.json; CheckpointError without one."""
        value = self.config.get(key)
        value = default if value is None else value
        if not isinstance(value, int):
            raise CheckpointError(f"{self.path / 'config.json'} gives {key} as {value!r}")
        return value

    @cached_property
    def files(self) -> Mapping[str, Path]:
        """The file of every tensor by name; CheckpointError if there are none."""
        files: dict[str, Path] = {}
        for path in sorted(self.path.glob("*.safetensors")):
            try:
                with safe_open(path, framework="pt") as file:
                    files.update(dict.fromkeys(file.keys(), path))
            except SafetensorError as error:
                raise CheckpointError(f"{path} cannot be read: {error}") from error
        if not files:
            raise CheckpointError(f"{self.path} has no safetensors file; fixtures are made of them")
        return files

    def tensor(self, name: str) -> Tensor:
        with safe_open(self.files[name], framework="pt") as file:
            tensor: Tensor = file.get_tensor(name)
            return tensor

    def shape(self, name: str) -> tuple[int, ...]:
        """Shape of a tensor, its file's header read only; CheckpointError if it is missing."""
        if name not in self.files:
            raise CheckpointError(f"{self.path} has no tensor {name}")
        with safe_open(self.files[name], framework="pt") as file:
            return tuple(file.get_slice(name).get_shape())


@dataclass(frozen=True)
class Piece:
    """One tensor to write: its name and what makes it, asked for once, when its turn comes."""

    name: str
    shape: tuple[int, ...]
    dtype: torch.dtype
    make: Callable[[], Tensor]

    @property
    def num_elements(self) -> int:
        return prod(self.shape)

    @property
    def num_bytes(self) -> int:
        return self.num_elements * self.dtype.itemsize


def check_new_folder(folder: Path, num_bytes: int) -> None:
    """CheckpointError if the folder exists already, or so much cannot be written there."""
    if folder.exists():
        raise CheckpointError(f"{folder} exists already; remove it or choose another --output")
    try:
        check_folder(folder)
    except OSError as error:
        raise CheckpointError(f"--output: {folder} cannot be written: {error}") from error
    there = folder.absolute()
    while not there.exists():
        there = there.parent
    free = shutil.disk_usage(there).free
    if num_bytes + _SPARE_BYTES > free:
        raise CheckpointError(
            f"{folder} will take {num_bytes / 1e9:.1f} GB, its disk has {free / 1e9:.1f} GB free"
        )


def write_checkpoint(
    folder: Path,
    pieces: Sequence[Piece],
    files: Mapping[str, str],
    copied: Mapping[str, Path] = MappingProxyType({}),
    shard_bytes: int = SHARD_BYTES,
) -> None:
    """Write a folder: tensors in shards, ``files`` (name -> text, one at least), copies of others
    (``copied``: name -> file).

    At most one shard is held in memory. The folder appears whole or not at all.

    Raises:
        CheckpointError: see `check_new_folder`.
    """
    check_new_folder(folder, sum(piece.num_bytes for piece in pieces))
    folder.parent.mkdir(parents=True, exist_ok=True)
    partial = folder.with_name(f".{folder.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)
    partial.mkdir()
    try:
        _write_shards(partial, _shards(pieces, shard_bytes), folder.name)
        for name, text in files.items():
            (partial / name).write_text(text, encoding="utf-8")
        for name, path in copied.items():
            (partial / name).parent.mkdir(exist_ok=True)
            shutil.copyfile(path, partial / name)
        for shard in partial.glob("*.safetensors"):
            shutil.copymode(partial / next(iter(files)), shard)  # safetensors makes them private
        partial.rename(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _shards(pieces: Sequence[Piece], shard_bytes: int) -> list[list[Piece]]:
    """Consecutive pieces, as many as fit; a larger one stands alone."""
    shards: list[list[Piece]] = [[]]
    size = 0
    for piece in pieces:
        if shards[-1] and size + piece.num_bytes > shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(piece)
        size += piece.num_bytes
    return shards


def _write_shards(folder: Path, shards: Sequence[Sequence[Piece]], name: str) -> None:
    single = len(shards) == 1
    weight_map: dict[str, str] = {}
    bar = tqdm(
        total=sum(p.num_bytes for shard in shards for p in shard),
        desc=f"write {name}",
        unit="B",
        unit_scale=True,
        leave=False,
    )
    with bar:
        for number, shard in enumerate(shards, 1):
            file = f"model-{number:05}-of-{len(shards):05}.safetensors"
            file = "model.safetensors" if single else file
            tensors: dict[str, Tensor] = {}
            for piece in shard:
                tensor = piece.make().contiguous()
                assert (tuple(tensor.shape), tensor.dtype) == (piece.shape, piece.dtype), piece.name
                tensors[piece.name] = tensor
                weight_map[piece.name] = file
                bar.update(piece.num_bytes)
            save_file(tensors, folder / file, metadata={"format": "pt"})
    if not single:
        size = sum(p.num_bytes for shard in shards for p in shard)
        index = {"metadata": {"total_size": size}, "weight_map": weight_map}
        text = json.dumps(index, indent=2) + "\n"
        (folder / "model.safetensors.index.json").write_text(text, encoding="utf-8")
