"""Worth: where no request waits, drafts are for those that end last."""

from __future__ import annotations

import numpy as np
import pytest

from trtspec.config.sampling import SamplingParams
from trtspec.executor.request import Request
from trtspec.speculative.hybrid.worth import Worth

from .simulated_serving import ChainDrafter, World, union_of
from .test_recorded import COSTS, RecordedDrafter


def request(id: int, tokens: int, ends: tuple[int, ...] = ()) -> Request:
    params = SamplingParams(max_tokens=tokens)
    return Request.create(id, [1], params, seed=id, max_seq_len=1 << 16, eos_token_ids=ends)


def test_tokens_of_the_last_to_end_are_worth_most() -> None:
    worth = Worth()
    alike = worth.of([request(0, 50), request(1, 50)], 0.2)
    assert alike is not None and np.allclose(alike, 1.0)
    found = worth.of([request(0, 50), request(1, 25)], 0.2)
    assert found is not None and found.mean() == pytest.approx(1.0)
    assert found[0] > 1.7 and 0.2 <= found[1] < 0.3, "an early end saves rows alone"
    for _ in range(40):
        worth.observe(0, 3)
        worth.observe(1, 1)
    found = worth.of([request(0, 50), request(1, 25)], 0.2)
    assert found is not None and found[1] > found[0], "the slow one ends last"
    assert worth.live_requests == {0, 1}
    worth.release(0)
    assert worth.live_requests == {1}


def test_nothing_is_known_of_texts_that_may_end_at_any_time() -> None:
    assert Worth().of([request(0, 2000, (7,)), request(1, 50)], 0.2) is None
    assert Worth().of([request(0, 200, (7,)), request(1, 50)], 0.2) is not None


def work_of(drafters: list[ChainDrafter], world: World, how: str, groups: int) -> float:
    """Seconds for so many groups of eight requests of 64 tokens, which begin together."""
    union = union_of(world, drafters, adapts=how == "adaptive")
    union.profile_with(world.target, 256)
    if how == "none":
        union.skips_drafts = lambda num_requests: True  # type: ignore[method-assign]
        for drafter in drafters:
            drafter.prepare_draft_tokens = lambda batch: None  # type: ignore[method-assign]
    for group in range(groups):
        requests = [request(8 * group + i, 64) for i in range(8)]
        while requests:
            world.serve(union, requests, 1)
            for each in [each for each in requests if each.remaining_tokens <= 0]:
                union.release(each.id)
                requests.remove(each)
    return world.work


def recorded(drafter: str, temperature: int, how: str, groups: int) -> float:
    world = World(COSTS.target, num_waiting=0)
    return work_of([RecordedDrafter(world, drafter, temperature, 1)], world, how, groups)


@pytest.mark.slow
@pytest.mark.parametrize("drafter", ["ngram", "suffix"])
def test_groups_of_unlike_texts_end_as_soon_as_without_drafts(drafter: str) -> None:
    """By acceptance recorded on real text, where drafting always makes the groups take longer."""
    none = recorded(drafter, 0, "none", 24)
    assert recorded(drafter, 0, "adaptive", 24) < none / 0.97
    assert recorded(drafter, 0, "always", 24) > none / 0.92


def test_groups_of_like_texts_end_sooner() -> None:
    """Over a few draws in which drafting always saves a tenth, as whether drafts pay is learned
    from few steps at first."""

    def work(how: str) -> float:
        total = 0.0
        for draw in (1, 4, 5, 8):
            world = World(COSTS.target, num_waiting=0)
            drafter = ChainDrafter(world, 4, 0.6, says=0.6, name=draw)
            drafter.host_seconds = 0.0 if how == "none" else 0.9e-3
            total += work_of([drafter], world, how, 8)
        return total

    always, adaptive = work("always"), work("adaptive")
    assert adaptive < 1.05 * always and always < work("none") / 1.1
