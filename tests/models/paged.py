"""Feeds a CausalLM through a paged cache with scattered blocks, as an executor would."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from trtspec.models.causal_lm import CausalLM, new_caches
from trtspec.models.rows import Caches, PackedRows

BLOCK = 4
BLOCKS_EACH = 16


@dataclass(frozen=True)
class Feed:
    """Rows of one request: causal, or, with ``parents`` (one per row, -1 for the root), a tree."""

    tokens: Sequence[int]
    committed: int
    parents: Sequence[int] | None = None

    def row_positions(self) -> list[int]:
        if self.parents is None:
            return list(range(self.committed, self.committed + len(self.tokens)))
        depth: list[int] = []
        for parent in self.parents:
            depth.append(0 if parent < 0 else depth[parent] + 1)
        return [self.committed + d for d in depth]

    def masks(self) -> list[int]:
        if self.parents is None:
            return [0] * len(self.tokens)
        seen: list[int] = []
        for row, parent in enumerate(self.parents):
            seen.append((seen[parent] if parent >= 0 else 0) | 1 << row)
        return seen


@dataclass
class PagedModel:
    """A model with caches for up to ``requests`` requests of 64 tokens; ``forward`` may be another
    callable of the same signature, such as an exported program."""

    model: CausalLM
    requests: int = 2
    forward: Callable[..., tuple[Tensor, ...]] | None = None
    caches: Caches = field(init=False)
    tables: Tensor = field(init=False)

    def __post_init__(self) -> None:
        blocks = self.requests * BLOCKS_EACH
        config, dtype = self.model.config, self.model.dtype
        self.caches = new_caches(config, blocks, BLOCK, dtype)
        order = torch.randperm(blocks, generator=torch.Generator().manual_seed(3))
        self.tables = order.view(self.requests, BLOCKS_EACH).to(torch.int32)

    def arguments(self, feeds: dict[int, Feed], padding: int = 0) -> tuple[Any, ...]:
        """Ids, rows and logits rows of one call over requests by number, with padding rows at its
        end."""
        tokens, positions, slots, masks, starts = [], [], [], [], [0]
        for request, feed in feeds.items():
            tokens += feed.tokens
            positions += feed.row_positions()
            masks += feed.masks()
            for row in range(len(feed.tokens)):
                block, offset = divmod(feed.committed + row, BLOCK)
                slots.append(int(self.tables[request, block]) * BLOCK + offset)
            starts.append(len(tokens))
        rows = len(tokens)
        packed = PackedRows(
            torch.tensor(positions + [0] * padding),
            torch.tensor(slots + [-1] * padding),
            self.tables[list(feeds)],
            torch.tensor(starts, dtype=torch.int32),
            torch.tensor([feed.committed for feed in feeds.values()], dtype=torch.int32),
            torch.tensor([feed.parents is not None for feed in feeds.values()]),
            torch.tensor(masks + [0] * padding)[:, None],
        )
        return torch.tensor(tokens + [0] * padding), packed, torch.arange(rows)

    @torch.no_grad()
    def run(self, feeds: dict[int, Feed], padding: int = 0) -> Tensor:
        """Logits of every row but the padding, requests one after another."""
        arguments = self.arguments(feeds, padding)
        return (self.forward or self.model)(*arguments, self.caches)[0]
