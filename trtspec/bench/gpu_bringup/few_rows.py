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
from trtspec.formats.registry import IN_ROWS, for_few_rows
from trtspec.formats.tiled import TiledFormat

_SAFE = 0x77
"""Bits of a random byte with which it is no NaN in any format."""


def cases(place: Place) -> Iterable[Case]:
    return by_kind(place, KINDS)


def _product(kind: WeightFormat, buffers: Mapping[str, Tensor], n: int) -> Product:
    call = partial(kind.product, norm=None, gated=False, residual=None)
    return lambda x: partial(call, buffers, x, None, n, None)


def _floats(weight: Tensor) -> Product:
    return _product(for_few_rows(IN_ROWS.head), {"weight": weight}, len(weight))


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


def _kind(scheme: WeightStorage) -> tuple[str, Kind]:
    kind, size = TiledFormat(scheme), 4096
    zeros = ", zero points" if scheme.zero_points else ""
    name = f"{kind.name}, groups of {scheme.group_size}{zeros}"
    return name, (_packed(kind), kind.bytes(size, size, torch.bfloat16) / size**2)


KINDS: Mapping[str, Kind] = {
    "bf16": (_floats, 2),
    **dict(
        _kind(scheme)
        for scheme in (
            WeightStorage(8),
            WeightStorage(4, 32, "float16"),
            WeightStorage(4, 128, "float16", zero_points=True),
            WeightStorage(8, kind="float"),
            WeightStorage(4, 32, kind="float"),
            WeightStorage(4, 16, kind="float"),
        )
    ),
}
