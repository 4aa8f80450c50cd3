"""Part ``products``: products with the shapes of an 8B model by rows, in the kinds that run here,
beside the floor of reading their weights; and whether a row's bits depend on the other rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.bench.gpu_bringup.part import Case, Place
from trtspec.bench.report.floor import copies, measure_bandwidth, seconds_on_device
from trtspec.formats.registry import IN_ROWS

SHAPES = ((6144, 4096), (4096, 4096), (28672, 4096), (4096, 14336), (128256, 4096), (32768, 4096))
"""Outputs and inputs: q/k/v, o, gate and up, down, the head, and that of a draft."""
ROWS = (1, 8, 16, 24, 32, 64, 128, 192, 256)
_E4M3 = torch.float8_e4m3fn

Product = Callable[[Tensor], Callable[[], Tensor]]
"""From rows ``x [M, K] bf16`` to the call that multiplies them, with prepared inputs."""
Kind = tuple[Callable[[Tensor], Product], float]
"""What makes the product of a weight ``[N, K] bf16``, and the bytes of an element of it."""


def cases(place: Place) -> Iterable[Case]:
    return by_kind(place, KINDS)


def by_kind(place: Place, kinds: Mapping[str, Kind]) -> Iterable[Case]:
    """A case for every shape and kind."""
    shapes, rows = (((64, 32),), (1, 16)) if place.is_rehearsal else (SHAPES, ROWS)
    speed = measure_bandwidth(place.device)
    for shape in shapes:
        for name, kind in kinds.items():
            key = {"outputs": shape[0], "inputs": shape[1], "kind": name}
            yield Case(key, partial(product, place.device, shape, kind, rows, speed))


def product(
    device: str, shape: tuple[int, int], kind: Kind, rows: Sequence[int], speed: float
) -> Mapping[str, Any]:
    """Microseconds by rows, followed by "differs" if row 0 has other bits than alone."""
    make, bytes_of_weight = kind
    size = int(shape[0] * shape[1] * bytes_of_weight)
    weights = torch.randn(min(copies(size), 16), *shape, dtype=torch.bfloat16, device=device)
    made = [make(weight) for weight in weights * shape[1] ** -0.5]
    x = torch.randn(max(rows), shape[1], dtype=torch.bfloat16, device=device)
    alone = made[0](x[:1])()[0].cpu()
    figures: dict[str, Any] = {"floor us": 1e6 * size / speed}
    for count in rows:
        calls = [each(x[:count]) for each in made]
        taken = 1e6 * seconds_on_device(calls, 0.02, device)
        differs = "" if torch.equal(calls[0]()[0].cpu(), alone) else " differs"
        figures[f"{count} rows us"] = f"{taken:.4g}{differs}"
    return figures


def _plain(weight: Tensor) -> Product:
    return lambda x: partial(F.linear, x, weight)


def _float32_out(weight: Tensor) -> Product:
    """As in a head."""
    call = partial(IN_ROWS.head.product, norm=None, gated=False, residual=None)
    return lambda x: partial(call, {"weight": weight}, x, None, len(weight), torch.float32)


def _scaled(weight: Tensor) -> Product:
    held, scale = _e4m3(weight)

    def of_rows(x: Tensor) -> Callable[[], Tensor]:
        given, of_given = _e4m3(x)
        call = partial(torch._scaled_mm, given, held.t(), of_given, scale.t())
        return partial(call, out_dtype=torch.bfloat16)

    return of_rows


def _e4m3(x: Tensor) -> tuple[Tensor, Tensor]:
    """``[M, K]`` in 8 bits, and the scales of the rows ``[M, 1] f32``."""
    scale = x.float().abs().amax(1, keepdim=True) / torch.finfo(_E4M3).max
    return (x.float() / scale).to(_E4M3), scale


KINDS: Mapping[str, Kind] = {
    "bf16": (_plain, 2),
    "bf16 to f32": (_float32_out, 2),
    "e4m3, scales of rows": (_scaled, 1),
}
