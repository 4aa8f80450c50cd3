"""The block types of GGUF files -> float32, to the bit as ggml's reference has it.

A row is cut into blocks, each of which holds its scales in front of (or behind) its numbers; all of
a block lies together. ``Q4_0`` to ``Q8_0`` have 32 numbers a block, with a scale and, by name
``_1``, a minimum; the ``_K`` types have 256, in eight or sixteen groups with small scales of their
own under one in float16.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from checkpoint_converters.containers.gguf_header import BLOCKS
from checkpoint_converters.containers.safetensors_files import TensorHeader

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]

_AT_ONCE = 1 << 10  # blocks: bounds what lies beside the result in memory


@dataclass(frozen=True, eq=False)
class FloatsOfBlocks(TensorHeader):
    """A tensor of blocks as float32, made of them when it is read."""

    blocks: TensorHeader

    def read(self) -> Tensor:
        raw = self.blocks.read().numpy()
        return torch.from_numpy(to_floats(self.blocks.dtype, raw)).view(self.shape)


def as_floats(headers: Mapping[str, TensorHeader]) -> dict[str, TensorHeader]:
    """The tensors, those of blocks as floats."""
    return {
        name: FloatsOfBlocks(header.name, header.file, "F32", header.shape, header)
        if header.dtype in BLOCKS
        else header
        for name, header in headers.items()
    }


def to_floats(kind: str, raw: Bytes) -> Floats:
    """Blocks of a type ``kind``, one after another ``[bytes]``, as a vector of floats."""
    numbers, size = BLOCKS[kind]
    blocks = raw.reshape(-1, size)
    out = np.empty((len(blocks), numbers), np.float32)
    for start in range(0, len(blocks), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        out[part] = _FLOATS[kind](blocks[part])
    return out.reshape(-1)


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


def _q4_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - 8)


def _q4_1(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Floats:
    numbers = _nibbles(blocks[:, 6:]) | _bits(blocks[:, 2:6]) << 4
    return _half(blocks, 0) * (numbers.astype(np.float32) - 16)


def _q5_1(blocks: Bytes) -> Floats:
    numbers = _nibbles(blocks[:, 8:]) | _bits(blocks[:, 4:8]) << 4
    return _half(blocks, 0) * numbers.astype(np.float32) + _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Floats:
    return _half(blocks, 0) * blocks[:, 2:].view(np.int8).astype(np.float32)


def _group_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight scales and eight minima of 6 bits in 12 bytes: the first four of each have bytes of
    their own, whose upper two bits are the upper ones of the last four."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate((first & 63, (rest & 15) | (first >> 6) << 4), axis=1)
    minima = np.concatenate((second & 63, (rest >> 4) | (second >> 6) << 4), axis=1)
    return scales, minima


def _scaled(blocks: Bytes, numbers: Bytes) -> Floats:
    """Numbers ``[n, 8, 32]`` times their scales, less their minima."""
    scales, minima = _group_scales(blocks[:, 4:16])
    scale = _half(blocks, 0) * scales.astype(np.float32)
    minimum = _half(blocks, 2) * minima.astype(np.float32)
    groups = scale[..., None] * numbers.astype(np.float32) - minimum[..., None]
    return groups.reshape(len(blocks), -1)


def _q4_k(blocks: Bytes) -> Floats:
    return _scaled(blocks, _nibbles(blocks[:, 16:].reshape(-1, 4, 32)).reshape(-1, 8, 32))


def _q5_k(blocks: Bytes) -> Floats:
    low = _nibbles(blocks[:, 48:].reshape(-1, 4, 32)).reshape(-1, 8, 32)
    shifts = np.arange(8, dtype=np.uint8)[:, None]  # group g has bit g of every byte
    high = np.right_shift(blocks[:, None, 16:48], shifts) & 1
    return _scaled(blocks, np.bitwise_or(low, high << 4))


def _q6_k(blocks: Bytes) -> Floats:
    low = _nibbles(blocks[:, :128].reshape(-1, 2, 64)).reshape(-1, 2, 4, 32)
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    high = blocks[:, 128:192].reshape(-1, 2, 1, 32) >> shifts & 3
    numbers = (low | high << 4).astype(np.float32) - 32
    scale = _half(blocks, 208) * blocks[:, 192:208].view(np.int8).astype(np.float32)
    groups = scale[..., None] * numbers.reshape(-1, 16, 16)
    return groups.reshape(len(blocks), -1)


_FLOATS: Mapping[str, Callable[[Bytes], Floats]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
}
"""Blocks ``[n, size]`` -> numbers ``[n, numbers]``."""
