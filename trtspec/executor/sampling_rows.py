"""SamplingRows: the options of requests as the tensors that rows are sampled by."""

from __future__ import annotations

from collections.abc import Sequence, Set

import torch
from torch import Tensor

from trtspec.config.sampling import seed_to_int64
from trtspec.executor.request import Request
from trtspec.ops.sampling import COLUMN_DTYPES
from trtspec.ops.tree import TokenTree


class SamplingRows:
    """Makes the seven tensors of `trtspec.ops.sampling`, one row per request and per tree node.

    What the options of the requests say stays as it is while the same ones come, which in steady
    decoding is every step, so it is kept.
    """

    def __init__(self) -> None:
        self._ids: list[int] = []
        self._options: list[Tensor] = []
        self._roots: list[Tensor] = []

    def tensors(
        self, requests: Sequence[Request], trees: Sequence[TokenTree]
    ) -> tuple[list[Tensor], list[Tensor]]:
        """In the order of the op: temperature, top_k, top_p, min_p, seed, sample_index, index; and
        ``tokens``, ``parents`` and ``row_start`` of `accept`."""
        ids = [request.id for request in requests]
        if ids != self._ids:
            self._ids, self._options, self._roots = ids, _options(requests), _roots(len(requests))
        emitted = [request.num_output_tokens for request in requests]
        if not any(tree.max_depth for tree in trees):
            return [*self._options, torch.tensor(emitted, dtype=torch.int64)], list(self._roots)
        return TokenTree.verify_rows(trees, emitted, self._options)

    def release(self, request_id: int) -> None:
        """Forget a request; unknown ids are ignored."""
        if request_id in self._ids:
            self._ids, self._options, self._roots = [], [], []

    @property
    def live_requests(self) -> Set[int]:
        """The ids of those whose options are kept."""
        return set(self._ids)


def _roots(count: int) -> list[Tensor]:
    """What `TokenTree.verify_rows` says of trees without nodes: no draft tokens, no parents, and a
    row each."""
    return [
        torch.zeros(count, dtype=torch.int64),
        torch.full((count,), -1, dtype=torch.int32),
        torch.arange(count + 1, dtype=torch.int32),
    ]


def _options(requests: Sequence[Request]) -> list[Tensor]:
    params = [request.params for request in requests]
    values = [
        [p.temperature for p in params],
        [p.top_k for p in params],
        [p.top_p for p in params],
        [p.min_p for p in params],
        [seed_to_int64(request.seed) for request in requests],
        [request.sample_index for request in requests],
    ]
    kinds = COLUMN_DTYPES[: len(values)]
    return [torch.tensor(column, dtype=kind) for column, kind in zip(values, kinds, strict=True)]
