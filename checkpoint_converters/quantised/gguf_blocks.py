"""The block types of GGUF files -> their numbers, or float32 to the bit as ggml's reference has it.

A row is cut into blocks, each of which holds its scales in front of (or behind) its numbers; all of
a block lies together. ``Q4_0`` to ``Q8_0`` have 32 numbers a block, with a scale and, by name
``_1``, a minimum; the ``_K`` types have 256, in eight or sixteen groups with small scales of their
own under one in float16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from checkpoint_converters.containers.gguf_header import BLOCKS
from checkpoint_converters.containers.safetensors_files import TensorHeader
from checkpoint_converters.quantised.numbers import Numbers, QuantisedTensor
from trtspec.config.storage import WeightStorage

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int8]
Parts = tuple[Whole, Floats, Floats | None]
"""Numbers ``[n, numbers]``; scales, and minima where there are such, of ``[n, groups]``: a weight
is its number times its scale, plus the minimum."""

_AT_ONCE = 1 << 10  # blocks: bounds what lies beside the result in memory


@dataclass(frozen=True, eq=False)
class BlockTensor(QuantisedTensor):
    """A tensor of blocks, which reads as its exact floats."""

    blocks: TensorHeader

    @classmethod
    def of(cls, blocks: TensorHeader) -> BlockTensor:
        def unpack() -> Numbers:
            return to_numbers(blocks.dtype, blocks.read().numpy(), blocks.shape)

        storage = STORAGES[blocks.dtype]
        return cls(blocks.name, blocks.file, "F32", blocks.shape, storage, unpack, blocks)

    def at(self, index: int) -> BlockTensor:
        return BlockTensor.of(self.blocks.at(index))

    def read(self) -> Tensor:
        raw = self.blocks.read().numpy()
        return torch.from_numpy(to_floats(self.blocks.dtype, raw)).view(self.shape)


def unblocked(headers: Mapping[str, TensorHeader]) -> dict[str, TensorHeader]:
    """The tensors, those of blocks as quantised ones."""
    return {
        name: BlockTensor.of(header) if header.dtype in BLOCKS else header
        for name, header in headers.items()
    }


def to_floats(kind: str, raw: Bytes) -> Floats:
    """Blocks of a type ``kind``, one after another ``[bytes]``, as a vector of floats."""
    numbers, size = BLOCKS[kind]
    blocks = raw.reshape(-1, size)
    out = np.empty((len(blocks), numbers), np.float32)
    for start in range(0, len(blocks), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        values, scales, minima = _PARTS[kind](blocks[part])
        groups = scales[..., None] * values.reshape(*scales.shape, -1).astype(np.float32)
        if minima is not None:
            groups += minima[..., None]
        out[part] = groups.reshape(-1, numbers)
    return out.reshape(-1)


def to_numbers(kind: str, raw: Bytes, shape: tuple[int, ...]) -> Numbers:
    """The same of a matrix ``shape`` as its numbers; offsets are rounded to float32."""
    storage, size = STORAGES[kind], BLOCKS[kind][1]
    blocks = raw.reshape(-1, size)
    rows = shape[0]
    values = np.empty(shape, np.int8).reshape(len(blocks), -1)
    scales = np.empty((len(blocks), values.shape[1] // storage.group_size), np.float32)
    offsets = np.empty_like(scales) if storage.offsets else None
    middle = _MIDDLES.get(kind, 0)
    for start in range(0, len(blocks), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        numbers, scales[part], minima = _PARTS[kind](blocks[part])
        values[part] = numbers - np.int8(middle)
        if offsets is not None and minima is not None:
            offsets[part] = minima + scales[part] * np.float32(middle)
    return Numbers(
        torch.from_numpy(values.reshape(rows, -1)),
        torch.from_numpy(scales.reshape(rows, -1)),
        offsets=None if offsets is None else torch.from_numpy(offsets.reshape(rows, -1)),
    )


def _half(blocks: Bytes, start: int) -> Floats:
    """The float16 at a byte of each block: ``[n, 1]``."""
    pair: npt.NDArray[np.float16] = np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2")
    return pair.astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """The low halves of bytes ``[..., n]``, then the high ones: ``[..., 2 n]``."""
    return np.concatenate((packed & 15, packed >> 4), axis=-1)


def _bits(packed: Bytes) -> Bytes:
    """The bits of four bytes ``[n, 4]``, lowest first: ``[n, 32]``."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def _signed(numbers: npt.NDArray[np.integer[Any]], middle: int) -> Whole:
    """Numbers in bytes, less the one that stands for zero."""
    signed: Whole = numbers.view(np.int8) - np.int8(middle)
    return signed


def _q4_0(blocks: Bytes) -> Parts:
    return _signed(_nibbles(blocks[:, 2:]), 8), _half(blocks, 0), None


def _q4_1(blocks: Bytes) -> Parts:
    return _nibbles(blocks[:, 4:]).view(np.int8), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Parts:
    numbers = _nibbles(blocks[:, 6:]) | _bits(blocks[:, 2:6]) << 4
    return _signed(numbers, 16), _half(blocks, 0), None


def _q5_1(blocks: Bytes) -> Parts:
    numbers = _nibbles(blocks[:, 8:]) | _bits(blocks[:, 4:8]) << 4
    return numbers.view(np.int8), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Parts:
    return blocks[:, 2:].view(np.int8), _half(blocks, 0), None


def _group_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight scales and eight minima of 6 bits in 12 bytes: the first four of each have bytes of
    their own, whose upper two bits are the upper ones of the last four."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate((first & 63, (rest & 15) | (first >> 6) << 4), axis=1)
    minima = np.concatenate((second & 63, (rest >> 4) | (second >> 6) << 4), axis=1)
    return scales, minima


def _scaled(blocks: Bytes, numbers: Bytes) -> Parts:
    """Numbers ``[n, 8, 32]`` with their scales and minima."""
    scales, minima = _group_scales(blocks[:, 4:16])
    scale = _half(blocks, 0) * scales.astype(np.float32)
    minimum = _half(blocks, 2) * minima.astype(np.float32)
    return numbers.reshape(len(blocks), -1).view(np.int8), scale, -minimum


def _q4_k(blocks: Bytes) -> Parts:
    return _scaled(blocks, _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32))


def _q5_k(blocks: Bytes) -> Parts:
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    shifts = np.arange(8, dtype=np.uint8)[:, None]  # group g has bit g of every byte
    high = np.right_shift(blocks[:, None, 16:48], shifts) & 1
    return _scaled(blocks, np.bitwise_or(low, high << 4))


def _q6_k(blocks: Bytes) -> Parts:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3
    scale = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    return _signed((low | high << 4).reshape(len(blocks), -1), 32), scale, None


_PARTS: Mapping[str, Callable[[Bytes], Parts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
"""Blocks ``[n, size]`` -> their parts."""
_MIDDLES = {"Q4_1": 8, "Q4_K": 8, "Q5_1": 16, "Q5_K": 16}
"""Numbers that are counted from 0 on: their middle."""
STORAGES: Mapping[str, WeightStorage] = {
    "Q4_0": WeightStorage(4, 32, "float16"),
    "Q4_1": WeightStorage(4, 32, "float16", offsets=True),
    "Q5_0": WeightStorage(8, 32, "float16"),
    "Q5_1": WeightStorage(8, 32, "float16", offsets=True),
    "Q8_0": WeightStorage(8, 32, "float16"),
    "Q4_K": WeightStorage(4, 32, "float16", offsets=True),
    "Q5_K": WeightStorage(8, 32, "float16", offsets=True),
    "Q6_K": WeightStorage(8, 16, "float16"),
}
"""What keeps their numbers; those of 5 and 6 bits in 8. Scales of the ``_K`` types, which are
products, and offsets are rounded to float16."""
