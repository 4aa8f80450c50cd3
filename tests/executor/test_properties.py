"""Random schedules over the caches of a target and up to three drafts, and a shadow of each row.

The simulated model is a pure function of the prefix, so a request's text is known beforehand; the
shadow stores for every row a digest of the whole prefix that its K/V would depend on. If blocks are
mixed up, shared too early, rewritten or lost, a committed row differs from its request's prefix.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.executor.step.request import Request

from .kv_cache_reference import PlainKVCacheManager
from .random_schedules import PlainSimulation, Simulation
from .random_worlds import CHOICES, World, random_world
from .scheduler_reference import PlainResourceManager


@pytest.mark.slow
def test_random_schedules() -> None:
    events: Counter[str] = Counter()
    for seed in range(750):
        try:
            events += Simulation(random_world(seed)).run()
        except Exception as error:
            error.add_note(f"in {random_world(seed)}")
            raise
    for event in (
        "preempted",
        "waited",
        "aborted",
        "chunk",
        "reused",
        "reused output",
        "reused before the draft",
        "lacked all",
        "lacked some",
        "border",
        "moved",
        "cut drafts",
        "behind a window",
        "not drafted for",
    ):
        assert events[event] > 12, (event, events)


@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(
    st.builds(
        World,
        seed=st.integers(0, 2**32),
        **{name: st.sampled_from(values) for name, values in CHOICES.items()},
    )
)
def test_any_world_keeps_the_invariants(world: World) -> None:
    Simulation(world).run()


@pytest.mark.slow
def test_plain_python_schedules_the_same() -> None:
    """Rows, blocks of all caches, victims, newcomers and the queue of every step."""
    for seed in range(200):
        world = random_world(seed)
        native, plain = Simulation(world), PlainSimulation(world)
        assert native.run() == plain.run(), world
        assert native.plans == plain.plans, world


def test_another_plan_is_noticed() -> None:
    class OneNodeLess(PlainSimulation):
        def __init__(self, world: World) -> None:
            super().__init__(world)
            self.scheduler._needs = replace(self.needs, max_nodes=1, max_depth=1)

    worlds = [random_world(seed) for seed in range(30)]
    runs = [(Simulation(world), OneNodeLess(world)) for world in worlds]
    assert any(a.run() != b.run() or a.plans != b.plans for a, b in runs)


class LeaksOnFree(PlainKVCacheManager):
    def free(self, request_id: int) -> None:
        del self._sequences[request_id].blocks[-1:]
        super().free(request_id)


class KeepsSurplus(PlainKVCacheManager):
    def _drop_blocks(self, sequence, num_kept) -> None:  # type: ignore[no-untyped-def]
        if num_kept == 0:
            super()._drop_blocks(sequence, num_kept)


class IgnoresPrefix(PlainKVCacheManager):
    """Finds a block by its tokens alone."""

    def _publish(self, sequence, tokens, num_full) -> None:  # type: ignore[no-untyped-def]
        super()._publish(sequence, tokens, num_full)
        self._prefix_of = [0] * self.num_blocks
        sequence.prefix = 0


class OffersUnverified(PlainKVCacheManager):
    """Offers a block that holds rows of rejected drafts."""

    def commit(self, request_id, tokens, num_committed) -> None:  # type: ignore[no-untyped-def]
        sequence = self._sequences[request_id]
        reserved = min(len(sequence.blocks) * self.block_size, len(tokens))
        self._publish(sequence, tokens, reserved // self.block_size)
        super().commit(request_id, tokens, num_committed)


class ForgetsLookahead(PlainKVCacheManager):
    """Keys a feature drafter's blocks by their own tokens only."""

    def __init__(self, *args, **kwargs) -> None:  # type: ignore[no-untyped-def]
        super().__init__(*args, **{**kwargs, "lookahead": 0})


@pytest.mark.parametrize(
    "broken",
    [
        LeaksOnFree,
        KeepsSurplus,
        IgnoresPrefix,
        OffersUnverified,
        ForgetsLookahead,
    ],
)
def test_the_simulation_notices_a_broken_manager(broken: type[PlainKVCacheManager]) -> None:
    class Broken(PlainSimulation):
        manager_type = broken

    with pytest.raises(AssertionError):
        for seed in range(300):
            Broken(random_world(seed)).run()


@pytest.mark.parametrize("lacking", [0, 1, 2])
def test_the_simulation_notices_reuse_that_one_cache_lacks(
    lacking: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = PlainResourceManager.begin

    def begin_without(self: PlainResourceManager, request: Request) -> int:
        if len(self.drafts) <= lacking:
            return begin(self, request)
        draft = self.drafts[lacking]
        others = PlainResourceManager(
            self.target, [other for other in self.drafts if other is not draft]
        )
        cached = begin(others, request)
        # Claims rows of the draft cache that nobody wrote.
        draft.begin(request.id, request.tokens, 0)
        if draft.reserve(request.id, cached):
            draft.commit(request.id, request.tokens, cached)
        return cached

    monkeypatch.setattr(PlainResourceManager, "begin", begin_without)
    with pytest.raises((AssertionError, KeyError)):
        for seed in range(300):
            PlainSimulation(random_world(seed)).run()
