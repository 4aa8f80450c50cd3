"""KVCacheManager: which block of a paged KV cache belongs to whom. Bookkeeping only, no tensors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trtspec.errors import ConfigError
from trtspec.ops import native  # noqa: F401  registers the class


@dataclass
class _Known:
    """What the last call that changed a request's books said of it: most questions of a step are
    answered by it, in a fiftieth of the time that a call into the books takes."""

    committed: int
    covered: int  # rows of its blocks
    offered: int  # rows of the blocks that were offered for reuse
    table: Tensor | None = None


class KVCacheManager:
    """Blocks of one cache: `num_blocks` of `block_size` token rows each; the books themselves are
    kept in C++ (cpp/include/trtspec/kv_cache_manager.hpp).

    Every block is exactly one of: *free* (no content), *cached* (content of nobody, found by
    `match`, evicted least recently used first) or *referenced* by one or more sequences. Only
    blocks full of committed rows are ever shared; a sequence writes at and after its committed
    length only, hence only into blocks that are its own.

    Reuse is exact: a block is keyed by (identity of its prefix, its tokens), where every distinct
    prefix in the table has an identity of its own that is never used again. Tokens are compared, so
    a hash collision cannot join two prefixes, and a block is hashed once, when it becomes full. If
    two sequences commit equal blocks the first stays in the table; the second keeps its private
    copy and continues under the same prefix identity.

    lookahead: how many tokens after a block its rows depend on (1 for feature drafters, whose row
    p is made of the target's features at p and of token p + 1); they are part of its key.

    window: newest tokens that a row sees, its own included; 0: all. A sequence lets go of the
    blocks behind the window of its next row. They stay cached until they are evicted; a prefix is
    found as far as all its blocks, from the first on, are still held or cached.

    ConfigError for sizes below 1. RuntimeError for a call that breaks a condition named with it, or
    with the id of a request that has not begun: these are faults of the caller.
    """

    is_pooled = True  # sequences take blocks of one pool as they grow

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_reuse: bool = True,
        *,
        lookahead: int = 0,
        window: int = 0,
    ) -> None:
        sizes = (num_blocks, block_size, enable_reuse, lookahead, *((window,) if window else ()))
        try:
            books: Any = torch.classes.trtspec.KVCacheManager(*sizes)
        except ValueError as error:
            raise ConfigError(str(error)) from None
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_reuse = enable_reuse
        self.lookahead = lookahead
        self.window = window
        self._books = books
        # What every step may call: to look a method up takes a third of the time of calling it.
        self._room = books.room
        self._reserve = books.reserve
        self._commit = books.commit
        self._block_table = books.block_table
        self._slots = books.slots
        self._begin = books.begin
        self._match = books.match
        self._free = books.free
        self._num_free_blocks = books.num_free_blocks
        self._known: dict[int, _Known] = {}

    @property
    def capacity(self) -> int:
        """Token rows in the whole cache."""
        return self.num_blocks * self.block_size

    @property
    def num_free_blocks(self) -> int:
        """Blocks that `reserve` can hand out: free ones and cached ones that may be evicted."""
        return int(self._num_free_blocks())

    def rows_held(self, total: int, step: int) -> int:
        """Most rows that a sequence of `total` holds at once, where a step adds at most `step`."""
        if not self.window:
            return total
        # A block that the window cuts, one that is not full, and one that waits to be offered.
        return min(total, self.window + 3 * self.block_size + self.lookahead + step)

    def match(self, tokens: Sequence[int]) -> int:
        """Length of the longest cached prefix: a multiple of block_size, at most len(tokens) - 1,
        since the last token's row must be computed to have its logits."""
        return int(self._match(tokens))

    def begin(self, request_id: int, tokens: Sequence[int], num_cached: int) -> None:
        """Start a sequence on the first `num_cached` rows of the cached prefix of `tokens` (at most
        `match(tokens)`, a multiple of block_size); they count as committed."""
        read = tokens if num_cached else ()
        offered = self._begin(request_id, read, num_cached)
        self._known[request_id] = _Known(num_cached, num_cached, offered)

    def committed(self, request_id: int) -> int:
        """Rows of the request whose K/V is valid."""
        return self._of(request_id).committed

    def committed_lengths(self) -> dict[int, int]:
        """`committed` of every request that has begun, by request id."""
        return {request_id: known.committed for request_id, known in self._known.items()}

    def block_table(self, request_id: int) -> Tensor:
        """Blocks of the request in order of position, -1 for one behind the window: int32 [n], not
        to be written to."""
        known = self._of(request_id)
        if known.table is None:
            known.table = self._block_table(request_id)
        return known.table

    def slots(self, request_id: int, positions: Sequence[int]) -> Tensor:
        """Rows of the cache that hold the K/V of reserved positions: int64 [n]."""
        slots: Tensor = self._slots(request_id, positions)
        return slots

    def room(self, request_id: int) -> int:
        """Most tokens for which `reserve` would succeed now."""
        return int(self._room(request_id))

    def covers(self, request_id: int, num_tokens: int) -> bool:
        """Whether so many rows in all are reserved."""
        return num_tokens <= self._of(request_id).covered

    def reserve(self, request_id: int, num_tokens: int) -> bool:
        """Make the table cover `num_tokens` rows in all. False, and nothing changed, if there are
        not enough blocks. Never shrinks."""
        known = self._of(request_id)
        if num_tokens <= known.covered:
            return True
        if not self._reserve(request_id, num_tokens):
            return False
        self._cover(known, num_tokens)
        return True

    def commit(self, request_id: int, tokens: Sequence[int], num_committed: int) -> None:
        """Rows 0..num_committed-1 now hold the K/V of `tokens[:num_committed]`, all of them
        verified. Offers newly full blocks for reuse and returns blocks beyond the committed rows,
        and those behind the window of the first row that was not offered.

        tokens: all verified tokens of the request, at least num_committed of them, of which only
        those after the blocks already offered are read; with a lookahead, a block waits until the
        tokens after it are known. num_committed: at least the committed length so far, at most what
        is reserved.
        """
        known = self._of(request_id)
        first, size = known.offered, self.block_size
        if num_committed < known.committed:
            raise RuntimeError(f"KV cache: request {request_id} cannot commit backwards")
        is_known = num_committed <= len(tokens) and num_committed <= known.covered
        by_rows = self.window and not self.enable_reuse  # what is offered rises with every row
        if is_known and not by_rows and first + size > num_committed > known.covered - size:
            # No block is full that was not offered, and none lies beyond: the books learn of these
            # rows with the next block.
            known.committed = num_committed
            return
        read = tokens[first : num_committed + self.lookahead]
        known.offered = self._commit(request_id, read, first, num_committed)
        known.committed = num_committed
        self._cover(known, num_committed)
        if self.window:
            known.table = None

    def free(self, request_id: int) -> None:
        """End the sequence: blocks in the reuse table stay cached, others are free again."""
        self._free(request_id)
        del self._known[request_id]

    def check_invariants(self) -> None:
        """RuntimeError unless the books balance; walks all blocks, for tests and debugging."""
        self._books.check_invariants()
        lengths, size = self.committed_lengths(), self.block_size
        booked = dict(zip(*self._books.committed_lengths(), strict=True))
        if lengths.keys() != booked.keys() or not all(
            0 <= length - booked[request_id] < size for request_id, length in lengths.items()
        ):
            raise RuntimeError(f"KV cache: committed {booked}, not {lengths}")
        for request_id, known in self._known.items():
            table = self._block_table(request_id)
            if known.covered != len(table) * self.block_size or (
                known.table is not None and not known.table.equal(table)
            ):
                raise RuntimeError(f"KV cache: request {request_id} has {table}, not {known}")

    def _cover(self, known: _Known, num_tokens: int) -> None:
        """The blocks are those for so many rows now."""
        covered = -(-num_tokens // self.block_size) * self.block_size
        if covered != known.covered:
            known.covered, known.table = covered, None

    def _of(self, request_id: int) -> _Known:
        try:
            return self._known[request_id]
        except KeyError:
            raise RuntimeError(f"KV cache: request {request_id} has not begun") from None
