"""What chances nodes have, of all texts and of one."""

from __future__ import annotations

import random

import numpy as np
import pytest

from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree
from trtspec.speculative.hybrid.acceptance import Acceptance, Drift

# What a node's drafter says, and how often it is right: by depth.
TRUE = {0.9: (0.95, 0.8), 0.5: (0.3, 0.6), 0.1: (0.2, 0.02)}


def random_chain(rng: random.Random) -> tuple[TokenTree, list[float]]:
    said = [rng.choice(list(TRUE)) for _ in range(3)]
    scores = np.log(np.cumprod(said)).astype(np.float32)
    return TokenTree([1, 2, 3], [-1, 0, 1], scores), said


def chances(estimator: Acceptance, tree: TokenTree) -> list[float]:
    (calibrated,) = estimator.calibrate([-1], DraftBatch.of([tree]), [12])
    return np.exp(calibrated.scores.astype(np.float64)).tolist()


@pytest.mark.parametrize("verified", [0, 1, 3])
def test_it_converges_whatever_is_verified(verified: int) -> None:
    """The text tells of the node behind those that were verified too, so that truncated drafts do
    not look worse than they are."""
    rng, estimator = random.Random(0), Acceptance(12, 12)
    for step in range(6000):
        tree, said = random_chain(rng)
        right = 0
        while right < 3 and rng.random() < TRUE[said[right]][min(right, 1)]:
            right += 1
        emitted = [1, 2, 3, 9][: min(right, verified)]
        emitted.append(len(emitted) + 1 if right > verified else 9)
        estimator.calibrate([step], DraftBatch.of([tree]), [12])
        estimator.observe(step, DraftBatch.of([tree]), 0, emitted, None)
    for said in TRUE:
        tree = TokenTree([1, 2], [-1, 0], np.log([said, said * said]).astype(np.float32))
        found = chances(estimator, tree)
        first, second = TRUE[said]
        assert found[0] == pytest.approx(first, abs=0.12)
        if verified:
            assert found[1] == pytest.approx(first * second, abs=0.12)


def test_a_path_is_never_likelier_than_its_start() -> None:
    rng, estimator = random.Random(1), Acceptance(12, 12)
    noise = np.random.default_rng(1)
    for _ in range(200):
        size = rng.randint(1, 12)
        parents = [rng.randint(max(-1, i - 3), i - 1) for i in range(size)]
        scores: list[float] = []
        for parent in parents:
            above = scores[parent] if parent >= 0 else 0.0
            scores.append(above + np.log(noise.uniform(0.01, 1)))
        tokens = [rng.randrange(3) for _ in range(size)]
        tree = TokenTree(tokens, parents, np.array(scores, np.float32))
        found = [*chances(estimator, tree), 1.0]
        assert all(found[i] <= found[parent] for i, parent in enumerate(parents))
        before = chances(estimator, tree)
        assert chances(estimator, tree) == before, "asking changes nothing"
        estimator.observe(9, DraftBatch.of([tree]), 0, [rng.randrange(3) for _ in range(4)], None)


def test_the_drafter_is_believed_at_first() -> None:
    tree = TokenTree([1, 2], [-1, 0], np.log([0.9, 0.9 * 0.3]).astype(np.float32))
    found = chances(Acceptance(12, 12), tree)
    assert found[0] == pytest.approx(0.9, abs=0.05) and found[1] == pytest.approx(0.27, abs=0.05)


def test_old_observations_fade() -> None:
    estimator, tree = Acceptance(12, 12), TokenTree([1], [-1], np.log([0.5]).astype(np.float32))
    drafts = DraftBatch.of([tree])
    for _ in range(3000):
        estimator.calibrate([9], drafts, [12])
        estimator.observe(9, drafts, 0, [1], None)
    assert chances(estimator, tree)[0] > 0.97
    for _ in range(1500):
        estimator.calibrate([9], drafts, [12])
        estimator.observe(9, drafts, 0, [2], None)
    assert chances(estimator, tree)[0] < 0.1


def test_drift() -> None:
    """As often as expected, but for chance: no change. Otherwise the exponent that turns what was
    expected into what happened."""
    rng, drift = random.Random(0), Drift()
    away = []
    for _ in range(2000):
        drift.observe(1, rng.random() < 0.6, 0.6)
        away.append(abs(drift.exponent - 1))
    assert sorted(away)[len(away) // 2] < 0.25 and max(away) < 0.9
    for _ in range(100):
        drift.observe(1, 1, 0.6)
    assert 0.6**drift.exponent > 0.75
    for _ in range(100):
        drift.observe(1, 0, 0.6)
    assert 0.6**drift.exponent < 0.45


@pytest.mark.parametrize(("expected", "true"), [(0.5, 0.1), (0.2, 0.7)])
def test_drift_does_not_stop_half_way(expected: float, true: float) -> None:
    """What differs by far more than noise is believed whole, or a drafter whose acceptance has
    fallen would be thought better than it is for as long as it drafts."""
    rng, drift = random.Random(0), Drift()
    found = []
    for step in range(2000):
        drift.observe(1, rng.random() < true, expected)
        if step > 200:
            found.append(expected**drift.exponent)
    assert sum(found) / len(found) == pytest.approx(true, abs=0.08)


def test_requests_of_other_depths_have_a_usual_tree_of_their_own() -> None:
    """What is drafted for one that allows a token is no measure of what others are drafted."""
    estimator = Acceptance(4, 4)
    deep = TokenTree([1, 2, 3, 4], [-1, 0, 1, 2], np.log([0.9, 0.8, 0.7, 0.6]).astype(np.float32))
    short = TokenTree([1], [-1], deep.scores[:1])
    for _ in range(50):
        estimator.calibrate([0, 1], DraftBatch.of([deep, short]), [9, 1])
    usual = estimator.usual([0, 1], 0.0, [9, 1])
    assert (usual[0] > 0.3).all()
    assert usual[1][0] > 0.3 and not usual[1][1:].any()
    estimator.calibrate([0], DraftBatch.of([deep]), [9])
    assert (estimator.usual([0], 0.0, [9]) == estimator.usual([0, 2], 0.0, [9, 2])[1]).all()
    hoped = Acceptance(4, 4).usual([0, 1], 1.0, [9, 2])
    assert hoped[0].all() and hoped[1][:2].all() and not hoped[1][2:].any()
