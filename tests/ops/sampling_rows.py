"""Sampling values of rows, for tests of the ops that sample."""

from __future__ import annotations

from dataclasses import dataclass, fields

import torch
from torch import Tensor


@dataclass
class Rows:
    temperature: Tensor
    top_k: Tensor
    top_p: Tensor
    min_p: Tensor
    seed: Tensor
    sample_index: Tensor
    output_index: Tensor

    @classmethod
    def same(
        cls,
        rows: int,
        temperature: float = 1.0,
        top_k: int = 0,
        top_p: float = 1.0,
        min_p: float = 0.0,
    ) -> Rows:
        zeros = torch.zeros(rows, dtype=torch.int64)
        return cls(
            torch.full((rows,), temperature),
            torch.full((rows,), top_k, dtype=torch.int32),
            torch.full((rows,), top_p),
            torch.full((rows,), min_p),
            torch.arange(rows),
            zeros,
            zeros.clone(),
        )

    @classmethod
    def random(cls, rows: int, generator: torch.Generator) -> Rows:
        def choose(values: list[float]) -> Tensor:
            picks = torch.randint(len(values), (rows,), generator=generator)
            return torch.tensor(values)[picks]

        def integers(low: int, high: int) -> Tensor:
            return torch.randint(low, high, (rows,), generator=generator)

        return cls(
            choose([0.0, 0.7, 1.0, 1.0, 2.5, 0.01, 1e-6]),
            choose([0, 0, 0, -1, 1, 2, 5, 50, 100000]).int(),
            choose([1.0, 1.0, 0.9, 0.5, 0.0, 0.999, 0.1]),
            choose([0.0, 0.0, 0.0, 0.1, 0.5, 1.0]),
            integers(-(2**62), 2**62),
            integers(0, 5),
            integers(0, 10000),
        )

    def args(self) -> tuple[Tensor, ...]:
        return tuple(getattr(self, field.name) for field in fields(self))

    def at(self, rows: slice) -> tuple[Tensor, ...]:
        return tuple(x[rows] for x in self.args())


def random_logits(case: int, rows: int, generator: torch.Generator) -> Tensor:
    """Logits of all kinds: small and large vocabularies, ties, -inf, rows without a token."""
    high = 600 if case % 6 else 20000
    vocab = int(torch.randint(1, high, (), generator=generator))
    logits = torch.randn(rows, vocab, generator=generator) * (1.0, 3.0, 8.0)[case % 3]
    if case % 4 == 1:
        logits = (logits * 2).round() / 2
    if case % 5 == 1:
        logits[torch.rand(rows, vocab, generator=generator) < 0.5] = -float("inf")
    if case % 7 == 1:
        logits[0, vocab // 2] = float("nan")
        logits[1] = -float("inf")
        logits[2, 0] = float("inf")
    return logits
