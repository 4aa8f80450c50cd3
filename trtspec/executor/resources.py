"""ResourceManager: the KV caches of the target and the draft, moved together or not at all."""

from __future__ import annotations

import math
from collections.abc import Sequence

from torch import Tensor

from trtspec.executor.kv_cache import KVCacheManager
from trtspec.executor.request import Request


class ResourceManager:
    """The only caller of the two KVCacheManagers; `draft` is None without a draft cache, and then
    all draft lengths are 0 and ignored.

    At step boundaries the draft's committed length is at most the target's.
    """

    def __init__(self, target: KVCacheManager, draft: KVCacheManager | None = None) -> None:
        self.target = target
        self.draft = draft
        sizes = [manager.block_size for manager in (target, draft) if manager is not None]
        self._reuse_step = math.lcm(*sizes)

    def begin(self, request: Request) -> int:
        """Start a request on the prefix that BOTH caches hold (a hit in one alone would leave the
        other with rows nobody wrote); returns its length, committed in both."""
        num_cached = self.target.match(request.tokens)
        if self.draft is not None and num_cached:
            num_cached = min(num_cached, self.draft.match(request.tokens))
            num_cached -= num_cached % self._reuse_step
        self.target.begin(request.id, request.tokens, num_cached)
        if self.draft is not None:
            self.draft.begin(request.id, request.tokens, num_cached)
        return num_cached

    def reserve(self, request: Request, target_tokens: int, draft_tokens: int) -> bool:
        """Room for that many rows in all, in both caches; False and nothing changed otherwise.
        A length that is already covered costs nothing, so draft_tokens=0 asks for no more."""
        # The draft is asked first what it could give, rather than rolling the target back after
        # the draft's refusal: a rollback could not bring back the cached blocks evicted for it.
        if self.draft is not None and draft_tokens:
            if draft_tokens > self.draft.room(request.id):
                return False
            if not self.target.reserve(request.id, target_tokens):
                return False
            reserved = self.draft.reserve(request.id, draft_tokens)
            assert reserved, "the draft cache refused what it had room for"
            return True
        return self.target.reserve(request.id, target_tokens)

    def commit(self, request: Request, target_committed: int, draft_committed: int) -> None:
        """Rows now valid in each cache, of `request.tokens` (emitted tokens already appended).
        Surplus blocks of both go back."""
        if self.draft is None:
            self.target.commit(request.id, request.tokens, target_committed)
            return
        assert draft_committed <= target_committed, "the draft cannot be ahead of the target"
        self.target.commit(request.id, request.tokens, target_committed)
        self.draft.commit(request.id, request.tokens, draft_committed)

    def rewind(self, request: Request, num_tokens: int) -> int:
        """Keep at most `num_tokens` rows in both caches; returns the target's new length. Either
        may go back further (see KVCacheManager.rewind), the draft at least as far as the target."""
        kept = self.target.rewind(request.id, min(num_tokens, self.target_committed(request)))
        if self.draft is not None:
            self.draft.rewind(request.id, min(kept, self.draft_committed(request)))
        return kept

    def free(self, request: Request) -> None:
        """Return all blocks of a request."""
        self.target.free(request.id)
        if self.draft is not None:
            self.draft.free(request.id)

    def room(self, request: Request) -> int:
        """Most rows that the request could hold now in both caches."""
        room = self.target.room(request.id)
        return room if self.draft is None else min(room, self.draft.room(request.id))

    def target_room(self, request: Request) -> int:
        """Most rows that the request could hold now in the target's cache."""
        return self.target.room(request.id)

    def target_committed(self, request: Request) -> int:
        return self.target.committed(request.id)

    def draft_committed(self, request: Request) -> int:
        """0 without a draft cache."""
        return 0 if self.draft is None else self.draft.committed(request.id)

    def target_block_table(self, request: Request) -> Tensor:
        """The target's blocks in order of position: int32 [n], a copy."""
        return self.target.block_table(request.id)

    def target_slots(self, request: Request, positions: Sequence[int]) -> Tensor:
        """Rows of the target's cache at reserved positions: int64 [n]."""
        return self.target.slots(request.id, positions)

    def draft_block_table(self, request: Request) -> Tensor:
        """The draft's blocks in order of position: int32 [n], a copy. Needs a draft cache."""
        assert self.draft is not None, "there is no draft cache"
        return self.draft.block_table(request.id)

    @property
    def usage(self) -> float:
        """Share of the blocks in use, of the fuller cache; those cached for reuse count as free."""
        caches = [cache for cache in (self.target, self.draft) if cache is not None]
        return max(1.0 - cache.num_free_blocks / cache.num_blocks for cache in caches)

    def check_invariants(self) -> None:
        """RuntimeError unless both caches' books balance, AssertionError unless they agree; for
        tests and debugging."""
        self.target.check_invariants()
        if self.draft is None:
            return
        self.draft.check_invariants()
        target, draft = self.target.committed_lengths(), self.draft.committed_lengths()
        assert target.keys() == draft.keys(), "the caches hold different requests"
        for request_id, committed in draft.items():
            assert committed <= target[request_id], f"draft of {request_id} ahead of the target"
