"""Prompt lookup against a brute-force search, and the plain Python index on long texts."""

from __future__ import annotations

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.config.sampling import SamplingParams
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.tree import TokenTree
from trtspec.speculative.ngram.drafter import NGramDrafter
from trtspec.speculative.ngram.options import NGramDecodingConfig

from .ngram_reference import PlainNgramIndex

TOKENS = st.lists(st.sampled_from((0, 1, 2, -1, 2**40, 2**63 - 1, -(2**63))), max_size=25)


def make_request(id: int, tokens: list[int], max_tokens: int, **options: object) -> Request:
    params = SamplingParams(max_tokens=max_tokens, **options)  # type: ignore[arg-type]
    return Request.create(id, tokens, params, seed=0, max_seq_len=100_000, eos_token_ids=(9,))


def generation(request: Request, max_nodes: int) -> ScheduledRequest:
    return ScheduledRequest(
        request=request,
        start=len(request.tokens) - 1,
        num_rows=1,
        is_generation=True,
        max_nodes=max_nodes,
        samples=True,
    )


def chain_of(drafter: NGramDrafter, request: Request, count: int) -> list[int]:
    (tree,) = drafter.prepare_draft_tokens(StepPlan((generation(request, count),)))
    assert tree == TokenTree.chain(tree.tokens)
    return tree.tokens.tolist()


class OneText:
    """The index of a text that begins with a token of its own, beside that of another one."""

    def __init__(self, low: int, high: int) -> None:
        options = {"prompt_lookup_min": low, "prompt_lookup_max": high, "max_draft_len": 9}
        self.drafter = NGramDrafter(NGramDecodingConfig(**options))
        self.request = make_request(4, [-7], 50_000)
        self.others = [make_request(3, [1] * 20, 9), make_request(5, [1] * 20, 1)]

    def extend(self, tokens: list[int]) -> None:
        self.request.tokens.extend(tokens)

    def propose(self, count: int) -> list[int]:
        before, after = self.others
        items = generation(before, 1), generation(self.request, count), generation(after, 9)
        drafts = self.drafter.prepare_draft_tokens(StepPlan(items))
        assert drafts.counts[0] == 1 and not drafts.counts[2]
        return drafts[1].tokens.tolist()


def brute_force(tokens: list[int], low: int, high: int, count: int) -> list[int]:
    for n in range(min(high, len(tokens) - 1), low - 1, -1):
        for begin in range(len(tokens) - n - 1, -1, -1):
            if tokens[begin : begin + n] == tokens[-n:]:
                text = list(tokens)
                for i in range(count):
                    text.append(text[begin + n + i])
                return text[len(tokens) :]
    return []


@given(
    st.lists(st.integers(0, 3), max_size=60),
    st.integers(1, 4),
    st.integers(0, 3),
    st.integers(1, 8),
    st.integers(1, 7),
)
@settings(max_examples=300, deadline=None)
def test_drafts_equal_brute_force(
    tokens: list[int], low: int, more: int, count: int, piece: int
) -> None:
    text = OneText(low, low + more)
    for begin in range(0, len(tokens) + piece, piece):
        text.extend(tokens[begin : begin + piece])
        seen = [*text.request.tokens]
        assert text.propose(count) == brute_force(seen, low, low + more, count)


@given(st.integers(1, 4), st.integers(0, 5), st.lists(st.tuples(TOKENS, st.integers(0, 9))))
@settings(max_examples=200, deadline=None)
def test_drafts_equal_the_plain_index(
    low: int, more: int, pieces: list[tuple[list[int], int]]
) -> None:
    text, plain = OneText(low, low + more), PlainNgramIndex(low, low + more)
    plain.extend([-7])
    for tokens, count in pieces:
        text.extend(tokens)
        plain.extend(tokens)
        assert text.propose(count) == plain.propose(count)


@pytest.mark.parametrize("vocab", [4, 300])
def test_a_long_text(vocab: int) -> None:
    rng = random.Random(vocab)
    text, plain = OneText(1, 4), PlainNgramIndex(1, 4)
    plain.extend([-7])
    for _ in range(2000):
        tokens = [rng.randrange(vocab) for _ in range(rng.randint(1, 6))]
        tokens = [token for token in tokens if token != 9]  # it ends a text
        text.extend(tokens)
        plain.extend(tokens)
        assert text.propose(6) == plain.propose(6)


def propose(text: list[int], low: int, high: int, count: int) -> list[int]:
    drafter = OneText(low, high).drafter
    return chain_of(drafter, make_request(0, text, 99), count)


def test_longest_match_then_most_recent() -> None:
    text = [1, 2, 7, 0, 2, 8, 1, 2]
    assert propose(text, 1, 2, 2) == [7, 0], "the 2-gram wins over the more recent 1-gram"
    assert propose(text, 1, 1, 2) == [8, 1], "the most recent occurrence"
    assert propose([5, 5, 5], 2, 3, 4) == [5, 5, 5, 5], "a repeating text goes on"
    assert propose([1], 1, 2, 3) == []


def test_drafter() -> None:
    drafter = NGramDrafter(NGramDecodingConfig(max_draft_len=3, prompt_lookup_max=2))
    assert (drafter.needs.max_nodes, drafter.needs.max_depth) == (3, 3)
    assert not drafter.needs.caches
    text = [1, 2, 3, 4, 5, 1, 2]
    free, cut, short, none, ending = (
        make_request(0, text, 10),
        make_request(1, text, 10),
        make_request(2, text, 2),
        make_request(3, [1, 2, 3], 10),
        make_request(4, [1, 2, 9, 4, 1, 2], 10),
    )
    prefill = make_request(5, text, 10)
    stopping = make_request(6, text, 10, stop_token_ids=(4,))
    nodes = {free: 3, cut: 2, short: 3, none: 3, ending: 3, stopping: 3}
    items = [generation(request, count) for request, count in nodes.items()]
    items.append(
        ScheduledRequest(
            request=prefill, start=0, num_rows=7, is_generation=False, max_nodes=0, samples=True
        )
    )
    batch = StepPlan(tuple(items))
    drafts = drafter.prepare_draft_tokens(batch)
    assert [tree.tokens.tolist() for tree in drafts] == [
        [3, 4, 5],
        [3, 4],
        [3],
        [],
        [],
        [3],
        [],
    ]
    assert all(tree == TokenTree.chain(tree.tokens) for tree in drafts)
    assert drafter.on_accepted(batch, StepResult.of([[]] * 7)) == [()] * 7

    free.tokens.extend([3, 4])
    assert chain_of(drafter, free, 1) == [5]
    drafter.release(free.id)
    drafter.release(99)
    assert chain_of(drafter, free, 3) == [5, 1, 2], "a preempted request starts over"
