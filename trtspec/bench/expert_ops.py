"""Times a mixture of experts beside reading the experts that its rows choose.

python -m trtspec.bench.expert_ops [--threads N] [--seconds S]
"""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch

from trtspec.bench.ops import begin, beside_reading
from trtspec.bench.report.floor import MemorySpeed, seconds_per_call
from trtspec.ops import moe, pack_linear
from trtspec.ops.linear_quantised import pack_groups, pack_values
from trtspec.ops.moe import Coding, ExpertWeights, Gating, expert_bytes_read

ROWS = (1, 8, 32, 512)
SETS = 16
"""Choices of experts that calls cycle through, so that no cache holds what one reads."""


class MixtureShape(NamedTuple):
    """A layer's mixture; its numbers are Qwen3-30B-A3B's."""

    num_experts: int = 128
    top_k: int = 8
    hidden: int = 2048
    inner: int = 768


def floats(shape: MixtureShape, outputs: int, inputs: int, dtype: torch.dtype) -> ExpertWeights:
    """Random float weights, the same for all experts, each with its own memory."""
    one = pack_linear(torch.randn(outputs, inputs).to(dtype) / inputs**0.5)
    return ExpertWeights(one.repeat(shape.num_experts, 1, 1, 1))


def codes(shape: MixtureShape, outputs: int, inputs: int, coding: Coding) -> ExpertWeights:
    """The same, quantised."""
    top = 1 << coding.bits - 1
    packed = pack_values(torch.randint(-top, top, (outputs, inputs)).to(torch.int8), coding.bits)
    scales = pack_groups(torch.rand(outputs, inputs // coding.group_size) / top / inputs**0.5)
    repeated = (each.repeat(shape.num_experts, *(1,) * each.dim()) for each in (packed, scales))
    return ExpertWeights(*repeated)


def bench(
    shape: MixtureShape,
    name: str,
    layers: tuple[ExpertWeights, ExpertWeights],
    coding: Coding,
    rows: int,
    speed: MemorySpeed,
    seconds: float,
) -> None:
    """Rows that choose evenly and each for itself."""
    speed.sample()
    x = torch.randn(rows, shape.hidden).bfloat16()
    choices = [torch.rand(rows, shape.num_experts).topk(shape.top_k) for _ in range(SETS)]

    calls = [
        partial(moe, x, chosen, weights, shape.inner, *layers, coding, Gating())
        for weights, chosen in choices
    ]
    before = expert_bytes_read()
    for call in calls:
        call()
    size = (expert_bytes_read() - before) // SETS
    taken = seconds_per_call(calls, seconds)
    operations = 2 * rows * shape.top_k * 3 * shape.hidden * shape.inner
    parts = (part for layer in layers for part in layer if part is not None)
    one = sum(part[0].nbytes for part in parts)
    print(
        f"experts {name:8} rows {rows:4}: {taken * 1e3:8.3f} ms, {size / one:6.1f} experts, "
        f"{size / 1e6:7.1f} MB, {size / taken / 1e9:5.1f} GB/s, "
        f"{operations / taken / 1e9:7.1f} GFLOP/s   {beside_reading(size, taken, speed)}",
        flush=True,
    )


def main() -> None:
    shape, (seconds, speed) = MixtureShape(), begin("Times a mixture of experts.")
    sizes = ((2 * shape.inner, shape.hidden), (shape.hidden, shape.inner))
    kinds = {"bfloat16": Coding(), "8 bits": Coding(8, 128, True), "4 bits": Coding(4, 128, True)}
    for name, coding in kinds.items():
        up, down = (
            codes(shape, *size, coding) if coding.bits else floats(shape, *size, torch.bfloat16)
            for size in sizes
        )
        for rows in ROWS:
            bench(shape, name, (up, down), coding, rows, speed, seconds)


if __name__ == "__main__":
    main()
