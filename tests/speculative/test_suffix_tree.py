"""The suffix trees against a plain trie: counts, drafts and scores, and what they weigh."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from trtspec.speculative.suffix.trees import SuffixCache, SuffixOptions, SuffixTree

from .suffix_oracle import PlainCache, PlainTree

OPTIONS = st.builds(
    SuffixOptions,
    factor=st.sampled_from((0.0, 0.5, 1.0, 1.3, 3.0)),
    offset=st.sampled_from((-1.5, 0.0, 0.5, 4.0)),
    min_prob=st.sampled_from((0.0, 0.1, 1 / 3, 0.5, 1.0)),
    tree=st.booleans(),
)
TOKENS = st.lists(st.integers(0, 2), max_size=12)


class TreeMachine(RuleBasedStateMachine):
    """Sequences are added, appended to, closed and removed in any order."""

    @initialize(depth=st.integers(1, 9))
    def begin(self, depth: int) -> None:
        self.tree, self.plain = SuffixTree(depth), PlainTree(depth)
        self.depth = depth

    @rule()
    def add(self) -> None:
        key = self.tree.add_sequence()
        assert key not in self.plain.texts
        self.plain.texts[key] = []

    @precondition(lambda self: self.plain.texts)
    @rule(data=st.data(), tokens=TOKENS)
    def append(self, data: st.DataObject, tokens: list[int]) -> None:
        key = data.draw(st.sampled_from(sorted(self.plain.texts)))
        self.tree.append(key, tokens)
        self.plain.append(key, tokens)

    @precondition(lambda self: self.plain.texts)
    @rule(data=st.data(), remove=st.booleans())
    def close_or_remove(self, data: st.DataObject, remove: bool) -> None:
        key = data.draw(st.sampled_from(sorted(self.plain.texts)))
        if remove:
            self.tree.remove(key)
            self.plain.remove(key)
        else:
            self.tree.close(key)

    @rule()
    def compact(self) -> None:
        self.tree.compact()

    @rule(data=st.data(), before=TOKENS, max_tokens=st.integers(0, 12), options=OPTIONS)
    def speculate(
        self, data: st.DataObject, before: list[int], max_tokens: int, options: SuffixOptions
    ) -> None:
        key = data.draw(st.sampled_from([-1, *sorted(self.plain.texts)]))
        context = before + self.plain.texts.get(key, [])
        expected = self.plain.speculate(context, max_tokens, options)
        assert self.tree.speculate(context, max_tokens, options, key) == expected
        assert self.tree.speculate(context, max_tokens, options) == expected
        assert self.tree.count(before) == self.plain.count(before)

    @invariant()
    def is_sound(self) -> None:
        if hasattr(self, "tree"):
            self.tree.check()
            assert self.tree.num_tokens == sum(map(len, self.plain.texts.values()))
            assert self.tree.num_nodes <= 2 * self.tree.num_tokens


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


TestTree = TreeMachine.TestCase
TestTree.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
TestCache = CacheMachine.TestCase
TestCache.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)


def test_ten_thousand_queries() -> None:
    """A text that repeats itself with changes, queried behind every token."""
    chance = random.Random(5)
    tree, plain = SuffixTree(12), PlainTree(12)
    key = tree.add_sequence()
    text: list[int] = []
    drafted = 0
    for step in range(2500):
        back = chance.choice((7, 30, 90))
        repeats = len(text) > back and chance.random() < 0.9
        token = text[-back] if repeats else chance.randrange(20)
        tree.append(key, [token])
        plain.append(key, [token])
        text.append(token)
        context = text[-12:]
        for tree_shaped in (False, True):
            for factor in (1.0, 2.5):
                options = SuffixOptions(factor, 0.0, 0.05 * (step % 4), tree_shaped)
                draft = tree.speculate(context, 10, options, key)
                assert draft == plain.speculate(context, 10, options)
                drafted += bool(draft.tokens)
    assert drafted > 5000
    tree.check()


@given(st.lists(st.integers(0, 3), min_size=1, max_size=40), st.integers(1, 8))
@settings(max_examples=100, deadline=None)
def test_count_is_the_number_of_occurrences(text: list[int], depth: int) -> None:
    tree = SuffixTree(depth)
    tree.append(tree.add_sequence(), text)
    assert tree.count([]) == len(text)
    for length in range(1, depth + 3):
        for begin in range(len(text) - length + 1):
            string = text[begin : begin + length]
            found = sum(text[i : i + length] == string for i in range(len(text) - length + 1))
            assert tree.count(string) == (found if length <= depth else 0)


def test_a_pattern_seen_once_before() -> None:
    """The text's own end is counted: what followed once before has probability 1/2."""
    tree = SuffixTree(8)
    text = [1, 2, 3, 4, 5, 1, 2]
    tree.append(tree.add_sequence(), text)
    draft = tree.speculate(text, 9, SuffixOptions(tree=False))
    assert (draft.tokens, draft.parents, draft.match_len) == ([3, 4], [-1, 0], 2)
    assert draft.probs == [0.5, 0.5] and draft.score == 1.0


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
            SuffixTree(depth)
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
