"""Walks of requests over states, and how a call of an op is compared with its reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import accumulate

import torch
from torch import Tensor

from trtspec.ops.state_walk import StateWalk

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
NEAR = {torch.float32: 1e-5, torch.bfloat16: 2e-2, torch.float16: 2e-3}


@dataclass(frozen=True)
class Rows:
    """Of one request: a chain of ``count`` certain rows, or with ``parents`` of all but the root, a
    tree. slot: its state, -1: padding. is_new: it has no committed tokens."""

    slot: int
    count: int = 1
    parents: tuple[int, ...] | None = None
    is_new: bool = False

    @property
    def num_rows(self) -> int:
        return self.count if self.parents is None else 1 + len(self.parents)


TREE = (0, 0, 1, 2, 1, 3, 6)
CASES: dict[str, list[Rows]] = {
    "decode": [Rows(2)],
    "prompt": [Rows(1, 9, is_new=True)],
    "short prompts": [Rows(1, 1, is_new=True), Rows(0, 2, is_new=True), Rows(3, 3, is_new=True)],
    "chain": [Rows(0, parents=(0, 1, 2))],
    "mixed": [
        Rows(3, 4), Rows(-1, 2), Rows(0, parents=TREE), Rows(4, 0), Rows(5, parents=()),
        Rows(1, parents=TREE, is_new=True), Rows(2, 1),
    ],
    "a wide tree": [Rows(0, parents=tuple(max(0, i // 3 - 1) for i in range(1, 90)))],
}  # fmt: skip
NUM_STATES, EXTRA = 7, 2


def make_walk(requests: Sequence[Rows], extra: int = 0) -> StateWalk:
    """The walk over the rows of requests, and ``extra`` ones behind them."""
    counts = [each.num_rows for each in requests]
    masks = []
    for each in requests:
        if each.parents is None:
            masks += [0] * each.count
            continue
        own = [1]
        for i, parent in enumerate(each.parents, 1):
            own.append(own[parent] | 1 << i)
        masks += own
    words = [[_signed(mask >> shift) for shift in (0, 64)] for mask in masks + [0] * extra]
    return StateWalk(
        torch.tensor([each.slot for each in requests], dtype=torch.int32),
        torch.tensor([0, *accumulate(counts)], dtype=torch.int32),
        torch.tensor([0 if each.is_new else 5 for each in requests], dtype=torch.int32),
        torch.tensor([each.parents is not None for each in requests]),
        torch.tensor(words, dtype=torch.int64).view(-1, 2),
    )


def _signed(bits: int) -> int:
    word = bits & (1 << 64) - 1
    return word - (1 << 64) if word >> 63 else word


def noise(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)


Call = Callable[[Sequence[Tensor], StateWalk, Sequence[Tensor]], Tensor]
"""Of an op: what the rows bring, where they go, the buffers, which are written."""


def paths(requests: Sequence[Rows]) -> list[tuple[Rows, list[int]]]:
    """Of every row of every request that is not padding: the request, and its path from the first
    row of the call, by rows of the call."""
    found, first = [], 0
    for each in requests:
        ways: list[list[int]] = []
        for i in range(each.num_rows):
            parent = i - 1 if each.parents is None else ([-1, *each.parents])[i]
            ways.append([*(ways[parent] if parent >= 0 else []), first + i])
        if each.slot >= 0:
            found += [(each, way) for way in ways]
        first += each.num_rows
    return found


def assert_rows_are_alone(call: Call, brought: Sequence[Tensor], requests: Sequence[Rows],
                          buffers: Callable[[], list[Tensor]]) -> None:  # fmt: skip
    """The bits of every row are those of its path fed row by row, and a state is the one behind the
    last certain row."""
    together = buffers()
    out = call(brought, make_walk(requests, EXTRA), together)
    for each, way in paths(requests):
        alone = buffers()
        for i, row in enumerate(way):
            walk = make_walk([Rows(each.slot, is_new=each.is_new and i == 0)])
            single = call([x[row : row + 1] for x in brought], walk, alone)
            is_certain = each.parents is None or i == 0
            if i == len(way) - 1:
                assert torch.equal(single[0], out[row])
            if is_certain and (each.parents is not None or i == each.count - 1):
                for a, b in zip(alone, together, strict=True):
                    if a.shape[0] == NUM_STATES:
                        assert torch.equal(a[each.slot], b[each.slot])
