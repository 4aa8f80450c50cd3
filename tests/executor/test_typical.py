"""TypicalAcceptance: which drafts the lossy rule keeps, against the rule written out."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from trtspec.config.sampling import SamplingParams
from trtspec.config.typical_acceptance import TypicalAcceptanceConfig
from trtspec.executor.step.request import Request
from trtspec.executor.step.sampler import Sampler
from trtspec.executor.step.typical import TypicalAcceptance, distribution
from trtspec.ops.sampling import sample
from trtspec.ops.tree import TokenTree

from ..fake_cuda import can_fake, played_cuda
from .verifying import Verified, verify_trees

V = 12
RULE = TypicalAcceptanceConfig(0.09, 0.3)


def new_request(seed: int = 0, id: int = 7, **options: Any) -> Request:
    params = SamplingParams(max_tokens=100, **{"temperature": 1.0, **options})
    return Request.create(id, [1, 2], params, seed, 1000, eos_token_ids=())


def verify(request: Request, tree: TokenTree, logits: Tensor, lossy: bool = True) -> Verified:
    rule = TypicalAcceptance(RULE) if lossy else None
    (result,) = verify_trees(Sampler(rule), [request], [tree], logits.clone())
    return result


def random_tree(noise: np.random.Generator, count: int) -> TokenTree:
    """Siblings have different tokens."""
    tokens, parents = [], []
    taken: set[tuple[int, int]] = set()
    while len(tokens) < count:
        parent, token = int(noise.integers(-1, len(tokens))), int(noise.integers(V))
        if (parent, token) not in taken:
            taken.add((parent, token))
            tokens.append(token)
            parents.append(parent)
    return TokenTree(tokens, parents)


def expected(request: Request, tree: TokenTree, logits: Tensor) -> tuple[list[int], list[int]]:
    """Rows and tokens, node by node: every path of kept nodes, the deepest and then the first."""
    own = verify_rows(request, tree, logits)
    probabilities = distribution(logits, request.params).double()

    def kept(node: int) -> bool:
        row, token = int(tree.parents[node]) + 1, int(tree.tokens[node])
        p = probabilities[row]
        entropy = -sum(float(x) * math.log(float(x)) for x in p if x > 0)
        least = min(RULE.posterior_threshold, RULE.posterior_alpha * math.exp(-entropy))
        return float(p[token]) > least or own[row] == token

    paths: list[list[int]] = [[]]
    for node in range(len(tree)):
        path = [node]
        while tree.parents[path[0]] >= 0:
            path.insert(0, int(tree.parents[path[0]]))
        if all(map(kept, path)):
            paths.append(path)
    best = max(paths, key=len)
    rows = [0, *(node + 1 for node in best)]
    return rows, [*(int(tree.tokens[node]) for node in best), own[rows[-1]]]


def verify_rows(request: Request, tree: TokenTree, logits: Tensor) -> list[int]:
    """What the target samples in every row."""
    p, count = request.params, len(logits)
    depth = torch.tensor([0, *tree.depths.tolist()])
    columns = [
        torch.full((count,), value, dtype=kind)
        for value, kind in (
            (p.temperature, torch.float32), (p.top_k, torch.int32), (p.top_p, torch.float32),
            (p.min_p, torch.float32), (request.seed, torch.int64), (0, torch.int64),
        )
    ]  # fmt: skip
    ids: list[int] = sample(logits, *columns, depth).tolist()
    return ids


@settings(max_examples=150, deadline=None)
@given(
    seed=st.integers(0, 10_000),
    scale=st.sampled_from([0.5, 2.0, 5.0]),
    options=st.sampled_from(
        [{}, {"temperature": 0.5}, {"top_k": 3}, {"top_p": 0.7}, {"min_p": 0.2},
         {"temperature": 1.5, "top_k": 6, "top_p": 0.8, "min_p": 0.05}]
    ),
)  # fmt: skip
def test_the_rule(seed: int, scale: float, options: dict[str, Any]) -> None:
    tree = random_tree(np.random.default_rng(seed), 9)
    logits = scale * torch.randn(10, V, generator=torch.Generator().manual_seed(seed))
    request = new_request(seed, **options)
    result = verify(request, tree, logits)
    assert (result.rows, result.tokens) == expected(request, tree, logits)
    assert len(result.rows) >= len(verify(request, tree, logits, lossy=False).rows)


@settings(max_examples=50, deadline=None)
@given(seed=st.integers(0, 10_000))
def test_what_the_target_samples_from(seed: int) -> None:
    """Nothing that is sampled has probability 0, and frequencies follow it."""
    logits = 2 * torch.randn(1, V, generator=torch.Generator().manual_seed(seed))
    requests = [new_request(i, top_k=6, top_p=0.8, min_p=0.1, temperature=0.9) for i in range(200)]
    p = distribution(logits, requests[0].params)[0]
    assert abs(float(p.sum()) - 1) < 1e-5
    counts = np.zeros(V)
    for request in requests:
        counts[verify_rows(request, TokenTree.empty(), logits)[0]] += 1
    assert not counts[(p == 0).numpy()].any()
    assert np.abs(counts / 200 - p.numpy()).max() < 0.15


def test_greedy_is_lossless() -> None:
    tree = TokenTree.chain([3, 4])
    logits = torch.zeros(3, V)
    logits[0, 5], logits[0, 3] = 2.0, 1.99
    request = new_request(temperature=0.0)
    assert verify(request, tree, logits).tokens == [5]
    warm = new_request(temperature=1.0)
    assert verify(warm, tree, logits).rows[:2] == [0, 1]


def test_bans_are_kept() -> None:
    """A token that penalties and bans exclude is never accepted, however likely it was."""
    tree = TokenTree.chain([3])
    logits = torch.zeros(2, V)
    logits[:, 3] = 9.0
    assert verify(new_request(), tree, logits).rows == [0, 1]
    assert verify(new_request(bad_words=[[3]]), tree, logits).rows == [0]


def test_a_row_without_a_token_fails() -> None:
    tree = TokenTree.chain([3, 4])
    logits = torch.zeros(3, V)
    logits[0] = float("nan")
    result = verify(new_request(), tree, logits)
    assert result.failed and not result.rows


@pytest.mark.skipif(not can_fake(), reason="torch has CUDA itself")
@pytest.mark.parametrize("options", [{}, {"top_k": 3, "repetition_penalty": 1.2, "logprobs": 2}])
def test_logits_on_a_device(options: dict[str, Any]) -> None:
    """The result is that of the same logits on the host, of two requests with trees."""
    noise = np.random.default_rng(5)
    trees = [random_tree(noise, 9), TokenTree.empty(), random_tree(noise, 4)]
    logits = 2 * torch.randn(16, V, generator=torch.Generator().manual_seed(5))
    requests = [new_request(seed, seed, **options) for seed in range(3)]
    expected = verify_trees(Sampler(TypicalAcceptance(RULE)), requests, trees, logits.clone())
    with played_cuda():
        found = verify_trees(Sampler(TypicalAcceptance(RULE)), requests, trees, logits.cuda())
    assert found == expected
    assert max(len(result.rows) for result in found) > 1
