"""Layers whose values or scales are floats of 8 or 4 bits: FP8 (E4M3), FP4 (E2M1) and powers of two
(E8M0), as OCP and NVIDIA publish them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from checkpoint_converters.quantised.groups import Groups
from checkpoint_converters.quantised.modules import FLOATS, Module, scale_type
from checkpoint_converters.quantised.scheme import Layer
from trtspec.config.quantised import QuantisedTensor
from trtspec.config.storage import TABLES, WeightStorage

FP8 = "F8_E4M3"
NV_GROUP, MX_GROUP = 16, 32
"""Inputs that share a scale in NVFP4 and in OCP's Microscaling formats (MXFP4)."""


def read_fp8(module: Module, scale: str, block: tuple[int, int] | None = None) -> Layer:
    """A layer ``weight [N, K]`` in FP8, times the tensor ``scale``: one value, one per output
    (``[N]`` or ``[N, 1]``), or one per ``block`` of this many outputs and inputs."""
    n, k = module.part("weight", (FP8,), 2).shape
    header = module.part(scale, FLOATS, len(module.parts[scale].shape))
    found = tuple(size for size in header.shape if size > 1)
    if block is None:
        groups, rows = Groups(k, 0), 1 if found else n
        if found not in ((), (n,)) or len(header.shape) > 2:
            wanted = f"be one value, or have one for each of {n} outputs"
            raise module.refuse(scale, f"shape {list(header.shape)}", wanted)
    else:
        groups, rows = Groups.of(k, block[1]), block[0]
        counts = -(-n // rows), groups.count
        if found != tuple(count for count in counts if count > 1):
            told = f"have {list(counts)}, as blocks of {rows} x {block[1]} divide {[n, k]}"
            raise module.refuse(scale, f"shape {list(header.shape)}", told)

    def unpack() -> QuantisedTensor:
        scales = module.finite(scale).reshape(-1, groups.count)
        own = groups.even(scales).repeat_interleave(rows, 0)[:n].contiguous()
        return QuantisedTensor(module.parts["weight"].read(), own)

    storage = WeightStorage(8, groups.size, scale_type(header), kind="float")
    return Layer((n, k), storage, unpack)


def read_mxfp8(module: Module, scale: str) -> Layer:
    """A layer ``weight [N, K]`` in FP8 with ``scale [N, K / 32] u8``, exponents of two."""
    n, k = module.part("weight", (FP8,), 2).shape
    groups = _scales(module, scale, ("U8",), (n, k), MX_GROUP)

    def unpack() -> QuantisedTensor:
        return QuantisedTensor(module.parts["weight"].read(), groups.even(_powers(module, scale)))

    return Layer((n, k), WeightStorage(8, groups.size, "bfloat16", kind="float"), unpack)


def read_nvfp4(
    module: Module,
    packed: str,
    scale: str,
    scales: Callable[[Module], Tensor],
    input_scales: Callable[[Module], Tensor] | None = None,
) -> Layer:
    """A layer ``packed [N, K / 2] u8`` with ``scale [N, K / 16]`` in FP8. scales: combines these
    with the global scale, in float32; input_scales: of the inputs, if any."""
    n, k = _packed_shape(module, packed)
    groups = _scales(module, scale, (FP8,), (n, k), NV_GROUP)
    scaled = input_scales is not None

    def unpack() -> QuantisedTensor:
        factors = None if input_scales is None else input_scales(module)
        return _of_halves(module.parts[packed].read(), groups.even(scales(module)), factors)

    storage = WeightStorage(4, groups.size, input_scales=scaled, kind="float")
    return Layer((n, k), storage, unpack)


def read_mxfp4(module: Module, packed: str, scale: str) -> Layer:
    """A layer ``packed [N, K / 2] u8`` with ``scale [N, K / 32] u8``, exponents of two."""
    n, k = _packed_shape(module, packed)
    groups = _scales(module, scale, ("U8",), (n, k), MX_GROUP)

    def unpack() -> QuantisedTensor:
        return _of_halves(module.parts[packed].read(), groups.even(_powers(module, scale)))

    return Layer((n, k), mxfp4_storage(k), unpack)


def mxfp4_storage(inputs: int) -> WeightStorage:
    """The storage of a weight with this many inputs; bfloat16 holds every power of two that
    occurs."""
    return WeightStorage(4, Groups.of(inputs, MX_GROUP).size, "bfloat16", kind="float")


def mxfp4_weight(packed: Tensor, exponents: Tensor) -> QuantisedTensor:
    """``packed [N, K / 2] u8`` and ``exponents [N, K / 32] u8`` as a weight."""
    return _of_halves(packed, powers_of_two(exponents))


def powers_of_two(exponents: Tensor) -> Tensor:
    """E8M0 ``u8``, with a bias of 127, as float32; 255, a NaN, becomes infinity."""
    bits = exponents.int() << 23
    return torch.where(bits == 0, 1 << 22, bits).view(torch.float32)


def _powers(module: Module, scale: str) -> Tensor:
    scales = powers_of_two(module.parts[scale].read())
    if not torch.isfinite(scales).all():
        raise module.refuse(scale, "exponents of 255, which are NaN", "have none")
    return scales


def _scales(
    module: Module, scale: str, dtypes: tuple[str, ...], shape: tuple[int, int], size: int
) -> Groups:
    """The groups that have a scale for each output, after checking them."""
    n, k = shape
    groups = Groups.of(k, size)
    module.part(scale, dtypes, 2)
    module.require_shape(scale, (n, groups.count))
    return groups


def _packed_shape(module: Module, packed: str) -> tuple[int, int]:
    n, bytes_of_row = module.part(packed, ("U8",), 2).shape
    return n, 2 * bytes_of_row


def _of_halves(packed: Tensor, scales: Tensor, factors: Tensor | None = None) -> QuantisedTensor:
    """Two E2M1 per byte, the even one in the lower half, as twice their values, which are integers,
    and half their scales."""
    places = torch.stack((packed & 15, packed >> 4), dim=-1).flatten(-2)
    values = torch.tensor(TABLES["float4"], dtype=torch.int8)[places.int()]
    return QuantisedTensor(values, scales / 2, input_scales=factors)
