"""Beside an index that copies, a draft engine is not asked."""

from __future__ import annotations

import pytest

from ..simulated_serving import ChainDrafter, World, requests_of, union_of
from .test_policy import COSTS


@pytest.mark.parametrize("copies", [True, False])
def test_an_engine_is_not_asked_where_the_index_copies(copies: bool) -> None:
    """Both are right about most of the next tokens, and the index says so."""
    world = World(COSTS["rows cost"])
    index = ChainDrafter(world, 16, 0.97 if copies else 0.1, says=0.97 if copies else 0.1)
    engine = ChainDrafter(world, 12, 0.9, 4e-3, says=0.9, name=2)
    union = union_of(world, [index, engine])
    union.profile_with(world.target, 17)
    requests = requests_of(1)
    world.serve(union, requests, 200)
    asked = engine.num_calls
    world.serve(union, requests, 200)
    calls = engine.num_calls - asked
    assert calls <= 10 if copies else calls >= 190
