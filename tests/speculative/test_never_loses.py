"""Engines, alone and beside an index, against none, on machines that change their speed."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from trtspec.executor.drafter import DrafterNeeds
from trtspec.executor.step_plan import StepPlan
from trtspec.speculative.hybrid.member import Member

from .simulated_serving import (
    HOST,
    ChainDrafter,
    ProfiledUnion,
    World,
    in_bursts,
    in_steps,
    requests_of,
    steady,
)

STEPS, TEXT, NOISE = 4000, 64, 0.05
SIZES = [1, 2, 6, 8, 16, 48]
SECONDS = {
    "mixture": [9.2e-3, 12.5e-3, 20e-3, 24e-3, 34e-3, 55e-3],
    "latents": [14e-3, 15e-3, 19e-3, 24e-3, 40e-3, 95e-3],
    "dense": [20.5e-3, 21.5e-3, 25.5e-3, 27.5e-3, 35.5e-3, 67.5e-3],
}
"""Of a step by its rows; the first two as measured on synthetic checkpoints."""

INDEX_SECONDS = 0.4e-3
HEAD_SECONDS, FIRST_STEP_SECONDS, CATCH_UP_SECONDS = 5e-3, 1.6e-3, 0.08e-3
BY = {"steady": steady, "in steps": in_steps, "in bursts": in_bursts}


class Head(ChainDrafter):
    """An engine that feeds the rows that its cache lacks when it drafts."""

    def __init__(self, world: World, acceptance: float) -> None:
        super().__init__(world, 5, acceptance, HEAD_SECONDS, first_step_seconds=FIRST_STEP_SECONDS)
        self.row_seconds = CATCH_UP_SECONDS
        self.fed: dict[int, int] = {}

    def prepare_draft_tokens(self, batch: StepPlan) -> None:
        for item in batch.items:
            length = len(item.request.tokens)
            behind = max(length - self.fed.get(item.request.id, 1) - 2, 0)
            self.world.pass_time(behind * CATCH_UP_SECONDS)
            self.fed[item.request.id] = length
        super().prepare_draft_tokens(batch)

    def committed(self, request: Any) -> int:
        return self.fed.get(request.id, 1) - 1


class Index(ChainDrafter):
    """Looks for drafts in every step in which it is asked."""

    def prepare_draft_tokens(self, batch: StepPlan) -> None:
        self.host_seconds = INDEX_SECONDS + 0.05e-3 * len(batch.items)
        super().prepare_draft_tokens(batch)


def share_of_none(
    costs: str, batch: int, acceptance: float, by: Callable[[float], float], auto: bool, seed: int
) -> float:
    """Tokens by the work that they took, as a share of those of no speculation."""
    noise = random.Random(seed)

    def seconds(rows: int) -> float:
        return float(np.interp(rows, SIZES, SECONDS[costs]))

    world = World(lambda rows: seconds(rows) * noise.lognormvariate(0, NOISE), acceptance)
    world.slowness = lambda now: by(now + 1.37 * seed)
    head = Head(world, acceptance)
    members = [Member("head", head, head, head)]  # type: ignore[arg-type]
    members[0].profile(8)
    if auto:
        members.insert(0, Member("index", Index(world, 8, acceptance, name=2)))
    most = max(member.drafter.needs.max_nodes for member in members)
    needs = DrafterNeeds(max_nodes=most, max_depth=most, has_draft_engine=True)
    union = ProfiledUnion(members, needs, adapts=True, has_own_rule=True, clock=world.clock)
    union.profile_with(seconds, 48)
    world.work, steps, ids = 0.0, 0, iter(range(100_000 * seed, 100_000 * (seed + 1)))
    while steps < STEPS:
        requests = requests_of(batch)
        for request in requests:
            request.id = next(ids)
        while steps < STEPS and len(requests[0].tokens) <= TEXT:
            world.serve(union, requests, 1)
            steps += 1
        for request in requests:
            union.release(request.id)
    none = batch / (seconds(batch) * np.exp(NOISE**2 / 2) + HOST)
    return float(world.tokens / world.work / none)


CASES = [
    (costs, batch, acceptance, by, auto)
    for costs in SECONDS
    for batch in (1, 8)
    for acceptance in (0.1, 0.3, 0.5)
    for by in BY
    for auto in (False, True)
]
SLOW = [
    ("mixture", 1, 0.3, "in steps", False),
    ("mixture", 1, 0.3, "in bursts", True),
    ("mixture", 8, 0.3, "in steps", True),
    ("latents", 1, 0.1, "in bursts", True),
]
"""Those that run with the slow tests."""


@pytest.mark.parametrize(
    ("costs", "batch", "acceptance", "by", "auto"),
    [
        pytest.param(*case, marks=pytest.mark.slow if case in SLOW else pytest.mark.matrix)
        for case in CASES
    ],
)
def test_never_below_no_speculation(
    costs: str, batch: int, acceptance: float, by: str, auto: bool
) -> None:
    """Learning and exploring included, over texts of 64 tokens that follow each other."""
    for seed in (0, 1):
        assert share_of_none(costs, batch, acceptance, BY[by], auto, seed) >= 0.97


@pytest.mark.slow
@pytest.mark.parametrize(("costs", "least"), [("mixture", 1.65), ("latents", 2.6)])
def test_what_pays_much_goes_on(costs: str, least: float) -> None:
    for auto in (False, True):
        shares = [share_of_none(costs, 1, 0.9, in_steps, auto, seed) for seed in (0, 1)]
        assert sum(shares) / 2 >= least
