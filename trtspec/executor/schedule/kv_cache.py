"""KVCacheManager: which block of a paged KV cache belongs to which request. Bookkeeping only, no
tensors."""

from __future__ import annotations

from trtspec.ops.kv_cache import KVCache, StateSizes


class KVCacheManager(KVCache):
    """Blocks of one cache: `num_blocks` of `block_size` token rows each
    (cpp/include/trtspec/kv_cache_manager.hpp).

    Every block is exactly one of: *free* (no content), *cached* (owned by nobody, found by `match`,
    evicted least recently used first) or *referenced* by one or more sequences. Only blocks full of
    committed rows are ever shared; a sequence writes only at and after its committed length, hence
    only into its own blocks.

    Reuse is exact: a block is keyed by (identity of its prefix, its tokens), where every distinct
    prefix in the table has an identity that is never used again. Tokens are compared, so a hash
    collision cannot join two prefixes, and a block is hashed once, when it becomes full. If two
    sequences commit equal blocks, the first stays in the table; the second keeps its private copy
    and continues under the same prefix identity. A commit offers newly full blocks for reuse and
    returns blocks beyond the committed rows; when a sequence ends, its blocks in the table stay
    cached.

    lookahead: how many tokens after a block its rows depend on (1 for feature drafters, whose row p
    is computed from the target's features at p and from token p + 1). These tokens are part of the
    block's key, and a block is not shared until they are known.

    window: newest tokens that a row sees, itself included; 0: all. A sequence releases the blocks
    behind the window of its next row. They stay cached until they are evicted; a prefix is found as
    far as all its blocks, from the first on, are still held or cached.

    sinks: leading blocks that a sequence keeps nevertheless. Its calls are given only the blocks
    that it holds, so rows see exactly these (``drops_rows``); None: calls are given the whole
    table, and layers apply their windows themselves, by row position.

    states: sizes of recurrent states, if the network has them. A request has one from its first
    reservation to its end; a prefix is found as far as a snapshot of the state reaches. A snapshot
    is kept for a block at a border (`keep`) and evicted with it, or replaced by another, least
    recently used first.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        enable_reuse: bool = True,
        *,
        lookahead: int = 0,
        window: int = 0,
        sinks: int | None = None,
        states: StateSizes = StateSizes(),  # noqa: B008  it is immutable
    ) -> None:
        """ConfigError for sizes below 1, or a negative lookahead, window or sinks."""
        sizes = (num_blocks, block_size, enable_reuse, lookahead, window, sinks or 0, *states)
        super().__init__("paged", sizes, lookahead=lookahead, window=window)
        self.enable_reuse = enable_reuse
        self.drops_rows = sinks is not None
        self.states = states

    @property
    def capacity(self) -> int:
        """Token rows in the whole cache."""
        return self.num_blocks * self.block_size
