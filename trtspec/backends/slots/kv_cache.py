"""SlotKVCacheManager: a slot of its own for every sequence, in place of blocks."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.errors import ConfigError


@dataclass
class _Sequence:
    slot: int | None = None
    reserved: int = 0
    committed: int = 0


class SlotKVCacheManager:
    """The contract of `KVCacheManager` over ``num_slots`` slots of ``length`` rows each.

    A slot is one block, as long as a sequence can become: a sequence takes the lowest free one with
    its first row and keeps it to its end, so its rows are contiguous, and running sequences lie
    close together. Nothing is shared: `match` finds no prefix.

    ConfigError for sizes below 1. RuntimeError for a call that breaks a condition named with it, or
    with the id of a request that has not begun: these are faults of the caller.
    """

    is_pooled = False
    enable_reuse = False
    window = 0  # a slot keeps all rows

    def __init__(self, num_slots: int, length: int, *, lookahead: int = 0) -> None:
        """``lookahead``: how many tokens after a row it depends on; drafters ask for it."""
        if num_slots < 1 or length < 1:
            raise ConfigError(
                f"a slot KV cache of {num_slots} slots of {length} rows; both must be at least 1"
            )
        self.num_blocks = num_slots
        self.block_size = length
        self.lookahead = lookahead
        self._free = list(range(num_slots))
        self._sequences: dict[int, _Sequence] = {}

    @property
    def capacity(self) -> int:
        """Rows that one sequence can have."""
        return self.block_size

    @property
    def num_free_blocks(self) -> int:
        """Free slots."""
        return len(self._free)

    def rows_held(self, total: int, step: int) -> int:
        """``total``: a slot keeps all rows."""
        return total

    def match(self, tokens: Sequence[int]) -> int:
        """0: no slot is shared."""
        return 0

    def begin(self, request_id: int, tokens: Sequence[int], num_cached: int) -> None:
        """Start an empty sequence; num_cached must be 0."""
        if num_cached or request_id in self._sequences:
            raise RuntimeError(f"request {request_id} begins twice, or on {num_cached} cached rows")
        self._sequences[request_id] = _Sequence()

    def committed(self, request_id: int) -> int:
        """Rows of the request whose K/V is valid."""
        return self._of(request_id).committed

    def committed_lengths(self) -> dict[int, int]:
        """`committed` of every request that has begun, by request id."""
        return {request_id: s.committed for request_id, s in self._sequences.items()}

    def block_table(self, request_id: int) -> Tensor:
        """The request's slot, int32 [1]; [0] before its first reservation; not to be written to."""
        slot = self._of(request_id).slot
        return torch.tensor([] if slot is None else [slot], dtype=torch.int32)

    def slots(self, request_id: int, positions: Sequence[int]) -> Tensor:
        """Rows of the cache that hold the K/V of reserved positions: int64 [n]."""
        sequence = self._of(request_id)
        if sequence.slot is None or (positions and max(positions) >= sequence.reserved):
            raise RuntimeError(f"request {request_id} has not reserved positions {positions}")
        first = sequence.slot * self.block_size
        return torch.tensor([first + position for position in positions], dtype=torch.int64)

    def room(self, request_id: int) -> int:
        """Most tokens for which `reserve` would succeed now."""
        has_slot = self._of(request_id).slot is not None
        return self.block_size if has_slot or self._free else 0

    def covers(self, request_id: int, num_tokens: int) -> bool:
        """Whether so many rows in all are reserved."""
        return num_tokens <= self._of(request_id).reserved

    def reserve(self, request_id: int, num_tokens: int) -> bool:
        """Make room for `num_tokens` rows in all. False, and nothing changed, if there is none."""
        sequence = self._of(request_id)
        if num_tokens > self.room(request_id):
            return False
        if sequence.slot is None and num_tokens:
            sequence.slot = heapq.heappop(self._free)
        sequence.reserved = max(sequence.reserved, num_tokens)
        return True

    def commit(self, request_id: int, tokens: Sequence[int], num_committed: int) -> None:
        """Rows 0..num_committed-1 now hold the K/V of as many verified tokens; what was reserved
        beyond them is not reserved any more."""
        sequence = self._of(request_id)
        if not sequence.committed <= num_committed <= min(sequence.reserved, len(tokens)):
            raise RuntimeError(
                f"request {request_id} commits {num_committed} rows of {len(tokens)} tokens; it "
                f"has {sequence.committed} and reserved {sequence.reserved}"
            )
        sequence.committed = sequence.reserved = num_committed

    def free(self, request_id: int) -> None:
        """End the sequence; its slot is free again."""
        slot = self._of(request_id).slot
        del self._sequences[request_id]
        if slot is not None:
            heapq.heappush(self._free, slot)

    def check_invariants(self) -> None:
        """RuntimeError unless every slot is free or has one sequence, and no length is too long."""
        held = [s.slot for s in self._sequences.values() if s.slot is not None]
        if sorted([*held, *self._free]) != list(range(self.num_blocks)):
            raise RuntimeError(f"slots {sorted(held)} are held and {sorted(self._free)} are free")
        for request_id, s in self._sequences.items():
            if not s.committed <= s.reserved <= (self.block_size if s.slot is not None else 0):
                raise RuntimeError(f"request {request_id}: {s}")

    def _of(self, request_id: int) -> _Sequence:
        try:
            return self._sequences[request_id]
        except KeyError:
            raise RuntimeError(f"request {request_id} has not begun") from None
