"""KVCache: which rows of a KV cache belong to which request (cpp/include/trtspec/kv_cache.hpp).

Bookkeeping only, no tensors. A `ResourceManager` moves the caches of a step in C++; this interface
is for looking at a single cache, and for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trtspec.errors import ConfigError
from trtspec.ops import native  # noqa: F401  registers the class


class StateSizes(NamedTuple):
    """Recurrent states that a cache holds in addition to its rows: of that many requests, in the
    first slots, then snapshots of prefixes, made at borders that many blocks apart."""

    num_states: int = 0
    num_snapshots: int = 0
    blocks_apart: int = 0

    @property
    def num_slots(self) -> int:
        return self.num_states + self.num_snapshots


class KVCache:
    """``num_blocks`` blocks of ``block_size`` token rows each. A subclass defines what a block is.

    enable_reuse: whether requests may begin on what others left. lookahead: how many tokens after
    its position a row depends on. window: newest tokens that a row sees, itself included; 0: all.
    drops_rows: released rows do not exist for a call, and later ones take their places. address: of
    the C++ cache, for native calls, valid as long as this object lives. states: as for
    `KVCacheManager`.

    ConfigError for invalid sizes. RuntimeError for a call that violates a stated condition, or has
    the id of a request that has not begun: these are faults of the caller.
    """

    def __init__(self, kind: str, sizes: Sequence[int], *, lookahead: int, window: int) -> None:
        """``kind``: how C++ makes one (cpp/bindings/torch_kv_cache.cpp), with ``sizes``: the number
        of blocks, the rows of each, and its further arguments."""
        make: Callable[..., Any] = getattr(torch.classes.trtspec.KVCache, kind)
        try:
            self._books = make(*sizes)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self.num_blocks, self.block_size = sizes[:2]
        self.lookahead = lookahead
        self.window = window
        self.enable_reuse = False
        self.drops_rows = False
        self.states = StateSizes()
        self.address: int = self._books.address()

    @property
    def num_free_blocks(self) -> int:
        """Blocks that `reserve` can hand out: free ones and cached ones that may be evicted."""
        return int(self._books.num_free_blocks())

    def rows_held(self, total: int, step: int) -> int:
        """Most rows that a sequence of `total` holds at once, if a step adds at most `step`."""
        return int(self._books.rows_held(total, step))

    def match(self, tokens: Sequence[int], adapter: int = 0) -> int:
        """Length of the longest cached prefix that was read by an adapter (see
        `TokenSequence.adapt`; 0: by none): a multiple of block_size, at most len(tokens) - 1, since
        the last token's row must be computed to have its logits."""
        return int(self._books.match(tokens, adapter))

    def begin(
        self, request_id: int, tokens: Sequence[int], num_cached: int, adapter: int = 0
    ) -> None:
        """Start a sequence on the first `num_cached` rows of the cached prefix of `tokens` (at most
        `match(tokens, adapter)`, a multiple of block_size); they count as committed."""
        self._books.begin(request_id, tokens, num_cached, adapter)

    def begin_behind(
        self, request_id: int, tokens: Sequence[int], end: int, adapter: int = 0
    ) -> None:
        """Start a sequence whose next row is that of token `end`, on what the cache holds of the
        tokens before; the others are absent. All lengths below count rows: a token after the absent
        ones has the row of its position minus `absent(request_id)`."""
        self._books.begin_behind(request_id, tokens, end, adapter)

    def absent(self, request_id: int) -> int:
        """Tokens of the request's text without a row, all before the rows that it adds."""
        return int(self._books.absent(request_id))

    def committed(self, request_id: int) -> int:
        """Rows of the request whose K/V is valid."""
        return int(self._books.committed(request_id))

    def committed_lengths(self) -> dict[int, int]:
        """`committed` of every request that has begun, by request id."""
        return dict(zip(*self._books.committed_lengths(), strict=True))

    def block_table(self, request_id: int) -> Tensor:
        """Blocks of the request in order of position, -1 for one that was let go: int32 [n], a
        copy."""
        table: Tensor = self._books.block_table(request_id)
        return table

    def slots(self, request_id: int, positions: Sequence[int]) -> Tensor:
        """Rows of the cache that hold the K/V of reserved positions: int64 [n]."""
        slots: Tensor = self._books.slots(request_id, positions)
        return slots

    def room(self, request_id: int) -> int:
        """Most tokens for which `reserve` would succeed now."""
        return int(self._books.room(request_id))

    def reserve(self, request_id: int, num_tokens: int) -> bool:
        """Make room for `num_tokens` rows in all. False, without any change, if there is not
        enough. Never shrinks."""
        return bool(self._books.reserve(request_id, num_tokens))

    def commit(self, request_id: int, tokens: Sequence[int], num_committed: int) -> None:
        """Rows 0..num_committed-1 now hold the K/V of as many of `tokens`, all of them verified
        (the first ones, where none are absent). Returns what was reserved beyond them.

        tokens: all verified tokens of the request, at least those of the rows. num_committed:
        at least the committed length so far, at most what is reserved.
        """
        self._books.commit(request_id, tokens, num_committed)

    def free(self, request_id: int) -> None:
        """End the sequence."""
        self._books.free(request_id)

    def state(self, request_id: int) -> int:
        """Slot of the request's state, -1 before its first reservation, or without recurrent
        states."""
        return int(self._books.state(request_id))

    def source(self, request_id: int) -> int:
        """Slot of the snapshot that the request begins on, until it commits a row; -1: none."""
        return int(self._books.source(request_id))

    def keep(self, request_id: int, start: int, end: int) -> tuple[int, int]:
        """A call advances the request's state from at least ``start`` rows to at most ``end``.
        Returns the slot for its snapshot at the next border after ``start``, and the number of rows
        there. The slot belongs to the request until a commit passes the border too. -1: no snapshot
        is made."""
        slot, rows = self._books.keep(request_id, start, end)
        return slot, rows

    def check_invariants(self) -> None:
        """RuntimeError unless the bookkeeping is consistent; walks all blocks, for tests and
        debugging."""
        self._books.check_invariants()
