"""SamplingRows: what a step asks of the rows of its requests (cpp/include/trtspec/runtime)."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import Any

import torch
from torch import Tensor

from trtspec.backends.staging import to_host
from trtspec.config.sampling import seed_to_int64
from trtspec.executor.request import Request
from trtspec.executor.step_result import REASONS, StepResult
from trtspec.executor.verify_call import VerifyOutputs
from trtspec.ops import native  # noqa: F401  registers the class
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.logits_mask import MaskColumns

_NO_MASK = MaskColumns()


class SamplingRows:
    """Samples one row per request and one per node of its tree: on the host, in one call of C++
    that walks the trees and ends texts too, or by the tensors that ops and engines take.

    The options of a request are read when its rows are first asked for, and kept until `release`.
    """

    def __init__(self) -> None:
        sampler: Any = torch.classes.trtspec.RowSampler()
        # Looking the methods up costs as much as much of what they do.
        self._add, self._remove = sampler.add, sampler.remove
        self._tensors = sampler.tensors
        self._verify, self._decode = sampler.verify, sampler.decode
        self._live: set[int] = set()

    def tensors(
        self, requests: Sequence[Request], drafts: DraftBatch | None = None
    ) -> tuple[list[Tensor], list[Tensor]]:
        """In the order of the op (`trtspec.ops.sampling`): temperature, top_k, top_p, min_p, seed,
        sample_index, index, each ``[R]``; and of the drafts ``tokens [R] i64``, 0 for roots,
        ``parents [R] i32``, -1 for roots, and ``row_start [J + 1] i32`` of `accept`."""
        made: list[Tensor] = self._tensors(*self._asked(requests, drafts))
        return made[:7], made[7:]

    def verify(
        self,
        requests: Sequence[Request],
        drafts: DraftBatch,
        logits: Tensor,
        forced: Sequence[int] = (),
        mask: MaskColumns | None = None,
    ) -> StepResult:
        """Sample the rows of ``logits [R, V]`` f32, which are on the host, and walk the trees.
        ``forced``: of each request, see `accept`; left out, of none. ``mask``: changes the logits
        in place first."""
        asked = self._asked(requests, drafts)
        return _result(self._verify(*asked, logits, forced, *(mask or _NO_MASK)))

    def decode(
        self, requests: Sequence[Request], drafts: DraftBatch, outputs: VerifyOutputs
    ) -> StepResult:
        """What tensors say of the rows, wherever they are; one copy comes to the host."""
        sampled, accepted, emitted = outputs
        if accepted is None or emitted is None:  # roots alone: each emits its own token
            (sampled,) = to_host([sampled])
            accepted = torch.zeros(len(requests), 1, dtype=torch.int32)
            emitted = torch.ones(len(requests), dtype=torch.int32)
        else:
            # CUDA's op pads to the rows of all requests; none has walked more than its own.
            widest = 1 + max(drafts.counts)
            sampled, accepted, emitted = to_host([sampled, accepted[:, :widest], emitted])
        asked = self._asked(requests, drafts)
        return _result(self._decode(*asked, sampled, accepted, emitted))

    def release(self, request_id: int) -> None:
        """Forget a request; unknown ids are ignored."""
        if request_id in self._live:
            self._live.remove(request_id)
            self._remove(request_id)

    @property
    def live_requests(self) -> Set[int]:
        """The ids of those whose options are kept."""
        return set(self._live)

    def _asked(
        self, requests: Sequence[Request], drafts: DraftBatch | None
    ) -> tuple[list[int], int]:
        if not self._live.issuperset([request.id for request in requests]):
            self._take_in(requests)
        addresses = [request.tokens.address for request in requests]
        return addresses, 0 if drafts is None else drafts.address

    def _take_in(self, requests: Sequence[Request]) -> None:
        for request in requests:
            if request.id not in self._live:
                p = request.params
                seed = seed_to_int64(request.seed)
                options = p.temperature, p.top_k, p.top_p, p.min_p, seed, request.sample_index
                self._add(request.id, *options, request.end_tokens)
                self._live.add(request.id)


def _result(columns: tuple[list[int], list[int], list[int], list[int]]) -> StepResult:
    start, tokens, rows, ends = columns
    return StepResult(start, tokens, rows, [REASONS[end] for end in ends])
