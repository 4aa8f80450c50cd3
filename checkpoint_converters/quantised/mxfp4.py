"""MXFP4 as gpt-oss stores its experts: 4-bit floats in blocks of 32 that share a power of two (OCP
Microscaling Formats 1.0). Read as floats, which bfloat16 holds exactly."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from checkpoint_converters.containers.safetensors_files import TensorHeader
from checkpoint_converters.quantised.said import Said
from trtspec.errors import CheckpointError

METHOD = "mxfp4"
_BLOCKS, _SCALES = "_blocks", "_scales"
_BLOCK = 32  # values, in 16 bytes
_BIAS = 127  # of a scale's exponent
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)


@dataclass(frozen=True, eq=False)
class BlockedExperts(TensorHeader):
    """A matrix of every expert, ``[E, K, N]``: in the file ``blocks [E, N, K / 32, 16] u8``, whose
    lower halves of bytes come first, and ``scales [E, N, K / 32] u8``, exponents of two."""

    blocks: TensorHeader
    scales: TensorHeader

    def read_index(self, index: int) -> Tensor:
        codes = self.blocks.read_index(index)
        table = torch.tensor([*_MAGNITUDES, *(-value for value in _MAGNITUDES)])
        halves = torch.stack((codes & 15, codes >> 4), dim=-1).flatten(-2)  # [N, K / 32, 32]
        exponents = self.scales.read_index(index).int() - _BIAS
        values = torch.ldexp(table[halves.long()], exponents.unsqueeze(-1))
        return values.flatten(1).t()

    def read(self) -> Tensor:
        return torch.stack([self.read_index(expert) for expert in range(self.shape[0])])


class BlockScheme:
    """Pairs of tensors ``NAME_blocks`` and ``NAME_scales`` in the place of ``NAME``."""

    name = "MXFP4"

    def fold(self, headers: Mapping[str, TensorHeader]) -> dict[str, TensorHeader]:
        """The tensors, with one of floats in place of each pair.

        Raises:
            CheckpointError: a tensor of a pair is missing, or is of another dtype or shape.
        """
        found = dict(headers)
        for name in headers:
            for suffix, other in ((_BLOCKS, _SCALES), (_SCALES, _BLOCKS)):
                whole = name.removesuffix(suffix)
                if whole != name and whole + other not in headers:
                    raise CheckpointError(
                        f"{headers[name].file}: tensor {name} ({self.name}) lacks its {whole}"
                        f"{other}; get the checkpoint again"
                    )
            if name.endswith(_BLOCKS):
                whole = name.removesuffix(_BLOCKS)
                found[whole] = _paired(whole, found.pop(name), found.pop(whole + _SCALES))
        return found


def _paired(name: str, blocks: TensorHeader, scales: TensorHeader) -> BlockedExperts:
    experts, outputs, groups = (*blocks.shape, 0, 0, 0)[:3]
    wanted = (experts, outputs, groups, _BLOCK // 2), (experts, outputs, groups)
    if (blocks.shape, scales.shape) != wanted or {blocks.dtype, scales.dtype} != {"U8"}:
        raise CheckpointError(
            f"{blocks.file}: tensors {blocks.name} {blocks.dtype} {list(blocks.shape)} and "
            f"{scales.name} {scales.dtype} {list(scales.shape)} must be U8, [E, N, G, "
            f"{_BLOCK // 2}] and [E, N, G]"
        )
    shape = (experts, groups * _BLOCK, outputs)
    return BlockedExperts(name, blocks.file, "BF16", shape, blocks, scales)


def read_mxfp4(said: Said) -> BlockScheme:
    """The scheme; what else the settings say (modules that are floats) the tensors show."""
    return BlockScheme()
