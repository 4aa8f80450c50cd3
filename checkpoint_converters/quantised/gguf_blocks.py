"""The block types of GGUF files -> quantised tensors, whose floats match ggml's bit for bit.

A row is divided into blocks that are stored contiguously, each with its scales before (or after)
its values. ``Q4_0`` to ``Q8_0`` have 32 values per block, with a scale and, if the name ends in
``_1``, a minimum. The ``_K`` types have 256, in eight or sixteen groups with small scales relative
to a float16 one. ``IQ4_NL``, ``IQ4_XS`` and ``MXFP4`` store indices into a table of 16 values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from checkpoint_converters.containers.gguf_header import BLOCKS
from checkpoint_converters.containers.safetensors_files import TensorHeader
from checkpoint_converters.quantised.header import QuantisedHeader
from trtspec.config.quantised import QuantisedTensor
from trtspec.config.storage import TABLES, WeightStorage

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int8]
Parts = tuple[Whole, Floats, Floats | None]
"""Values ``[n, values]``; scales and, for some types, minima ``[n, groups]``: a weight is its value
times its scale, plus the minimum."""

_AT_ONCE = 1 << 10  # blocks: bounds what lies beside the result in memory


def unblocked(headers: Mapping[str, TensorHeader]) -> dict[str, TensorHeader]:
    """The tensors, with those in blocks as quantised ones."""
    return {
        name: BlockTensor.of(header) if header.dtype in BLOCKS else header
        for name, header in headers.items()
    }


@dataclass(frozen=True, eq=False)
class BlockTensor(QuantisedHeader):
    """A tensor in blocks; so is each entry of its first dimension."""

    blocks: TensorHeader

    @classmethod
    def of(cls, blocks: TensorHeader) -> BlockTensor:
        storage, unpack = STORAGES[blocks.dtype], partial(_unpack, blocks)
        return cls(blocks.name, blocks.file, "F32", blocks.shape, storage, unpack, blocks)

    def at(self, index: int) -> BlockTensor:
        return BlockTensor.of(self.blocks.at(index))


def _unpack(header: TensorHeader) -> QuantisedTensor:
    """A tensor in blocks ``[..., K]`` as one ``[N, K]``. Unsigned values are shifted down by half
    their range, which the zero points compensate."""
    kind, depth = header.dtype, header.shape[-1]
    storage, (size, bytes_of_block) = STORAGES[kind], BLOCKS[kind]
    blocks = header.read().numpy().reshape(-1, bytes_of_block)
    values = np.empty((len(blocks), size), np.int8)
    scales = np.empty((len(blocks), size // storage.group_size), np.float32)
    minima = np.empty_like(scales) if storage.minima else None
    middle = 1 << (_COUNTED[kind] - 1) if storage.minima else 0
    for start in range(0, len(blocks), _AT_ONCE):
        part = slice(start, start + _AT_ONCE)
        counted, scales[part], least = _PARTS[kind](blocks[part])
        values[part] = counted - np.int8(middle)
        if minima is not None and least is not None:
            minima[part] = least
    groups = len(blocks) * size // depth, -1
    found = QuantisedTensor(
        torch.from_numpy(values.reshape(-1, depth)), torch.from_numpy(scales.reshape(groups))
    )
    if minima is None:
        return found
    zero_points = torch.tensor(-middle, dtype=torch.int8).expand(found.scales.shape)
    return replace(found, zero_points=zero_points, minima=torch.from_numpy(minima.reshape(groups)))


def _half(blocks: Bytes, start: int) -> Floats:
    """The float16 at one byte offset of each block: ``[n, 1]``."""
    pair: npt.NDArray[np.float16] = np.ascontiguousarray(blocks[:, start : start + 2]).view("<f2")
    return pair.astype(np.float32)


def _nibbles(packed: Bytes) -> Bytes:
    """The low halves of bytes ``[..., n]``, then the high ones: ``[..., 2 n]``."""
    return np.concatenate((packed & 15, packed >> 4), axis=-1)


def _bits(packed: Bytes) -> Bytes:
    """The bits of four bytes ``[n, 4]``, lowest first: ``[n, 32]``."""
    return np.unpackbits(packed, axis=-1, bitorder="little")


def _signed(values: npt.NDArray[np.integer[Any]], middle: int) -> Whole:
    """Values in bytes, minus the one that represents zero."""
    signed: Whole = values.view(np.int8) - np.int8(middle)
    return signed


def _q4_0(blocks: Bytes) -> Parts:
    return _signed(_nibbles(blocks[:, 2:]), 8), _half(blocks, 0), None


def _q4_1(blocks: Bytes) -> Parts:
    return _nibbles(blocks[:, 4:]).view(np.int8), _half(blocks, 0), _half(blocks, 2)


def _q5_0(blocks: Bytes) -> Parts:
    values = _nibbles(blocks[:, 6:]) | _bits(blocks[:, 2:6]) << 4
    return _signed(values, 16), _half(blocks, 0), None


def _q5_1(blocks: Bytes) -> Parts:
    values = _nibbles(blocks[:, 8:]) | _bits(blocks[:, 4:8]) << 4
    return values.view(np.int8), _half(blocks, 0), _half(blocks, 2)


def _q8_0(blocks: Bytes) -> Parts:
    return blocks[:, 2:].view(np.int8), _half(blocks, 0), None


def _group_scales(packed: Bytes) -> tuple[Bytes, Bytes]:
    """Eight scales and eight minima of 6 bits in 12 bytes: the first four of each have their own
    bytes, whose upper two bits belong to the last four."""
    first, second, rest = packed[:, :4], packed[:, 4:8], packed[:, 8:]
    scales = np.concatenate((first & 63, (rest & 15) | (first >> 6) << 4), axis=1)
    minima = np.concatenate((second & 63, (rest >> 4) | (second >> 6) << 4), axis=1)
    return scales, minima


def _scaled(blocks: Bytes, values: Bytes) -> Parts:
    """Values ``[n, 8, 32]`` with their scales and minima."""
    scales, minima = _group_scales(blocks[:, 4:16])
    scale = _half(blocks, 0) * scales.astype(np.float32)
    minimum = _half(blocks, 2) * minima.astype(np.float32)
    return values.reshape(len(blocks), -1).view(np.int8), scale, -minimum


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


def _q2_k(blocks: Bytes) -> Parts:
    shifts = np.arange(0, 8, 2, dtype=np.uint8)[:, None]
    values = blocks[:, 16:80].reshape(-1, 2, 1, 32) >> shifts & 3
    scale = _half(blocks, 80) * (blocks[:, :16] & 15).astype(np.float32)
    minimum = _half(blocks, 82) * (blocks[:, :16] >> 4).astype(np.float32)
    return values.reshape(len(blocks), -1).view(np.int8), scale, -minimum


def _q3_k(blocks: Bytes) -> Parts:
    """Bits in 32 bytes mark values that are not reduced by 4; 16 scales of 6 bits take 12 bytes,
    with their upper two bits in the last four."""
    pairs, bits = np.arange(0, 8, 2, dtype=np.uint8)[:, None], np.arange(8, dtype=np.uint8)[:, None]
    low = (blocks[:, 32:96].reshape(-1, 2, 1, 32) >> pairs & 3).reshape(len(blocks), -1)
    high = (blocks[:, None, :32] >> bits & 1).reshape(len(blocks), -1)
    packed = blocks[:, 96:108]
    upper = (packed[:, None, 8:] >> pairs & 3).reshape(len(blocks), -1)
    scales = _signed(_nibbles(packed[:, :8]) | upper << 4, 32)
    return _signed(low | high << 2, 4), _half(blocks, 108) * scales.astype(np.float32), None


def _iq4_nl(blocks: Bytes) -> Parts:
    return _looked_up("iq4", _nibbles(blocks[:, 2:])), _half(blocks, 0), None


def _iq4_xs(blocks: Bytes) -> Parts:
    """Scales of 6 bits, with the upper two bits of all eight packed into two bytes."""
    upper: npt.NDArray[np.uint16] = np.ascontiguousarray(blocks[:, 2:4]).view("<u2")
    shifts = np.arange(0, 16, 2, dtype=np.uint16)
    pairs = np.stack((blocks[:, 4:8] & 15, blocks[:, 4:8] >> 4), axis=-1).reshape(len(blocks), -1)
    scales = _signed(pairs | (upper >> shifts & 3).astype(np.uint8) << 4, 32)
    values = _nibbles(blocks[:, 8:].reshape(-1, 8, 16)).reshape(len(blocks), -1)
    return _looked_up("iq4", values), _half(blocks, 0) * scales.astype(np.float32), None


def _mxfp4(blocks: Bytes) -> Parts:
    """Exponents of two, reduced by one because the table has doubled values."""
    scales: Floats = np.ldexp(np.float32(1), blocks[:, :1].astype(np.int32) - 128)
    return _looked_up("float4", _nibbles(blocks[:, 1:])), scales, None


def _looked_up(table: str, places: Bytes) -> Whole:
    values: Whole = np.array(TABLES[table], np.int8)[places]
    return values


_PARTS: Mapping[str, Callable[[Bytes], Parts]] = {
    "Q4_0": _q4_0,
    "Q4_1": _q4_1,
    "Q5_0": _q5_0,
    "Q5_1": _q5_1,
    "Q8_0": _q8_0,
    "Q2_K": _q2_k,
    "Q3_K": _q3_k,
    "Q4_K": _q4_k,
    "Q5_K": _q5_k,
    "Q6_K": _q6_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "MXFP4": _mxfp4,
}
"""Decoders from blocks ``[n, size]`` to their parts."""
_COUNTED = {"Q2_K": 2, "Q4_1": 4, "Q4_K": 4, "Q5_1": 5, "Q5_K": 5}
"""Bits of unsigned values."""
STORAGES: Mapping[str, WeightStorage] = {
    "Q4_0": WeightStorage(4, 32, "float16"),
    "Q4_1": WeightStorage(4, 32, "float16", minima=True),
    "Q5_0": WeightStorage(8, 32, "float16"),
    "Q5_1": WeightStorage(8, 32, "float16", minima=True),
    "Q8_0": WeightStorage(8, 32, "float16"),
    "Q2_K": WeightStorage(4, 16, "float16", minima=True),
    "Q3_K": WeightStorage(4, 16, "float16"),
    "Q4_K": WeightStorage(4, 32, "float16", minima=True),
    "Q5_K": WeightStorage(8, 32, "float16", minima=True),
    "Q6_K": WeightStorage(8, 16, "float16"),
    "IQ4_NL": WeightStorage(4, 32, "float16", kind="iq"),
    "IQ4_XS": WeightStorage(4, 32, "float16", kind="iq"),
    "MXFP4": WeightStorage(4, 32, "bfloat16", kind="float"),
}
"""How their values are stored: 2 and 3 bits in 4; 5 and 6 bits in 8. Scales of the ``_K`` types and
of ``IQ4_XS``, which are products, and minima are rounded to float16."""
