"""The processors of requests: every tree row like the text of its own path, bit for bit."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.config.sampling import SamplingParams
from trtspec.errors import EngineError
from trtspec.executor.logits.logits_mask import LogitsMask, columns_of
from trtspec.executor.logits.logits_processor import LogitsProcessor
from trtspec.executor.step.request import Request
from trtspec.executor.step.request_processors import RequestProcessors
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.logits_mask import mask_logits, pack_bits
from trtspec.ops.tree import TokenTree

V = 12
EOS = (11,)


def naive(
    logits: np.ndarray, params: SamplingParams, prompt: list[int], output: list[int]
) -> np.ndarray:
    """One row, from the definitions of HF and vLLM, token by token."""
    row = logits.copy()
    f32 = np.float32
    for token, bias in params.token_biases.items():
        row[token] = row[token] + f32(bias)
    for token in range(V):
        x = row[token]
        if token in prompt or token in output:
            penalty = f32(params.repetition_penalty)
            x = x / penalty if x > 0 else x * penalty
        x = x - f32(output.count(token)) * f32(params.frequency_penalty)
        row[token] = x - f32(token in output) * f32(params.presence_penalty)
    text = prompt + output
    for word in params.banned_sequences:
        before = list(word[:-1])
        if len(text) >= len(before) and text[len(text) - len(before) :] == before:
            row[word[-1]] = -np.inf
    if len(output) < params.min_tokens:
        ends = () if params.ignore_eos else EOS
        row[[*ends, *params.stop_token_ids]] = -np.inf
    return row


class Text:
    """A request that grows, and the processors of its options."""

    def __init__(self, params: SamplingParams, prompt: list[int]) -> None:
        self.processors = RequestProcessors()
        self.request = Request.create(3, prompt, params, 0, 10_000, eos_token_ids=EOS)
        self.processors.begin(self.request)
        self.processors.informed(self.request)

    def grow(self, tokens: list[int]) -> None:
        self.request.tokens.extend(tokens)
        self.processors.informed(self.request)

    def change(self, logits: torch.Tensor, tree: TokenTree) -> None:
        item = ScheduledRequest(self.request, len(self.request.tokens) - 1, 1, True, 9, True)
        (change,) = self.processors.changes(StepPlan((item,)), DraftBatch.of([tree]))
        if change is not None:
            change.apply(logits)


tokens_ = st.integers(0, V - 1)
params_ = st.builds(
    SamplingParams,
    repetition_penalty=st.sampled_from([1.0, 1.3, 0.7]),
    presence_penalty=st.sampled_from([0.0, 0.37, -1.1]),
    frequency_penalty=st.sampled_from([0.0, 0.21, -0.3]),
    logit_bias=st.dictionaries(tokens_, st.sampled_from([0.3, -7.7, 100.0]), max_size=3),
    bad_words=st.lists(st.lists(tokens_, min_size=1, max_size=3).map(tuple), max_size=4),
    min_tokens=st.integers(0, 6),
    stop_token_ids=st.lists(tokens_, max_size=2).map(tuple),
    ignore_eos=st.booleans(),
)


@st.composite
def trees(draw: st.DrawFn) -> TokenTree:
    size = draw(st.integers(0, 7))
    return TokenTree(
        [draw(tokens_) for _ in range(size)], [draw(st.integers(-1, i - 1)) for i in range(size)]
    )


@given(params_, st.lists(tokens_, min_size=1, max_size=6), st.lists(tokens_, max_size=6), trees())
@settings(max_examples=150, deadline=None)
def test_each_row_equals_the_naive_text(
    params: SamplingParams, prompt: list[int], output: list[int], tree: TokenTree
) -> None:
    logits = np.random.default_rng(0).normal(0, 4, (len(tree) + 1, V)).astype(np.float32)
    rows = torch.from_numpy(logits.copy())
    text = Text(params, prompt)
    text.grow(output[:2])  # in pieces, as a request grows
    text.grow(output[2:])
    text.change(rows, tree)
    for row in range(len(tree) + 1):
        path = list(tree.path_tokens(row - 1)) if row else []
        expected = naive(logits[row], params, prompt, output + path)
        np.testing.assert_array_equal(rows[row].numpy(), expected)
    if not text.processors.informed(text.request):
        np.testing.assert_array_equal(rows.numpy(), logits)


@given(params_, st.lists(tokens_, min_size=1, max_size=6), st.lists(tokens_, max_size=8))
@settings(max_examples=60, deadline=None)
def test_chain_row_equals_no_speculation(
    params: SamplingParams, prompt: list[int], drafts: list[int]
) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(len(drafts) + 1, V, generator=generator) * 3
    together, single = logits.clone(), logits.clone()
    text = Text(params, prompt)
    text.change(together, TokenTree.chain(drafts))
    for i in range(len(drafts) + 1):
        text.grow(drafts[i - 1 : i])
        text.change(single[i : i + 1], TokenTree.empty())
    assert torch.equal(together.view(torch.int32), single.view(torch.int32))


def test_many_distinct_tokens() -> None:
    params = SamplingParams(frequency_penalty=1.0)
    text = Text(params, [0])
    text.grow([*range(500), *range(500)])
    logits = torch.zeros(1, 600)
    text.change(logits, TokenTree.empty())
    assert logits[0, :500].eq(-2.0).all() and logits[0, 500:].eq(0.0).all()


@pytest.mark.parametrize(
    ("options", "needed"),
    [
        ({}, False),
        ({"temperature": 0.8, "top_k": 4, "top_p": 0.5, "stop_token_ids": (3,)}, False),
        ({"repetition_penalty": 1.1}, True),
        ({"presence_penalty": 0.1}, True),
        ({"frequency_penalty": 0.1}, True),
        ({"logit_bias": {3: 1.0}}, True),
        ({"bad_words": [[1]]}, True),
        ({"bad_words_ids": ((1,),)}, True),
        ({"min_tokens": 1}, True),
    ],
)
def test_needed(options: dict[str, Any], needed: bool) -> None:
    text = Text(SamplingParams(**options), [1])
    assert bool(text.processors.informed(text.request)) is needed
    assert text.processors.live_requests == ({text.request.id} if needed else set())
    text.processors.release(text.request.id)
    assert not text.processors.live_requests


@pytest.mark.parametrize("size", [40, 64, 70, 30])
def test_masks_of_a_step_are_one(size: int) -> None:
    """Those of the same rows all hold, others' rows are left alone, and equal biases come in the
    order of the masks; ids without a bit are refused."""
    first, second = slice(0, 2), slice(2, 3)
    bits = torch.arange(3 * 40).view(3, 40) % 3 > 0
    masks = [
        (first, LogitsMask(allowed=pack_bits(bits[:2]))),
        (second, LogitsMask(biases=(torch.tensor([3, 1]), torch.tensor([1e8, 2.0])))),
        (second, LogitsMask(biases=(torch.tensor([3]), torch.tensor([-1e8])))),
        (first, LogitsMask(banned=(torch.tensor([1, 0]), torch.tensor([2, 2])))),
        (first, LogitsMask(allowed=pack_bits(bits[1:]))),
    ]
    logits = torch.full((4, size), 0.1)
    columns = columns_of(masks, 4, size)
    assert columns is not None
    mask_logits(logits, columns)
    may_come = torch.zeros(2, size, dtype=torch.bool)
    may_come[:, :40] = (bits[:2] & bits[1:])[:, :size]
    may_come[:, 2] = False
    expected = torch.full((4, size), 0.1)
    expected[:2][~may_come] = -torch.inf
    expected[2, 3], expected[2, 1] = 0.0, torch.tensor(0.1) + 2.0
    assert torch.equal(logits, expected)
    assert columns_of([], 4, size) is None


@pytest.mark.parametrize("row", [-1, 2])
def test_a_mask_stays_in_its_rows(row: int) -> None:
    banned = torch.tensor([0, row]), torch.tensor([1, 1])
    with pytest.raises(EngineError, match=r"bans tokens in rows .* has rows 0 to 1"):
        columns_of([(slice(2, 4), LogitsMask(banned=banned))], 9, V)
    with pytest.raises(EngineError, match=r"in 3 rows, but its request has 2"):
        columns_of([(slice(2, 4), LogitsMask(allowed=torch.zeros(3, 1).int()))], 9, V)


class Says(LogitsProcessor):
    """Forces some tokens, and lets none come that are above them."""

    def __init__(self, *forced: int) -> None:
        self.words = forced

    def extend(self, tokens: Sequence[int]) -> None:
        pass

    def prune(self, tree: TokenTree) -> TokenTree:
        return tree.without(range(max(self.words) + 1, V))

    def forced(self, tokens: Sequence[int] = ()) -> Sequence[int]:
        return self.words[len(tokens) :]


@pytest.mark.parametrize(
    ("max_nodes", "max_depth", "left", "drafted", "expected"),
    [
        (8, 8, 50, [], [5, 6, 7]),
        (2, 8, 50, [], [5, 6]),
        (8, 1, 50, [], [5]),
        (8, 8, 3, [], [5, 6]),
        (8, 8, 50, [5, 6, 7, 4], [5, 6, 7, 4]),
        (8, 8, 50, [5, 6, 9, 4], [5, 6, 7]),
        (0, 8, 50, [], []),
    ],
)
def test_what_is_forced_is_drafted(
    max_nodes: int, max_depth: int, left: int, drafted: list[int], expected: list[int]
) -> None:
    """As far as there is room for it, and where the drafter has not said more."""
    params = SamplingParams(max_tokens=left)
    request = Request.create(
        3, [1, 2], params, 0, 100, eos_token_ids=EOS, processors=(Says(5, 6, 7),)
    )
    drafts = DraftBatch.of([TokenTree.chain(drafted)])
    plan = StepPlan((ScheduledRequest(request, 1, 1, True, max_nodes, True),))
    processors = RequestProcessors()
    processors.begin(request)
    shaped = processors.shape_drafts(plan, drafts, max_depth)
    assert shaped == DraftBatch.of([TokenTree.chain(expected)])
    assert (shaped is drafts) == (drafted == expected)
