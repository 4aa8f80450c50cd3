"""Part ``few_rows``: products by the kernels for few rows, of floats and of packed weights, where
part ``products`` has the library's. Where these are faster, `few_row_products` pays."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial

import torch
from torch import Tensor

from trtspec.bench.gpu_bringup.part import Case, Place
from trtspec.bench.gpu_bringup.products import Kind, Product, by_kind
from trtspec.config.storage import WeightStorage
from trtspec.formats.base import WeightFormat
from trtspec.formats.plain import FewRowFormat
from trtspec.formats.tiled import TiledFormat

_SAFE = 0x77
"""Bits of a random byte with which it is no NaN in any format."""


def cases(place: Place) -> Iterable[Case]:
    return by_kind(place, KINDS)


def _product(kind: WeightFormat, buffers: Mapping[str, Tensor], n: int) -> Product:
    call = partial(kind.product, norm=None, gated=False, residual=None)
    return lambda x: partial(call, buffers, x, None, n, None)


def _floats(weight: Tensor) -> Product:
    return _product(FewRowFormat(), {"weight": weight}, len(weight))


def _packed(kind: WeightFormat) -> Callable[[Tensor], Product]:
    """Random values and equal scales: what they are costs no time."""

    def of_weight(weight: Tensor) -> Product:
        n, k = weight.shape
        buffers = {}
        for name, spec in kind.storage(n, k, weight.dtype).items():
            buffers[name] = torch.full(spec.shape, 1, dtype=spec.dtype, device=weight.device)
        buffers["packed"].random_(256).bitwise_and_(_SAFE)
        return _product(kind, buffers, n)

    return of_weight


def _kind(scheme: WeightStorage) -> Kind:
    kind, size = TiledFormat(scheme), 4096
    return _packed(kind), kind.bytes(size, size, torch.bfloat16) / size**2


KINDS: Mapping[str, Kind] = {
    "bf16": (_floats, 2),
    "int8": _kind(WeightStorage(8)),
    "int4, groups of 32": _kind(WeightStorage(4, 32, "float16")),
    "int4, groups of 128 with zeros": _kind(WeightStorage(4, 128, "float16", zero_points=True)),
    "e4m3": _kind(WeightStorage(8, kind="float")),
    "mxfp4": _kind(WeightStorage(4, 32, kind="float")),
    "nvfp4": _kind(WeightStorage(4, 16, kind="float")),
}
