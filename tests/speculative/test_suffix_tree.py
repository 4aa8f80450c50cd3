"""The suffix trees against a plain trie: counts, drafts and scores, and what they weigh."""

from __future__ import annotations

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from .suffix_oracle import PlainCache
from .suffix_trees import SuffixCache, SuffixOptions

OPTIONS = st.builds(
    SuffixOptions,
    factor=st.sampled_from((0.0, 0.5, 1.0, 1.3, 3.0)),
    offset=st.sampled_from((-1.5, 0.0, 0.5, 4.0)),
    min_prob=st.sampled_from((0.0, 0.1, 1 / 3, 0.5, 1.0)),
    tree=st.booleans(),
)
TOKENS = st.lists(st.integers(0, 2), max_size=12)


class CacheMachine(RuleBasedStateMachine):
    """Requests come, grow, stop before their end and come back, and are evicted."""

    @initialize(depth=st.integers(2, 8), requests=st.integers(-1, 4), tokens=st.integers(0, 60))
    def begin(self, depth: int, requests: int, tokens: int) -> None:
        self.limits = requests, tokens
        self.cache = SuffixCache(depth, requests, tokens)
        self.plain = PlainCache(depth, requests, tokens)
        self.texts: dict[int, tuple[list[int], list[int]]] = {}

    @rule(prompt=TOKENS, response=TOKENS)
    def arrive(self, prompt: list[int], response: list[int]) -> None:
        request = len(self.texts)
        self.texts[request] = [1, *prompt], response
        self._start(request)

    @rule(data=st.data())
    def come_back(self, data: st.DataObject) -> None:
        stopped = [r for r in self.texts if not self.cache.is_active(r)]
        if stopped:
            self._start(data.draw(st.sampled_from(stopped)))

    def _start(self, request: int) -> None:
        prompt, response = self.texts[request]
        for cache in (self.cache, self.plain):
            cache.start(request)
            for begin in range(0, len(prompt), 5):
                cache.append_prompt(request, prompt[begin : begin + 5])
            for begin in range(0, len(response), 4):
                cache.append_response(request, response[begin : begin + 4])
        with pytest.raises(RuntimeError, match=f"request {request} is already active"):
            self.cache.start(request)

    @precondition(lambda self: self.plain.active)
    @rule(data=st.data(), tokens=TOKENS)
    def grow(self, data: st.DataObject, tokens: list[int]) -> None:
        request = data.draw(st.sampled_from(sorted(self.plain.active)))
        self.texts[request][1].extend(tokens)
        for cache in (self.cache, self.plain):
            cache.append_response(request, tokens)

    @precondition(lambda self: self.texts)
    @rule(data=st.data(), evict=st.booleans())
    def stop_or_evict(self, data: st.DataObject, evict: bool) -> None:
        request = data.draw(st.sampled_from(sorted(self.texts)))
        if evict:
            assert self.cache.evict(request) == self.plain.evict(request)
        else:
            self.cache.stop(request)
            self.plain.stop(request)

    @rule(options=OPTIONS, max_tokens=st.integers(0, 9))
    def speculate(self, options: SuffixOptions, max_tokens: int) -> None:
        active = sorted(self.plain.active)
        counts = [max_tokens + i % 2 for i in range(len(active))]
        drafts = self.cache.speculate(active, counts, options)
        for request, count, draft in zip(active, counts, drafts, strict=True):
            assert draft == self.plain.speculate(request, count, options)

    @invariant()
    def is_bounded(self) -> None:
        if not hasattr(self, "cache"):
            return
        sizes, (requests, tokens) = self.cache.sizes, self.limits
        assert sizes.num_active == len(self.plain.active)
        assert sizes.num_cached == len(self.plain.order)
        assert sizes.num_cached_tokens == sum(map(len, self.plain.pooled.texts.values()))
        assert requests < 0 or sizes.num_cached <= requests
        assert sizes.num_cached_tokens <= max(
            tokens, *(len(response) for _, response in self.texts.values()), 0
        )


TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_memory_follows_what_is_cached() -> None:
    """Requests without end, a bounded number of bytes: at most 250 a cached token."""
    chance = random.Random(1)
    words = [[chance.randrange(5000) for _ in range(chance.randrange(2, 9))] for _ in range(2000)]
    cache, most = SuffixCache(24, 1000, 20_000), 0
    for request in range(1500):
        cache.start(request)
        cache.append_prompt(request, chance.choices(range(5000), k=20))
        for _ in range(20):
            cache.append_response(request, chance.choice(words))
        cache.stop(request)
        sizes = cache.sizes
        assert sizes.num_cached_tokens <= 20_000
        # Beside the cached tokens: texts of removed requests, until they are worth a pass.
        most = max(most, sizes.memory_bytes)
    assert sizes.num_cached < 250 and sizes.num_active == 0
    assert most < 250 * 20_000 + 4 * (1 << 17)


def test_wrong_arguments() -> None:
    for depth in (0, 1025):
        with pytest.raises(RuntimeError, match=f"max_depth={depth} must be between 1 and 1024"):
            SuffixCache(depth, 1, 1)
    with pytest.raises(RuntimeError, match="max_requests=-2 must be -1 or more"):
        SuffixCache(4, -2, 1)
    cache = SuffixCache(4, 1, 1)
    with pytest.raises(RuntimeError, match="request 3 is not active"):
        cache.append_prompt(3, [1])
    cache.start(3)
    for token in (-1, 2**31):
        with pytest.raises(RuntimeError, match=f"token {token} is not between"):
            cache.append_prompt(3, [1, token])
    cache.append_response(3, [1])
    with pytest.raises(RuntimeError, match="its prompt is complete"):
        cache.append_prompt(3, [1])
    cache.stop(3)
    cache.stop(3)
