"""The controller over a mixture of experts, where each row of a step reads more weights."""

from __future__ import annotations

import pytest

from .simulated_serving import (
    HOST,
    ChainDrafter,
    World,
    drawn_mixture,
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
