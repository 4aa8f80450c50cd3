"""Forced acceptance: the rates are met, the walk stays the ordinary one, and it repeats itself."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.config.sampling import SamplingParams
from trtspec.executor.step.request import Request
from trtspec.executor.step.sampler import Sampler
from trtspec.executor.step.simulation import SimulatedAcceptance, uniform
from trtspec.ops.sampling import philox_reference
from trtspec.ops.tree import TokenTree

from .verifying import Verified, verify_trees

V = 40
EOS = 0
CHAIN = TokenTree.chain([5, 6, 7, 8])
# The root's first child is a leaf; its second one leads to depth 4, in two ways.
TREE = TokenTree([11, 12, 13, 14, 15, 16, 17, 18], [-1, -1, 1, 1, 2, 3, 5, 4])
SHALLOW = TokenTree([21, 22], [-1, -1])


def new_request(
    id: int = 0, seed: int = 7, step: int = 0, eos: Sequence[int] = (EOS,), **options: object
) -> Request:
    params = SamplingParams(max_tokens=100_000, **options)
    request = Request.create(id, [1, 2], params, seed, 200_000, eos_token_ids=tuple(eos))
    request.num_steps = step
    return request


def verify(
    rates: Sequence[float], requests: list[Request], trees: list[TokenTree], favourite: int = 39
) -> list[Verified]:
    """Results over random logits that all prefer ``favourite``, which no tree here carries."""
    rows = sum(1 + len(tree) for tree in trees)
    logits = torch.randn(rows, V, generator=torch.Generator().manual_seed(0))
    logits[:, favourite] += 20
    return verify_trees(Sampler(SimulatedAcceptance(rates)), requests, trees, logits)


def accepted_tokens(tree: TokenTree, result: Verified) -> list[int]:
    """The drafts accepted; what was emitted must be exactly the path walked, and one token more."""
    path = [int(tree.tokens[row - 1]) for row in result.rows[1:]]
    assert result.rows[0] == 0 and result.tokens[:-1] == path and not result.failed
    return path


def test_uniform_is_the_philox_of_the_sampling_ops() -> None:
    for seed, sample, step in ((0, 0, 0), (2**63 + 12345, 3, 77), (-1, 2**33 + 1, 10**6)):
        word = 2**32 - 1
        counter = torch.tensor([0, step & word, sample & word, 1])
        key = torch.tensor([seed & word, seed >> 32 & word])
        expected = (float(philox_reference(counter, key)[0]) + 0.5) / 2**32
        assert uniform(seed, sample, step) == expected


@pytest.mark.parametrize("tree", [CHAIN, TREE])
def test_rates_are_met(tree: TokenTree) -> None:
    rates = (0.8, 0.55, 0.5, 0.1)
    steps, batch = 400, 10
    counts = np.zeros(len(rates))
    for step in range(steps):
        requests = [new_request(i, seed=100 + i, step=step) for i in range(batch)]
        for result in verify(rates, requests, [tree] * batch):
            counts[: len(accepted_tokens(tree, result))] += 1
    # Four standard deviations of 4,000 draws are 0.03.
    np.testing.assert_allclose(counts / (steps * batch), rates, atol=0.03)


def test_one_accepts_everything_along_the_deepest_path() -> None:
    trees = [CHAIN, TREE, SHALLOW, TokenTree.empty()]
    requests = [new_request(i) for i in range(4)]
    results = verify((1.0,) * 6, requests, trees)
    paths = [accepted_tokens(tree, v) for tree, v in zip(trees, results, strict=True)]
    assert paths == [[5, 6, 7, 8], [12, 14, 16, 17], [21], []]
    assert [v.tokens[-1] for v in results] == [39] * 4  # the bonus is the target's own


def test_the_first_node_of_that_depth_ends_the_path() -> None:
    for length, path in ((1, [11]), (2, [12, 13]), (3, [12, 13, 15]), (4, [12, 14, 16, 17])):
        (result,) = verify((1.0,) * length, [new_request()], [TREE])
        assert accepted_tokens(TREE, result) == path


def test_nothing_is_accepted_at_zero_even_if_the_target_agrees() -> None:
    for favourite, expected in ((5, 1), (39, 39)):
        (result,) = verify((0.0,), [new_request()], [CHAIN], favourite)
        assert result.rows == [0] and result.tokens == [expected]


def test_the_token_in_place_of_a_draft_is_no_draft_and_no_end() -> None:
    tree = TokenTree([1, 3], [-1, -1])  # ids 0 (EOS), 1, 2 (stop) and 3 are taken
    request = new_request(stop_token_ids=[2])
    (result,) = verify((0.0,), [request], [tree], favourite=3)
    assert result.tokens == [4]
    (result,) = verify((0.0,), [new_request(eos=())], [tree], favourite=3)
    assert result.tokens == [0]


def test_an_end_comes_only_from_a_draft_or_from_the_target() -> None:
    for step in range(200):
        (result,) = verify((0.7, 0.3), [new_request(step=step)], [CHAIN], favourite=7)
        assert EOS not in result.tokens
    (result,) = verify((1.0, 1.0), [new_request()], [TokenTree.chain([5, EOS])])
    assert result.tokens == [5, EOS] and result.reason == "stop"
    (result,) = verify((0.0,), [new_request()], [CHAIN], favourite=EOS)
    assert result.tokens == [EOS]


def test_of_two_siblings_with_one_token_the_walk_takes_the_first() -> None:
    tree = TokenTree([9, 9, 10], [-1, -1, 0])
    (result,) = verify((1.0, 1.0), [new_request()], [tree])
    assert result.rows == [0, 1, 3]


def test_a_row_without_a_token_still_fails() -> None:
    logits = torch.full((5, V), float("nan"))
    (result,) = verify_trees(
        Sampler(SimulatedAcceptance((1.0,) * 4)), [new_request()], [CHAIN], logits
    )
    assert result.failed


def test_without_it_the_sampler_is_untouched() -> None:
    logits = torch.zeros(5, V)
    logits[:2, 5:7] = torch.eye(2)
    (result,) = verify_trees(Sampler(), [new_request()], [CHAIN], logits)
    assert result.tokens == [5, 6, 0]


@given(st.data())
@settings(max_examples=50, deadline=None)
def test_batches_change_nothing(data: st.DataObject) -> None:
    """What becomes of a request depends on its own tree, seed and step alone."""
    rates = (0.9, 0.6, 0.3)
    trees, requests = [], []
    for i in range(data.draw(st.integers(1, 4))):
        size = data.draw(st.integers(0, 7))
        parents = [data.draw(st.integers(-1, node - 1)) for node in range(size)]
        trees.append(TokenTree(data.draw(st.permutations(range(1, 9)))[:size], parents))
        step, seed = data.draw(st.integers(0, 50)), data.draw(st.integers(0, 2**63 - 1))
        requests.append(new_request(i, seed, step))
    together = verify(rates, requests, trees)
    for request, tree, result in zip(requests, trees, together, strict=True):
        (alone,) = verify(rates, [request], [tree])
        assert accepted_tokens(tree, result) == accepted_tokens(tree, alone)
        drawn = SimulatedAcceptance(rates).accepted(request)
        assert len(result.rows) - 1 == min(drawn, tree.max_depth)
