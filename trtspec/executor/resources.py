"""ResourceManager: the KV caches of the target and of drafts, moved together or not at all."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from trtspec.backends.slots.kv_cache import SlotKVCacheManager
from trtspec.executor.kv_cache import KVCacheManager
from trtspec.executor.request import Request

KVCache = KVCacheManager | SlotKVCacheManager


class DraftCache:
    """One of the draft caches as its drafter sees it: where to write, and behind which rows."""

    def __init__(self, manager: KVCache) -> None:
        self._manager = manager

    @property
    def num_blocks(self) -> int:
        return self._manager.num_blocks

    @property
    def lookahead(self) -> int:
        """How many tokens after a row it depends on, besides those up to it."""
        return self._manager.lookahead

    @property
    def window(self) -> int:
        """Newest tokens that a row sees; 0: all."""
        return self._manager.window

    def committed(self, request: Request) -> int:
        """Rows of the request that are valid: what `Drafter.on_accepted` answered last."""
        return self._manager.committed(request.id)

    def block_table(self, request: Request) -> Tensor:
        """The request's blocks in order of position: int32 [n], not to be written to."""
        return self._manager.block_table(request.id)


class ResourceManager:
    """The only one that moves a KVCacheManager: the target's, and those of any number of drafts.

    At step boundaries each draft's committed length is at most the target's.
    """

    def __init__(
        self,
        target: KVCache,
        drafts: Sequence[KVCache] = (),
        from_tokens: Sequence[bool] | None = None,
    ) -> None:
        """from_tokens: of each draft, whether rows that it lacks can be made of tokens alone, at
        any time; left out, those of none can."""
        self.target = target
        self.drafts = tuple(drafts)
        self.draft_caches = tuple(DraftCache(manager) for manager in self.drafts)
        flags = from_tokens or [False] * len(self.drafts)
        pairs = list(zip(self.drafts, flags, strict=True))
        # A cache that may be smaller than a text (it has a window) has no room to catch up.
        self._followers = tuple(draft for draft, alone in pairs if alone and not draft.window)
        self._in_step = (target, *(draft for draft, alone in pairs if not alone or draft.window))
        self._reuse_step = math.lcm(*(manager.block_size for manager in self._in_step))
        self._largest_block = max(manager.block_size for manager in self.all)

    @property
    def all(self) -> tuple[KVCache, ...]:
        """The target's cache, then the drafts'."""
        return self.target, *self.drafts

    def begin(self, request: Request) -> int:
        """Start a request on the prefix that the target holds and all drafts which could not catch
        up (they would be left with rows nobody wrote); returns its length, committed in each of
        them. Other drafts begin on what they hold of it."""
        tokens = request.tokens
        num_cached = self.target.match(tokens)
        for manager in self._in_step[1:]:
            if num_cached:
                num_cached = min(num_cached, manager.match(tokens))
        num_cached -= num_cached % self._reuse_step
        for manager in self._in_step:
            manager.begin(request.id, tokens, num_cached)
        for manager in self._followers:
            held = min(num_cached, manager.match(tokens)) if num_cached else 0
            manager.begin(request.id, tokens, held - held % manager.block_size)
        return num_cached

    def reserve(
        self, request: Request, target_tokens: int, draft_tokens: Sequence[int] = ()
    ) -> bool:
        """Room for that many rows in all, in every cache; False and nothing changed otherwise.
        A length that is already covered costs nothing, so no draft_tokens ask for no more."""
        # The drafts are asked first what they could give, rather than rolling back after a refusal:
        # a rollback could not bring back the cached blocks evicted for it.
        for draft, tokens in zip(self.drafts, draft_tokens, strict=bool(draft_tokens)):
            if not draft.covers(request.id, tokens) and tokens > draft.room(request.id):
                return False
        if not self.target.reserve(request.id, target_tokens):
            return False
        for draft, tokens in zip(self.drafts, draft_tokens, strict=bool(draft_tokens)):
            reserved = draft.reserve(request.id, tokens)
            assert reserved, "a draft cache refused what it had room for"
        return True

    def commit(
        self, request: Request, target_committed: int, draft_committed: Sequence[int]
    ) -> None:
        """Rows now valid in each cache, of `request.tokens` (emitted tokens already appended).
        Surplus blocks of all go back."""
        assert all(n <= target_committed for n in draft_committed), (
            "a draft cannot be ahead of the target"
        )
        self.target.commit(request.id, request.tokens, target_committed)
        for draft, committed in zip(self.drafts, draft_committed, strict=True):
            draft.commit(request.id, request.tokens, committed)

    def free(self, request: Request) -> None:
        """Return all blocks of a request."""
        for manager in self.all:
            manager.free(request.id)

    def pledge(self, num_tokens: int) -> int:
        """Rows of the blocks that all requests share which a running one will soon ask for, if so
        much of its prompt is not fed yet: those, and a block to go on."""
        return num_tokens + self._largest_block if self.target.is_pooled else 0

    def room(self, request: Request) -> int:
        """Most rows that the request could hold now in every cache."""
        return min(manager.room(request.id) for manager in self.all)

    def target_room(self, request: Request) -> int:
        """Most rows that the request could hold now in the target's cache."""
        return self.target.room(request.id)

    def target_committed(self, request: Request) -> int:
        return self.target.committed(request.id)

    def target_block_table(self, request: Request) -> Tensor:
        """The target's blocks in order of position: int32 [n], not to be written to."""
        return self.target.block_table(request.id)

    def target_slots(self, request: Request, positions: Sequence[int]) -> Tensor:
        """Rows of the target's cache at reserved positions: int64 [n]."""
        return self.target.slots(request.id, positions)

    @property
    def enable_reuse(self) -> bool:
        """Whether requests may begin on what others left in the caches."""
        return self.target.enable_reuse

    @property
    def usage(self) -> float:
        """Share of the blocks in use, of the fullest cache; those cached for reuse count as
        free."""
        return max(1.0 - cache.num_free_blocks / cache.num_blocks for cache in self.all)

    def check_invariants(self) -> None:
        """RuntimeError unless every cache's books balance, AssertionError unless they agree; for
        tests and debugging."""
        for manager in self.all:
            manager.check_invariants()
        target = self.target.committed_lengths()
        for draft in self.drafts:
            lengths = draft.committed_lengths()
            assert target.keys() == lengths.keys(), "the caches hold different requests"
            for request_id, committed in lengths.items():
                assert committed <= target[request_id], f"draft of {request_id} ahead of the target"
