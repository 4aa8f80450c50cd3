"""Times the products of a model's layers by weights of 16, 8 and 4 bits, in one interleaved run.

    python -m trtspec.bench.products [--shape 1b] [--layers 4] [--rows 1 2 4 8] [--rounds 9]

Each round makes the products of all layers once with every kind of weights, beside a sample of the
memory's speed, so that a slow moment hits all alike. *Floor*: the time to read the bytes of that
kind of weights alone, at the best speed sampled.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch
from torch import Tensor

from trtspec.bench.report.floor import MemorySpeed
from trtspec.bench.synthetic.sizes import SIZES, Sizes
from trtspec.engine.memory import in_large_pages
from trtspec.ops.linear import PANEL, linear
from trtspec.ops.linear_quantised import (
    OUTPUTS,
    QuantisedWeights,
    inputs_per_block,
    linear_quantised,
    num_groups,
)

ROWS = (1, 2, 4, 8, 12, 16, 64, 512)
SETTLING = 0.02
"""Seconds after a bandwidth sample until its threads no longer spin."""

Product = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Contender:
    """The products of all layers with one kind of weights, and the weights' bytes."""

    name: str
    num_bytes: int
    products: tuple[tuple[int, Product], ...]  # with their numbers of inputs

    def seconds(self, inputs: dict[int, Tensor]) -> float:
        """Time of all products in sequence, after running the same once: calls of an engine repeat
        them, and threads remember what is read next."""
        for _ in range(2):
            began = time.perf_counter()
            for depth, product in self.products:
                product(inputs[depth])
        return time.perf_counter() - began


def matrices(shape: Sizes) -> tuple[tuple[int, int], ...]:
    """Inputs and outputs of a layer's products: q/k/v, o, gate and up, down."""
    hidden, query, between = shape.hidden_size, shape.query_size, shape.intermediate_size
    return (
        (hidden, query + 2 * shape.kv_size),
        (query, hidden),
        (hidden, 2 * between),
        (between, hidden),
    )


def _placed(weights: Tensor) -> Tensor:
    """Weights placed as in engines."""
    return in_large_pages({"": weights})[""]


def of_bfloat16(depth: int, width: int) -> tuple[int, Product]:
    """Bytes of a matrix, and its product."""
    packed = _placed(torch.randn(-(-width // PANEL), depth, PANEL).bfloat16())
    return packed.nbytes, lambda x: linear(x, packed, None, width)


def of_codes(
    depth: int, width: int, bits: int, group: int, scale_dtype: torch.dtype
) -> tuple[int, Product]:
    """Quantised weights, with inputs quantised to 8 bits."""
    panels = -(-width // OUTPUTS)
    blocks = -(-depth // inputs_per_block(bits))
    packed = torch.randint(256, (panels, blocks, OUTPUTS, 4), dtype=torch.uint8)
    scales = torch.full((panels, num_groups(depth, group), OUTPUTS), 1e-3, dtype=scale_dtype)
    weights = QuantisedWeights(_placed(packed), _placed(scales))

    def product(x: Tensor) -> Tensor:
        return linear_quantised(x, weights, None, width, bits, group, 8)

    return packed.nbytes + scales.nbytes, product


def contenders(shape: Sizes, layers: int) -> list[Contender]:
    """All kinds of weights, for that many layers."""
    kinds: list[tuple[str, Callable[[int, int], tuple[int, Product]]]] = [
        ("bfloat16", of_bfloat16),
        ("8 bits", lambda k, n: of_codes(k, n, 8, 0, torch.float32)),
        ("4 bits, groups of 32", lambda k, n: of_codes(k, n, 4, 32, torch.float16)),
    ]
    found = []
    for name, make in kinds:
        made = [(k, *make(k, n)) for _ in range(layers) for k, n in matrices(shape)]
        products = tuple((k, product) for k, _, product in made)
        found.append(Contender(name, sum(num_bytes for _, num_bytes, _ in made), products))
    return found


def compare(
    shape: Sizes, layers: int, rows: Sequence[int], rounds: int, speed: MemorySpeed
) -> None:
    """Prints the median of the rounds for each kind of weights and number of rows."""
    kinds = contenders(shape, layers)
    weights = layers * sum(k * n for k, n in matrices(shape))
    depths = {depth for depth, _ in matrices(shape)}
    first: dict[str, float] = {}
    for count in rows:
        inputs = {depth: torch.randn(count, depth).bfloat16() for depth in depths}
        times: dict[str, list[float]] = {kind.name: [] for kind in kinds}
        for turn in range(rounds):
            speed.sample()
            time.sleep(SETTLING)
            for kind in kinds[:: -1 if turn % 2 else 1]:
                times[kind.name].append(kind.seconds(inputs))
        for kind in kinds:
            taken = median(times[kind.name])
            first.setdefault(kind.name, taken)
            print(
                f"rows {count:3}  {kind.name:20} {taken * 1e3:8.2f} ms, best"
                f" {min(times[kind.name]) * 1e3:8.2f}; floor share"
                f" {kind.num_bytes / speed.best / taken:4.2f}; x {taken / first[kind.name]:5.2f} of"
                f" the first rows; bfloat16 takes x"
                f" {median(times['bfloat16']) / taken:4.2f};"
                f" {count * weights / taken / 1e9:5.0f} G multiply-adds/s",
                flush=True,
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shape", choices=sorted(SIZES), default="1b")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--rows", type=int, nargs="+", default=ROWS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    torch.manual_seed(0)
    speed = MemorySpeed()
    compare(SIZES[arguments.shape], arguments.layers, arguments.rows, arguments.rounds, speed)
    print(
        f"{arguments.threads} threads, {torch.ops.trtspec._get_isa()}, {speed.best / 1e9:.1f} GB/s"
    )


if __name__ == "__main__":
    main()
