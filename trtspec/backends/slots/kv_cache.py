"""SlotKVCacheManager: a slot for every sequence, instead of blocks."""

from __future__ import annotations

from trtspec.ops.kv_cache import KVCache


class SlotKVCacheManager(KVCache):
    """The contract of `KVCacheManager` over ``num_slots`` slots of ``length`` rows each
    (cpp/include/trtspec/slot_kv_cache_manager.hpp).

    A slot is one block, as long as a sequence can become. A sequence takes the lowest free one with
    its first row and keeps it to its end, so its rows are contiguous, and running sequences are
    close together. Nothing is shared: `match` finds no prefix. The block table of a sequence is
    empty before its first reservation.
    """

    def __init__(self, num_slots: int, length: int, *, lookahead: int = 0) -> None:
        """``lookahead``: how many tokens after its position a row depends on; drafters ask for it.
        ConfigError for sizes below 1."""
        super().__init__("of_slots", (num_slots, length), lookahead=lookahead, window=0)

    @property
    def capacity(self) -> int:
        """Rows that one sequence can have."""
        return self.block_size
