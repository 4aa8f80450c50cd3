"""Ranks: how a network that is split over processes communicates."""

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
"""The ``state_dict`` name of the group handle, which each process sets when it opens the
network."""
RANK = "rank"
"""The name of a rank's number among its tensors."""


class Exchange(NamedTuple):
    """What the ranks of a network exchange in a call: ``sums`` of ``row_bytes`` per row,
    ``norm_sums`` of one number per row, and then ``logits_bytes`` for each row whose logits are
    wanted."""

    sums: int
    row_bytes: int
    norm_sums: int
    logits_bytes: int


def exchanged(config: ModelConfig, dtype: torch.dtype) -> Exchange:
    """The exchange of a network of ``dtype``: one sum for the embeddings and two per layer, or one
    if its parts are parallel."""
    sums = sum(1 if layer.parallel else 2 for layer in config.layers)
    norms = sum(layer.mixer.norms_over_ranks for layer in config.layers)
    logits = config.draft_vocab_size * torch.float32.itemsize
    return Exchange(1 + sums, config.hidden_size * dtype.itemsize, norms, logits)


class Ranks(nn.Module):
    """The collectives of a network. Names in the ``state_dict``: ``group [1, 1] i64``, a
    `RankGroup`, and ``rank [1, 1] i64``. All ranks run the same graph and differ only in these
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
        """For rows ``x [T, n]`` that are split evenly over the ranks: the mean of all squares ``[T,
        1] f32``. Each rank's part is summed as in the whole row, then those of the ranks in order.
        """
        own = x.float().pow(2).mean(-1, keepdim=True)
        return self.sum(own) / self.count

    def rows(self, read: Callable[[Tensor], Tensor], ids: Tensor) -> Tensor:
        """Embedding rows ``[T, H]`` for ``ids [T] i64``, given a function that reads this rank's
        rows."""
        own = ids - self.rank[0] * self.embedding_rows
        is_own = (own >= 0) & (own < self.embedding_rows)
        found = read(torch.where(is_own, own, 0))
        return self.sum(torch.where(is_own.unsqueeze(-1), found, 0))

    def columns(self, logits: Tensor, width: int) -> Tensor:
        """Logits ``[R, width] f32`` of all ranks' head rows."""
        return all_gather(logits, self.group, width)

    def own(self, of_tokens: Tensor) -> Tensor:
        """A rank's part of a vector with an element for each row of a head; see `rows_of_rank`."""
        rows = rows_of_rank(len(of_tokens), self.count)
        places = self.rank[0] * rows + torch.arange(rows)
        return of_tokens[places.clamp(max=len(of_tokens) - 1)]

    def load(self, tensors: Weights) -> None:
        """Load from a rank's tensors."""
        self.rank.copy_(read_tensor(tensors, RANK))


def added(
    part: Callable[..., Tensor], residual: Tensor, ranks: Ranks | None, kept: Tensor | None = None
) -> Tensor:
    """The sum of ``residual [T, H]`` and the output of a layer's part, which adds it itself unless
    it is split. ``kept [R] i64``: the rows that it computes, if not all."""
    if ranks is None:
        return part(residual=residual)
    return (residual if kept is None else residual[kept]) + ranks.sum(part(residual=None))
