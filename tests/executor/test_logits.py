"""Penalties and masks: every tree row like the text of its own path, bit for bit."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.config.sampling import SamplingParams
from trtspec.executor.logits import LogitsState, needs_logits_processing
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
    state = LogitsState(params, len(prompt), EOS)
    state.extend_to(prompt)
    state.extend_to(prompt + output[:2])  # in pieces, as a request grows
    state.extend_to(prompt + output)
    state.apply(rows, tree)
    for row in range(len(tree) + 1):
        path = list(tree.path_tokens(row - 1)) if row else []
        expected = naive(logits[row], params, prompt, output + path)
        np.testing.assert_array_equal(rows[row].numpy(), expected)
    if not needs_logits_processing(params):
        np.testing.assert_array_equal(rows.numpy(), logits)


@given(params_, st.lists(tokens_, min_size=1, max_size=6), st.lists(tokens_, max_size=8))
@settings(max_examples=60, deadline=None)
def test_chain_row_equals_no_speculation(
    params: SamplingParams, prompt: list[int], drafts: list[int]
) -> None:
    generator = torch.Generator().manual_seed(1)
    logits = torch.randn(len(drafts) + 1, V, generator=generator) * 3
    together, single = logits.clone(), logits.clone()
    state = LogitsState(params, len(prompt), EOS)
    state.extend_to(prompt)
    state.apply(together, TokenTree.chain(drafts))
    for i in range(len(drafts) + 1):
        state.extend_to(prompt + drafts[:i])
        state.apply(single[i : i + 1], TokenTree.empty())
    assert torch.equal(together.view(torch.int32), single.view(torch.int32))


def test_many_distinct_tokens() -> None:
    params = SamplingParams(frequency_penalty=1.0)
    state = LogitsState(params, 1)
    state.extend_to([0, *range(500), *range(500)])
    logits = torch.zeros(1, 600)
    state.apply(logits, TokenTree.empty())
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
    assert needs_logits_processing(SamplingParams(**options)) is needed
