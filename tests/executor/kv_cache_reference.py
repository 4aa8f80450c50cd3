"""KVCacheManager in plain Python: dictionaries, lists and no cleverness. What C++ must do alike."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trtspec.errors import ConfigError

# Identity of what lies before a block: a number, or one and the absent tokens behind it.
_Prefix = int | tuple[int, tuple[int, ...]]
# A block's key: that identity, and its tokens (plus `lookahead` more).
_Key = tuple[_Prefix, tuple[int, ...]]
_NO_PREFIX = 0


@dataclass(slots=True)
class _Sequence:
    """blocks: the block table, None for one behind the window. committed: valid rows. offered: the
    leading blocks that were offered to the reuse table. prefix: what lies before the next one.
    absent: tokens that have no row, before the rows that were added."""

    blocks: list[int | None] = field(default_factory=list)
    committed: int = 0
    offered: int = 0
    prefix: _Prefix = _NO_PREFIX
    absent: int = 0


class PlainKVCacheManager:
    """See `trtspec.executor.schedule.kv_cache.KVCacheManager`; AssertionError where that one raises
    RuntimeError. Tests that need a broken manager derive from this one."""

    is_pooled = True

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_reuse: bool = True,
        *,
        lookahead: int = 0,
        window: int = 0,
        sinks: int | None = None,
    ) -> None:
        for name, value, least in (
            ("num_blocks", num_blocks, 1),
            ("block_size", block_size, 1),
            ("lookahead", lookahead, 0),
            ("window", window, 0),
            ("sinks", sinks or 0, 0),
        ):
            if value < least:
                raise ConfigError(f"{name}={value} of a KV cache must be at least {least}")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.enable_reuse = enable_reuse
        self.lookahead = lookahead
        self.window, self.sinks = window, sinks or 0
        self._free = list(range(num_blocks - 1, -1, -1))  # a stack: lowest block first
        self._cached: OrderedDict[int, None] = OrderedDict()  # unreferenced, oldest first
        self._references = [0] * num_blocks
        self._keys: list[_Key | None] = [None] * num_blocks  # set while in the reuse table
        self._prefix_of = [_NO_PREFIX] * num_blocks  # meaningful while the key is set
        self._table: dict[_Key, int] = {}
        self._last_prefix = _NO_PREFIX
        self._sequences: dict[int, _Sequence] = {}

    @property
    def capacity(self) -> int:
        """Token rows in the whole cache."""
        return self.num_blocks * self.block_size

    @property
    def num_free_blocks(self) -> int:
        """Blocks that `reserve` can hand out: free ones and cached ones that may be evicted."""
        return len(self._free) + len(self._cached)

    def rows_held(self, total: int, step: int) -> int:
        """Most rows that a sequence of `total` holds at once, where a step adds at most `step`."""
        most = self.window + (self.sinks + 3) * self.block_size + self.lookahead + step
        return min(total, most) if self.window else total

    def match(self, tokens: Sequence[int]) -> int:
        """Length of the longest cached prefix: a multiple of block_size, at most len(tokens) - 1,
        since the last token's row must be computed to have its logits."""
        return len(self._find(tokens)) * self.block_size

    def begin(self, request_id: int, tokens: Sequence[int], num_cached: int) -> None:
        """Start a sequence on the first `num_cached` rows of the cached prefix of `tokens` (at most
        `match(tokens)`, a multiple of block_size); they count as committed."""
        assert request_id not in self._sequences, f"request {request_id} has begun already"
        blocks = self._find(tokens)[: num_cached // self.block_size] if num_cached else []
        assert len(blocks) * self.block_size == num_cached, "more than the cached prefix"
        prefix = self._prefix_of[blocks[-1]] if blocks else _NO_PREFIX
        self._start(request_id, blocks, prefix, 0)

    def begin_behind(self, request_id: int, tokens: Sequence[int], end: int) -> None:
        """Start a sequence whose next row is that of token `end`, on what the cache holds of the
        tokens before; the others are absent."""
        assert request_id not in self._sequences, f"request {request_id} has begun already"
        assert 0 <= end < max(len(tokens), 1), "behind tokens that it does not have"
        size, blocks = self.block_size, []
        prefix, position = _NO_PREFIX, 0
        begins = range(0, min(end, len(tokens) - self.lookahead) - size + 1, size)
        for begin in begins if self.enable_reuse else ():
            key = self._key(_behind_gap(prefix, tokens[position:begin]), tokens, begin)
            block = self._table.get(key)
            if block is not None:
                blocks.append(block)
                prefix, position = self._prefix_of[block], begin + size
        absent = end - len(blocks) * size
        self._start(request_id, blocks, _behind_gap(prefix, tokens[position:end]), absent)

    def absent(self, request_id: int) -> int:
        """Tokens of the request's text that have no row."""
        return self._sequences[request_id].absent

    def committed(self, request_id: int) -> int:
        """Rows of the request whose K/V is valid."""
        return self._sequences[request_id].committed

    def committed_lengths(self) -> dict[int, int]:
        """`committed` of every request that has begun, by request id."""
        return {request_id: s.committed for request_id, s in self._sequences.items()}

    def block_table(self, request_id: int) -> Tensor:
        """Blocks of the request in order of position: int32 [n], a copy."""
        blocks = self._sequences[request_id].blocks
        return torch.tensor([-1 if b is None else b for b in blocks], dtype=torch.int32)

    def slots(self, request_id: int, positions: Sequence[int]) -> Tensor:
        """Rows of the cache that hold the K/V of reserved positions: int64 [n]."""
        blocks, size = self._sequences[request_id].blocks, self.block_size
        rows = []
        for position in positions:
            block = blocks[position // size]
            assert block is not None, "a position behind the window"
            rows.append(block * size + position % size)
        return torch.tensor(rows, dtype=torch.int64)

    def room(self, request_id: int) -> int:
        """Most tokens for which `reserve` would succeed now."""
        held = len(self._sequences[request_id].blocks)
        return (held + len(self._free) + len(self._cached)) * self.block_size

    def covers(self, request_id: int, num_tokens: int) -> bool:
        """Whether so many rows in all are reserved."""
        return num_tokens <= len(self._sequences[request_id].blocks) * self.block_size

    def reserve(self, request_id: int, num_tokens: int) -> bool:
        """Make the table cover `num_tokens` rows in all. False, and nothing changed, if there are
        not enough blocks. Never shrinks."""
        blocks = self._sequences[request_id].blocks
        missing = -(-num_tokens // self.block_size) - len(blocks)
        if missing <= 0:
            return True
        if missing > len(self._free) + len(self._cached):
            return False
        for _ in range(missing):
            block = self._free.pop() if self._free else self._evict()
            self._references[block] = 1
            blocks.append(block)
        return True

    def commit(self, request_id: int, tokens: Sequence[int], num_committed: int) -> None:
        """Rows 0..num_committed-1 now hold the K/V of `tokens[:num_committed]`, all of them
        verified (where tokens are absent, of as many others). Offers newly full blocks for reuse
        and returns blocks beyond the committed rows.

        tokens: all verified tokens of the request, those of num_committed rows at least; with a
        lookahead, a block waits until the tokens after it are known. num_committed: at least the
        committed length so far, at most what is reserved.
        """
        sequence = self._sequences[request_id]
        size = self.block_size
        assert num_committed >= sequence.committed, "commit cannot go back"
        assert num_committed <= len(sequence.blocks) * size, "commit beyond the reserved rows"
        known = len(tokens) - sequence.absent
        assert num_committed <= known, "commit of rows whose tokens are not verified"
        sequence.committed = num_committed
        if self.enable_reuse:
            self._publish(sequence, tokens, min(num_committed, known - self.lookahead) // size)
        self._drop_blocks(sequence, -(-num_committed // size))
        offered = sequence.offered * size if self.enable_reuse else num_committed
        for index in range(self.sinks, self._first_seen(offered)):
            block = sequence.blocks[index]
            if block is not None:
                sequence.blocks[index] = None
                self._release(block)

    def free(self, request_id: int) -> None:
        """End the sequence: blocks in the reuse table stay cached, others are free again."""
        self._drop_blocks(self._sequences.pop(request_id), 0)

    def check_invariants(self) -> None:
        """AssertionError unless the books balance; walks all blocks, for tests and debugging."""
        free, cached = set(self._free), set(self._cached)
        assert len(free) == len(self._free), "a block is free twice"
        holders = [0] * self.num_blocks
        for request_id, sequence in self._sequences.items():
            blocks, committed = sequence.blocks, sequence.committed
            assert 0 <= committed <= len(blocks) * self.block_size, (request_id, "not reserved")
            held = [block for block in blocks if block is not None]
            assert len(set(held)) == len(held), (request_id, "a block twice in a table")
            num_full = committed // self.block_size
            assert sequence.offered <= num_full, (request_id, "an uncommitted prefix")
            for index, block in enumerate(blocks):
                if block is None:
                    assert index >= self.sinks, (request_id, "a sink is gone")
                    last = (index + 1) * self.block_size - 1
                    assert last <= committed - self.window, (request_id, "a block in sight is gone")
                    continue
                holders[block] += 1
                if index >= num_full:  # it writes here
                    assert self._references[block] == 1, (request_id, "writes a shared block")
                    assert self._keys[block] is None, (request_id, "writes a reusable block")
        assert holders == self._references, "reference counts differ from the tables"
        for block in range(self.num_blocks):
            states = (block in free) + (block in cached) + (holders[block] > 0)
            assert states == 1, f"block {block} has {states} states"
            key = self._keys[block]
            assert key is None or self._table.get(key) == block, f"block {block} under another key"
            assert (key is None) or block not in free, f"free block {block} can be matched"
            assert (key is not None) or block not in cached, f"cached block {block} has no key"
        assert len(self._table) == sum(key is not None for key in self._keys)

    def _find(self, tokens: Sequence[int]) -> list[int]:
        """Blocks of the longest cached prefix that leaves at least one token to compute."""
        found: list[int] = []
        if not self._table:
            return found
        size, ahead = self.block_size, self.lookahead
        prefix = _NO_PREFIX
        for end in range(size, len(tokens) - max(ahead, 1) + 1, size):
            block = self._table.get((prefix, tuple(tokens[end - size : end + ahead])))
            if block is None:
                break
            found.append(block)
            prefix = self._prefix_of[block]
        return found

    def _key(self, prefix: _Prefix, tokens: Sequence[int], begin: int) -> _Key:
        return prefix, tuple(tokens[begin : begin + self.block_size + self.lookahead])

    def _start(self, request_id: int, blocks: Sequence[int], prefix: _Prefix, absent: int) -> None:
        """Begin a sequence on these blocks, which are in the reuse table."""
        committed = len(blocks) * self.block_size
        gone = range(self.sinks, self._first_seen(committed))
        table = [None if i in gone else block for i, block in enumerate(blocks)]
        for block in table:
            if block is None:
                continue
            if self._references[block] == 0:
                del self._cached[block]
            self._references[block] += 1
        self._sequences[request_id] = _Sequence(table, committed, len(blocks), prefix, absent)

    def _publish(self, sequence: _Sequence, tokens: Sequence[int], num_full: int) -> None:
        """Offer the blocks before the first num_full of a sequence to the reuse table."""
        for index in range(sequence.offered, num_full):
            key = self._key(sequence.prefix, tokens, index * self.block_size + sequence.absent)
            first = self._table.get(key)
            if first is None:
                first = sequence.blocks[index]
                assert first is not None
                self._last_prefix += 1
                self._table[key] = first
                self._keys[first] = key
                self._prefix_of[first] = self._last_prefix
            sequence.prefix = self._prefix_of[first]
            sequence.offered += 1

    def _drop_blocks(self, sequence: _Sequence, num_kept: int) -> None:
        """Let go of the blocks after the first `num_kept`. The deepest go first, so that among the
        cached ones a block is evicted before the prefix without which it cannot be found."""
        blocks = sequence.blocks
        while len(blocks) > num_kept:
            block = blocks.pop()
            if block is not None:
                self._release(block)

    def _release(self, block: int) -> None:
        self._references[block] -= 1
        if self._references[block] == 0:
            if self._keys[block] is None:
                self._free.append(block)
            else:
                self._cached[block] = None

    def _first_seen(self, rows: int) -> int:
        """The first block in the window of the row after the first ``rows``."""
        return max(rows - self.window + 1, 0) // self.block_size if self.window else 0

    def _evict(self) -> int:
        block, _ = self._cached.popitem(last=False)
        self._forget(block)
        return block

    def _forget(self, block: int) -> None:
        """Take a block out of the reuse table."""
        key = self._keys[block]
        assert key is not None
        del self._table[key]
        self._keys[block] = None


def _behind_gap(prefix: _Prefix, tokens: Sequence[int]) -> _Prefix:
    """What lies before a block where these tokens, behind that prefix, are absent."""
    assert isinstance(prefix, int)
    return (prefix, tuple(tokens)) if tokens else prefix
