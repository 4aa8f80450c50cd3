"""Ranks: what a network that is split over processes asks of the others."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trtspec.config.model import ModelConfig, rows_of_rank
from trtspec.config.quantised import Weights
from trtspec.formats.stored import read_tensor
from trtspec.ops.collectives import all_gather, all_reduce

GROUP = "ranks.group"
"""The name in the ``state_dict`` of a network of what a process puts in when it opens it."""
RANK = "rank"
"""The name in a rank's tensors of its number."""


class Exchange(NamedTuple):
    """What the ranks of a network exchange in a call: ``sums`` of ``row_bytes`` a row,
    ``norm_sums`` of a number a row, and behind these ``logits_bytes`` of each row whose logits are
    wanted."""

    sums: int
    row_bytes: int
    norm_sums: int
    logits_bytes: int


def exchanged(config: ModelConfig, dtype: torch.dtype) -> Exchange:
    """That of a network of ``dtype``: one sum for the embeddings and two for a layer, or one where
    its parts are parallel."""
    sums = sum(1 if layer.parallel else 2 for layer in config.layers)
    norms = sum(layer.mixer.norms_over_ranks for layer in config.layers)
    logits = config.draft_vocab_size * torch.float32.itemsize
    return Exchange(1 + sums, config.hidden_size * dtype.itemsize, norms, logits)


class Ranks(nn.Module):
    """The collectives of a network. Names in the ``state_dict``: ``group [1, 1] i64``, a
    `RankGroup`, and ``rank [1, 1] i64``. All ranks run the same graph, so what sets them apart are
    values."""

    group: Tensor
    rank: Tensor

    def __init__(self, count: int, embedding_rows: int) -> None:
        super().__init__()
        self.count = count
        self.embedding_rows = embedding_rows
        # Of two dimensions: AOTInductor compiles what a short vector holds by then as a constant.
        for name in ("group", RANK):
            self.register_buffer(name, torch.zeros(1, 1, dtype=torch.int64))

    def sum(self, x: Tensor) -> Tensor:
        """The sum of all ranks' x."""
        return all_reduce(x, self.group)

    def mean_square(self, x: Tensor) -> Tensor:
        """Of rows ``x [T, n]`` that are shared out over the ranks, each of which has as many
        elements: the mean of all their squares ``[T, 1] f32``. Each rank's is summed as in the
        whole row, then those of the ranks in their order."""
        own = x.float().pow(2).mean(-1, keepdim=True)
        return self.sum(own) / self.count

    def rows(self, read: Callable[[Tensor], Tensor], ids: Tensor) -> Tensor:
        """Rows of the embedding ``[T, H]`` of ``ids [T] i64``, by what reads this rank's."""
        own = ids - self.rank[0] * self.embedding_rows
        is_own = (own >= 0) & (own < self.embedding_rows)
        found = read(torch.where(is_own, own, 0))
        return self.sum(torch.where(is_own.unsqueeze(-1), found, 0))

    def columns(self, logits: Tensor, width: int) -> Tensor:
        """Logits ``[R, width] f32`` of this rank's rows of the head and those of all others."""
        return all_gather(logits, self.group, width)

    def own(self, of_tokens: Tensor) -> Tensor:
        """Of a vector with an element for each row of a head, a rank's part; see `rows_of_rank`."""
        rows = rows_of_rank(len(of_tokens), self.count)
        places = self.rank[0] * rows + torch.arange(rows)
        return of_tokens[places.clamp(max=len(of_tokens) - 1)]

    def load(self, tensors: Weights) -> None:
        """Fill it from a rank's tensors."""
        self.rank.copy_(read_tensor(tensors, RANK))


def added(
    part: Callable[..., Tensor], residual: Tensor, ranks: Ranks | None, kept: Tensor | None = None
) -> Tensor:
    """The sum of ``residual [T, H]`` and of what a part of a layer makes, which adds it itself as
    long as it is not split. ``kept [R] i64``: the rows that it makes, if not all."""
    if ranks is None:
        return part(residual=residual)
    return (residual if kept is None else residual[kept]) + ranks.sum(part(residual=None))
