"""Arena: what a device keeps of its running requests."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.backends.staging import Staging
from trtspec.config.sampling import seed_to_int64
from trtspec.executor.engines.model_engine import ModelEngine
from trtspec.executor.resident.engine import Entered, Patch
from trtspec.executor.step.device_rollout import DeviceRollout
from trtspec.executor.step.request import Request
from trtspec.ops.resident_step import STATE, ResidentTensors

NUM_ENDS = 16
"""End tokens that a request may have on the device; one with more is run by the host. More are
compared with every emitted token."""
SPARE_PAIRS = 8
"""Tokens that may be emitted while a request gets no drafts, for lack of blocks or rows, before it
goes on without any: a rollout has as many rows more, which cost little beside its weights."""


class Arena:
    """The tensors of `trtspec.ops.resident_step`, for at most ``places`` requests.

    kept: of the requests. tables: int32 [places, M], of the target's cache and of the draft's, if
    there is one. hidden: the states of the pairs that wait, ``[places * ring + 1, n*H]``; the last
    row is written and not read. ring: 0 without a draft. fed: of requests that are drafted for,
    until their prompts are read, the rows that the draft's cache has for good, or that are absent.
    """

    def __init__(
        self,
        places: int,
        target: ModelEngine,
        rollout: DeviceRollout | None,
    ) -> None:
        self._rollout = rollout
        device, widths, state = target.caches.device, [target.layout.blocks_per_sequence], 0
        self.ring = 0
        if rollout is not None:
            self.ring = 1 + rollout.max_depth + rollout.not_final + SPARE_PAIRS
            widths.append(rollout.engine.layout.blocks_per_sequence)
            state = rollout.engine.hidden_width
        self.kept = ResidentTensors(
            torch.zeros(places, len(STATE), dtype=torch.int64, device=device),
            torch.zeros(places, 3, device=device),
            torch.full((places, NUM_ENDS), -1, device=device),
            torch.zeros(places, self.ring, dtype=torch.int64, device=device),
        )
        self.tables = [
            torch.full((places, width), -1, dtype=torch.int32, device=device) for width in widths
        ]
        rows = places * self.ring + 1
        self.hidden = torch.zeros(rows, state, dtype=target.caches.dtype, device=device)
        self.fed: dict[int, int] = {}
        self._staging = Staging(device)
        self._free = list(range(places))[::-1]
        self._places: dict[int, int] = {}

    def place(self, request: Request) -> int:
        """Where the request lies."""
        return self._places[request.id]

    def apply(self, patch: Patch) -> None:
        """Forget requests, add others, and replace block tables."""
        for request_id in patch.removed:
            self.fed.pop(request_id, None)
            place = self._places.pop(request_id, None)
            if place is not None:
                self._free.append(place)
        for entered in patch.entered:
            known = self._places.get(entered.request.id)
            self._places[entered.request.id] = self._free.pop() if known is None else known
        if not patch.tables:  # nor are there new requests
            return
        places = [self._places[request_id] for request_id in patch.tables]
        given = [torch.tensor(places, dtype=torch.int64)]
        for i, table in enumerate(self.tables):
            rows = torch.full((len(places), table.shape[1]), -1, dtype=torch.int32)
            for row, blocks in zip(rows, patch.tables.values(), strict=True):
                row[: len(blocks[i])] = blocks[i]
            given.append(rows)
        if patch.entered:
            given += self._columns_of(patch.entered)
        where, *rest = self._staging.to_device(given)
        for table, rows in zip(self.tables, rest, strict=False):
            table.index_copy_(0, where, rows)
        if patch.entered:
            begun, *columns = rest[len(self.tables) :]
            for own, rows in zip(self.kept, columns, strict=True):
                own.index_copy_(0, begun, rows)

    def states(self, request: Request, first: int, end: int) -> Tensor:
        """The states of the pairs of these positions."""
        return self.hidden.index_select(0, self._rows_of(request, first, end))

    def keep_hidden(self, hidden: Tensor, rows: Tensor, places: Tensor) -> None:
        """The states of a call's ``rows`` go where they wait."""
        self.hidden.index_copy_(0, places.flatten(), hidden[rows.flatten()])

    def _rows_of(self, request: Request, first: int, end: int) -> Tensor:
        """The rows of ``hidden`` of the pairs of these positions."""
        begin = self.place(request) * self.ring
        rows = [begin + position % self.ring for position in range(first, end)]
        return torch.tensor(rows, dtype=torch.int64).to(self.hidden.device)

    def _columns_of(self, entered: Sequence[Entered]) -> list[Tensor]:
        """Where these requests lie, and their rows of ``kept``."""
        state, filters, tokens = [], [], []
        ends = torch.full((len(entered), NUM_ENDS), -1)
        for own, each in zip(ends, entered, strict=True):
            request, params = each.request, each.request.params
            limit = request.num_prompt_tokens + request.max_output_tokens
            depth, reach, pairs = 0, limit - 1, [0] * self.ring
            if self._rollout is not None:
                depth = self._enter_pairs(each, self._rollout, pairs)
                reach = min(reach, self._rollout.longest or reach)
            columns = {
                "length": len(each.tokens),
                "num_prompt": request.num_prompt_tokens,
                "limit": limit,
                "reach": reach,
                "newest": each.tokens[-1],
                "max_depth": depth,
                "drafted": self.fed.get(request.id, sum(each.drafted)),
                "absent": sum(each.absent),
                "end": 0,
                "adapter": request.tokens.adapter_slot,
                "top_k": max(params.top_k, 0),
                "seed": seed_to_int64(request.seed),
                "sample_index": request.sample_index,
            }
            state.append([columns[name] for name in STATE])
            filters.append([params.temperature, params.top_p, params.min_p])
            tokens.append(pairs)
            own[: len(request.end_tokens)] = torch.tensor(request.end_tokens, dtype=torch.int64)
        places = [self.place(each.request) for each in entered]
        return [
            torch.tensor(places),
            torch.tensor(state),
            torch.tensor(filters),
            ends,
            torch.tensor(tokens, dtype=torch.int64).reshape(len(entered), self.ring),
        ]

    def _enter_pairs(self, entered: Entered, rollout: DeviceRollout, tokens: list[int]) -> int:
        """Put the pairs of a request that wait into its ring, and their tokens into ``tokens``.
        Returns how deep it is drafted for: 0 if some are lost, or it is too long."""
        request, committed = entered.request, entered.committed
        self.fed.pop(request.id, None)
        hidden = None if rollout.pending is None else rollout.pending.take(request)
        is_over = rollout.longest is not None and len(entered.tokens) >= rollout.longest
        if is_over or not request.may_draft:
            return 0
        drafted = sum(entered.drafted) if rollout.pending else _catch_up(entered, rollout)
        first = drafted - rollout.behind
        count, found = committed - first, 0 if hidden is None else len(hidden)
        # No state is before the first row, which reads zeros.
        if count > self.ring or (rollout.pending and found < count - rollout.behind):
            return 0
        self.fed[request.id] = drafted
        for position in range(first, committed):
            tokens[position % self.ring] = entered.tokens[position + 1]
        states = self.hidden.new_zeros(count, self.hidden.shape[1])
        if hidden is not None:
            states[count - found :] = hidden
        self.hidden.index_copy_(0, self._rows_of(request, first, committed), states)
        return min(rollout.max_depth, request.max_draft_len)


def _catch_up(entered: Entered, rollout: DeviceRollout) -> int:
    """Feed the rows that a draft's cache lacks of those that the target's has, if it has room for
    them; returns how many it has then."""
    request, drafted, committed = entered.request, sum(entered.drafted), entered.committed
    blocks = len(rollout.cache.block_table(request)) * rollout.engine.layout.tokens_per_block
    if drafted < committed <= blocks + sum(entered.absent):
        tokens = entered.tokens[drafted:committed]
        rollout.engine.feed([rollout.cache.rows(request, drafted, tokens)])
        return committed
    return drafted
