"""Buckets: the few sizes that the calls of generating steps are padded to, for CUDA graphs.

A bucket of n requests has n times the rows of a full step of one request. A call that fits is
padded with requests that have no rows and no blocks, and with rows of slot -1 behind the last
request's: nothing is written for them, and what they give is cut off.
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
    """The requests and the rows of a padded call."""

    requests: int
    rows: int


class RowBuckets:
    """The buckets of one engine, and which of them a call is padded to."""

    def __init__(
        self, batch_sizes: Sequence[int], rows_per_request: int, enable_padding: bool = True
    ) -> None:
        """``rows_per_request``: 1 + the nodes of a full verification, or, for a rollout, 1 + the
        drafts that a step can accept. Without padding only calls of just a bucket's size count."""
        sizes = sorted(set(batch_sizes))
        self.all = tuple(Bucket(size, size * rows_per_request) for size in sizes)
        self._enable_padding = enable_padding

    def find(self, num_requests: int, num_rows: int) -> Bucket | None:
        """The smallest bucket with room for the call, or None: it runs as it is."""
        if not self._enable_padding:
            exact = (b for b in self.all if (b.requests, b.rows) == (num_requests, num_rows))
            return next(exact, None)
        fitting = (b for b in self.all if b.requests >= num_requests and b.rows >= num_rows)
        return next(fitting, None)


def pad(packed: RowInputs, bucket: Bucket) -> RowInputs:
    """The rows of a call (see `pack`) in the size of ``bucket``, which has room."""
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
    """The same rows, of tokens from all over a vocabulary: a mixture sends equal ones to the same
    experts, in less time than a text's."""
    count = padding.input_ids.shape[0]
    spread = torch.arange(count, device=padding.input_ids.device) * _STRIDE % vocab_size
    return padding._replace(input_ids=spread)


def unpad(outputs: Sequence[Tensor], counts: Sequence[int]) -> list[Tensor]:
    """The first rows of each output, as many as the call had before it was padded."""
    return [output[:count] for output, count in zip(outputs, counts, strict=True)]


def extend(values: Tensor, count: int, fill: int) -> Tensor:
    """``values [n, ...]`` and behind them rows of ``fill``, ``[count, ...]`` in all; n <= count."""
    if values.shape[0] == count:
        return values
    extended = values.new_full((count, *values.shape[1:]), fill)
    extended[: values.shape[0]] = values
    return extended


def no_rows(layout: CacheLayout) -> RowInputs:
    """The rows of a call without requests, from which `pad` makes one of padding alone."""
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
    """Sampling values of requests whose tokens nobody asks for: zeros, which padding has too."""
    return SamplingColumns(*(torch.zeros(requests, dtype=kind) for kind in COLUMN_DTYPES))
