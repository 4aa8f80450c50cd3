"""The controller over a mixture of experts, where each row of a step reads more weights."""

from __future__ import annotations

import random

import numpy as np
import pytest

from trtspec.speculative.hybrid.controller import Controller
from trtspec.speculative.hybrid.costs import CostCurve
from trtspec.speculative.hybrid.outlook import Load, Outlook

from .simulated_serving import (
    HOST,
    ChainDrafter,
    World,
    drawn_mixture,
    in_bursts,
    mixture_cost,
    requests_of,
    union_of,
)

CASES = [
    (0.0, 1, 0.1, True),
    (0.0, 1, 0.5, False),
    (0.6, 1, 0.5, True),
    (0.6, 1, 0.9, True),
    (0.0, 8, 0.5, False),
    (0.6, 8, 0.5, True),
]


@pytest.mark.parametrize(("shared", "batch", "acceptance", "has_engine"), CASES)
def test_a_mixture_never_loses_to_no_drafts(
    shared: float, batch: int, acceptance: float, has_engine: bool
) -> None:
    """Its rows read experts of their own, so that a step's time is another each time, and six rows
    take up to four times as long as one."""
    world = World(drawn_mixture(shared), acceptance)
    drafter = ChainDrafter(world, 5, acceptance, 4e-3 if has_engine else 0.0)
    union = union_of(world, [drafter])
    union.profile_with(mixture_cost, 6 * batch)
    requests = requests_of(batch)
    world.serve(union, requests, 60)
    alone = sum(world.target(batch) for _ in range(40)) / 40
    assert world.serve(union, requests, 200) >= 0.97 * batch / (alone + HOST)


@pytest.mark.parametrize("acceptance", [0.3, 0.5])
def test_a_mixture_on_a_busy_machine(acceptance: float) -> None:
    """Short texts, and outcomes of verified nodes alone. The only step without drafts that is seen
    for long may fall into a burst of other work: it must not make drafts look cheap."""
    shares = []
    for seed in range(4):
        noise = random.Random(seed)
        world = World(lambda rows: _dear(rows) * noise.lognormvariate(0, 0.1), acceptance)  # noqa: B023
        world.slowness = in_bursts
        drafter = ChainDrafter(world, 5, acceptance, 5e-3, first_step_seconds=1.6e-3)
        union = union_of(world, [drafter], has_own_rule=True)
        union.profile_with(_dear, 6)
        for text in range(10):
            (request,) = requests_of(1)
            request.id = 1000 * seed + text
            tokens, work = world.tokens, world.work
            while world.tokens < tokens + (32 if text else 64):
                world.serve(union, [request], 1)
            union.release(request.id)
            shares.append((world.tokens - tokens) / (world.work - work) * (_dear(1) + HOST))
        shares.pop(-10)  # the text by which it learned
    assert np.mean(shares) >= 0.95, shares


def _dear(rows: int) -> float:
    """Seconds of a mixture of which a row reads an eighth."""
    return float(np.interp(rows, [1, 2, 6, 8], [9.2e-3, 12.5e-3, 20e-3, 24e-3]))


def test_an_unknown_engine_has_a_node_verified_where_rows_are_dear() -> None:
    """Where outcomes are known of verified nodes alone, it would stay unknown, and draft for ever;
    a known one that does not pay drafts and verifies nothing."""
    target, load, chances = CostCurve(), Load(1, 1), np.array([0.3, 0.1])
    target.profile(lambda rows: 8e-3 + 4e-3 * (rows - 1), 6)
    for known in (False, True):
        controller = Controller(target, sees_all=False)
        outlook = Outlook(chances[None] if known else None, 4e-3)
        for _ in range(6):
            chosen, _ = controller.plan(load, np.zeros((1, 0)), [outlook])
            nodes = controller.count(load, chances if chosen else chances[:0], 4e-3)
        assert (len(chosen), nodes) == ((0, 0) if known else (1, 1))
