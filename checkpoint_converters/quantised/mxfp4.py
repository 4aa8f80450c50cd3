"""MXFP4 as gpt-oss stores its experts: 4-bit floats in blocks of 32 that share a power of two (OCP
Microscaling Formats 1.0)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from checkpoint_converters.containers.safetensors_files import TensorHeader
from checkpoint_converters.quantised.said import Said
from checkpoint_converters.quantised.small_floats import MX_GROUP, mxfp4_storage, mxfp4_weight
from trtspec.config.quantised import QuantisedTensor
from trtspec.config.storage import WeightStorage
from trtspec.errors import CheckpointError

METHOD = "mxfp4"
_BLOCKS, _SCALES = "_blocks", "_scales"


@dataclass(frozen=True, eq=False)
class BlockedExperts(TensorHeader):
    """A matrix per expert, ``[E, K, N]``. The file has ``blocks [E, N, K / 32, 16] u8``, with the
    lower half of each byte first, and ``scales [E, N, K / 32] u8``, exponents of two."""

    blocks: TensorHeader
    scales: TensorHeader

    def at(self, index: int) -> TensorHeader:
        return _Expert(self.name, self.file, self.dtype, self.shape[1:], self, index)

    def read(self) -> Tensor:
        return torch.stack([self.at(expert).read() for expert in range(self.shape[0])])


@dataclass(frozen=True, eq=False)
class _Expert(TensorHeader):
    """The matrix ``[K, N]`` of one expert; quantised it is ``[N, K]``."""

    whole: BlockedExperts
    index: int

    def read(self) -> Tensor:
        return self.weight().floats().t()

    def weight(self) -> QuantisedTensor:
        blocks, exponents = self.whole.blocks, self.whole.scales.read_index(self.index)
        if (exponents == 255).any():
            raise CheckpointError(
                f"{self.file}: tensor {self.whole.scales.name} has exponents of 255, which are "
                f"NaN, of expert {self.index}; get the checkpoint again"
            )
        return mxfp4_weight(blocks.read_index(self.index).flatten(1), exponents)

    @property
    def storage(self) -> WeightStorage:
        return mxfp4_storage(self.shape[0])


class BlockScheme:
    """Pairs of tensors ``NAME_blocks`` and ``NAME_scales`` in place of ``NAME``."""

    name = "MXFP4"

    def fold(self, headers: Mapping[str, TensorHeader]) -> dict[str, TensorHeader]:
        """The tensors, with a float tensor in place of each pair.

        Raises:
            CheckpointError: a tensor of a pair is missing, or has another dtype or shape.
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
    wanted = (experts, outputs, groups, MX_GROUP // 2), (experts, outputs, groups)
    if (blocks.shape, scales.shape) != wanted or {blocks.dtype, scales.dtype} != {"U8"}:
        raise CheckpointError(
            f"{blocks.file}: tensors {blocks.name} {blocks.dtype} {list(blocks.shape)} and "
            f"{scales.name} {scales.dtype} {list(scales.shape)} must be U8, [E, N, G, "
            f"{MX_GROUP // 2}] and [E, N, G]"
        )
    shape = (experts, groups * MX_GROUP, outputs)
    return BlockedExperts(name, blocks.file, "BF16", shape, blocks, scales)


def read_mxfp4(said: Said) -> BlockScheme:
    """The scheme. Other settings (which modules stay floats) are evident from the tensors."""
    return BlockScheme()
