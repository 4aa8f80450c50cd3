"""Buckets: the few sizes to which the calls of generating steps are padded, for CUDA graphs.

A call that fits is padded with requests without rows or blocks, and with rows of slot -1 after the
last request's: nothing is written for them, and their outputs are cut off.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.backends.inputs import RowInputs
from trtspec.config.kv import CacheLayout
from trtspec.ops.sampling import COLUMN_DTYPES, SamplingColumns

_STRIDE = 7919  # a prime: neighbouring rows have tokens far apart


@dataclass(frozen=True, order=True)
class Bucket:
    """Numbers of requests, rows and logits rows of a padded call; a rollout has no logits."""

    requests: int
    rows: int
    logits: int = 0


class RowBuckets:
    """The buckets of one engine, and which of them a call is padded to.

    A target's have n requests and, for each, 1, 2, 3, 4, 6, 8, 12, ... rows up to those of a full
    verification, all with logits: a step with few or no drafts is padded to less than twice its
    rows, or to its batch size. One more has only n logits rows, for prompts that are no longer than
    a full step. Rollouts, whose rows fill only their first pass, have one bucket per batch size.
    """

    def __init__(
        self,
        batch_sizes: Sequence[int],
        rows_per_request: int,
        enable_padding: bool = True,
        rolls_out: bool = False,
    ) -> None:
        """``rows_per_request``: 1 + the nodes of a full verification, or, for a rollout, 1 + the
        drafts that a step can accept. Without padding only calls of exactly a bucket's size count.
        """
        most = rows_per_request
        sizes = sorted(set(batch_sizes))
        if rolls_out:
            self.all = tuple(Bucket(size, size * most) for size in sizes)
        else:
            found = {Bucket(n, n * rows, n * rows) for n in sizes for rows in _rungs(most)}
            self.all = tuple(sorted(found | {Bucket(n, n * most, n) for n in sizes}))
        self._by_rows = sorted(self.all, key=lambda b: (b.rows, b.logits, b.requests))
        self._enable_padding = enable_padding

    def find(self, num_requests: int, num_rows: int, num_logits: int = 0) -> Bucket | None:
        """The smallest bucket with room for the call, or None: it runs as it is."""
        call = Bucket(num_requests, num_rows, num_logits)
        if not self._enable_padding:
            return call if call in self.all else None
        fitting = (
            b
            for b in self._by_rows
            if b.requests >= num_requests and b.rows >= num_rows and b.logits >= num_logits
        )
        return next(fitting, None)


def _rungs(most: int) -> list[int]:
    """Numbers of rows per request: powers of two, one and a half times these, and the maximum."""
    powers = [1 << i for i in range(most.bit_length())]
    return sorted({rows for p in powers for rows in (p, p + p // 2) if rows < most} | {most})


def pad(packed: RowInputs, bucket: Bucket) -> RowInputs:
    """The rows of a call (see `pack`), padded to ``bucket``, which has room for them."""
    rows, requests = bucket.rows, bucket.requests
    return RowInputs(
        input_ids=extend(packed.input_ids, rows, 0),
        positions=extend(packed.positions, rows, 0),
        slot_mapping=extend(packed.slot_mapping, rows, -1),
        block_tables=extend(packed.block_tables, requests, -1),
        query_start=extend(packed.query_start, requests + 1, int(packed.query_start[-1])),
        context_lens=extend(packed.context_lens, requests, 0),
        is_tree=extend(packed.is_tree, requests, 0),
        tree_mask=extend(packed.tree_mask, rows, 0),
    )


def different_rows(padding: RowInputs, vocab_size: int) -> RowInputs:
    """The same rows with tokens from all over the vocabulary: a mixture sends equal rows to the
    same experts, which takes less time than a text."""
    count = padding.input_ids.shape[0]
    spread = torch.arange(count, device=padding.input_ids.device) * _STRIDE % vocab_size
    return padding._replace(input_ids=spread)


def unpad(outputs: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
    """The first rows of each output, as many as the call had before padding."""
    return [output[:count] for output, count in zip(outputs, counts, strict=True)]


def extend(values: Tensor, count: int, fill: int) -> Tensor:
    """``values [n, ...]`` followed by rows of ``fill``, ``[count, ...]`` in all; n <= count."""
    if values.shape[0] == count:
        return values
    extended = values.new_full((count, *values.shape[1:]), fill)
    extended[: values.shape[0]] = values
    return extended


def no_rows(layout: CacheLayout) -> RowInputs:
    """The rows of a call without requests, from which `pad` makes a call of padding only."""
    none = torch.zeros(0, dtype=torch.int64)
    return RowInputs(
        input_ids=none,
        positions=none,
        slot_mapping=none,
        block_tables=torch.zeros((0, layout.blocks_per_sequence), dtype=torch.int32),
        query_start=torch.zeros(1, dtype=torch.int32),
        context_lens=torch.zeros(0, dtype=torch.int32),
        is_tree=torch.zeros(0, dtype=torch.bool),
        tree_mask=torch.zeros((0, layout.mask_words), dtype=torch.int64),
    )


def greedy_sampling(requests: int) -> SamplingColumns:
    """Sampling values for requests whose tokens are not used: zeros, as for padding."""
    return SamplingColumns(*(torch.zeros(requests, dtype=kind) for kind in COLUMN_DTYPES))
