"""Random schedules through the real executor and the real HiddenStateDrafter, over engines that
only keep books: what every cache row was made of, and of which prefix every hidden state is.

Row p of the draft's cache must be made of the target's state at position p and of the token at
p + 1, with several MTP modules of as many tokens as there are modules. It must be fed until all of
them are known, exactly once from then on until its request loses its blocks, and be overwritten by
nobody else.
"""

from __future__ import annotations

import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.backends.packing import RowGroup
from trtspec.errors import EngineError
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.ops.draft_batch import DraftBatch
from trtspec.speculative.hidden_state_drafter import HiddenStateDrafter

from .hidden_state_schedules import CHOICES, Schedule, World, random_world


@pytest.mark.slow
def test_hundreds_of_random_schedules() -> None:
    events: Counter[str] = Counter()
    for seed in range(400):
        try:
            events += Schedule(random_world(seed)).run()
        except Exception as error:
            error.add_note(f"in {random_world(seed)}")
            raise
    names = ("preempted", "aborted", "chunk", "reused", "no drafts", "accepted", "waited for a row")
    for event in (*names, "fed again", "not drafted for"):
        assert events[event] > 20, (event, events)


@settings(max_examples=40, deadline=None, derandomize=True, database=None)
@given(
    st.builds(
        World,
        seed=st.integers(0, 2**32),
        **{name: st.sampled_from(values) for name, values in CHOICES.items()},
    )
)
def test_any_world(world: World) -> None:
    Schedule(world).run()


class Seldom(HiddenStateDrafter):
    """Rolls out in one step of six, so that rows pile up."""

    chance = random.Random(0)

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        if self.chance.random() < 1 / 6:
            return super().prepare_draft_tokens(batch)
        return DraftBatch.none(len(batch.items))


@pytest.mark.parametrize("has_room", [True, False])
def test_rows_that_pile_up_are_fed(has_room: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where there is room in every step, no more than the limit waits and what a step accepts."""
    monkeypatch.setattr(
        "trtspec.speculative.hidden_state_drafter._MOST_WAITING", 3 * 4
    )  # rows of a float

    class Piled(Schedule):
        drafter_type = Seldom

        def step(self) -> None:
            super().step()
            if has_room:
                waiting = [parts.num_rows for parts in self.drafter._pending.values()]
                assert max(waiting, default=0) <= 3 + self.world.depth + self.world.modules

    room = {"spare_rows": 100, "spare_blocks": 100, "draft_spare_blocks": 100} if has_room else {}
    for seed in range(150):
        Piled(replace(random_world(seed), **room)).run()


class NotInUse(HiddenStateDrafter):
    """At times, so that prompts are not fed."""

    chance = random.Random(1)
    waited = 0

    def on_accepted(self, batch, result):  # type: ignore[no-untyped-def]
        feeds = self.chance.random() < 0.5
        lengths = super().on_accepted(replace(batch, feeds_drafts=feeds), result)
        for item in batch.items:
            parts = self._pending.get(item.request.id)
            pending = parts.num_rows if parts else 0
            NotInUse.waited += not item.is_generation and pending > 1 + self._not_final
        return lengths


def test_prompts_wait_where_the_drafter_is_not_in_use() -> None:
    class Waiting(Schedule):
        drafter_type = NotInUse

    for seed in range(150):
        Waiting(random_world(seed)).run()
    assert NotInUse.waited > 50


class ShiftedTokens(HiddenStateDrafter):
    def _group(self, request: Request, start: int, count: int) -> RowGroup:
        fed = request.tokens[start : start + count]
        return RowGroup(fed, start, self._cache.block_table(request))


class KeepsStates(HiddenStateDrafter):
    """Of a request that lost its blocks."""

    def release(self, request_id: int) -> None:
        kept = dict(self._pending)
        super().release(request_id)
        self._pending |= kept


class KeepsRollout(HiddenStateDrafter):
    """Counts a row of its own states among the committed ones."""

    def on_accepted(self, batch, result):  # type: ignore[no-untyped-def]
        lengths = super().on_accepted(batch, result)
        for i, item in enumerate(batch.items):
            parts = self._pending.get(item.request.id)
            if parts and item.is_generation and parts.num_rows > 1:
                parts.replace(parts.joined()[1:])
                lengths[i] = (lengths[i][0] + 1,)
        return lengths


class KeepsDraftedRows(HiddenStateDrafter):
    """Of modules that read draft tokens."""

    def __init__(self, engine: Any, cache: Any, config: Any) -> None:
        super().__init__(engine, cache, config)
        self._not_final = 0


@pytest.mark.parametrize(
    "broken", [ShiftedTokens, KeepsStates, KeepsRollout, KeepsDraftedRows, None]
)
def test_the_schedules_notice_a_broken_drafter(broken: type[HiddenStateDrafter] | None) -> None:
    """None: a cache that finds its rows by one token too few."""

    class Broken(Schedule):
        drafter_type = broken or HiddenStateDrafter
        unkeyed = 0 if broken else 1

    with pytest.raises((AssertionError, KeyError, EngineError)):
        for seed in range(100):
            Broken(random_world(seed)).run()
