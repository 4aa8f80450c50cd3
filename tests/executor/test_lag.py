"""Steps in flight: any lag gives the texts, reasons and counts of lag 0, and nobody gets a block
that a launch may still write."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from trtspec.errors import ConfigError
from trtspec.executor import py_executor
from trtspec.executor.overlap import Overlap
from trtspec.executor.py_executor import PyExecutor, StepOutput
from trtspec.executor.resident.engine import Patch
from trtspec.executor.schedule.scheduler import Scheduler
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.speculative.options import parse_speculative_config
from trtspec.speculative.registry import drafter_needs

from .lag_device import Device, Held, Launch
from .lag_host import ItemStates
from .lag_worlds import Run, World, compare, random_world, with_stop

LAGS = 1, 2, 3


def check(seeds: range, run: type[Run] = Run) -> Counter[str]:
    """What happened in these worlds, at all lags."""
    events: Counter[str] = Counter()
    for seed in seeds:
        for lag in LAGS:
            try:
                events += compare(random_world(seed), lag, run)
            except Exception as error:
                error.add_note(f"seed {seed}, lag {lag}")
                raise
    return events


def test_any_lag_gives_what_lag_0_gives() -> None:
    events = check(range(500))
    for event in (
        "abort", "stop", "length", "error", "stop string", "by step", "preempted", "surplus",
        "on both", "restored", "2 in flight", "3 in flight", "4 in flight",
    ):  # fmt: skip
        assert events[event] > 20, (event, events)


@pytest.mark.matrix
def test_any_lag_gives_what_lag_0_gives_in_many_worlds() -> None:
    check(range(1000, 6000))


# What rolls out a block behind the accepted rows, whichever of its slots are used, or masks.
SHAPES: dict[str, dict[str, Any]] = {
    "dflash": {"num_speculative_tokens": 7},
    "ddtree": {"num_speculative_tokens": 7, "num_draft_tokens": 29},
    "jetspec": {"tree_depth": 15, "tree_width": 4, "budget": 61},
    "dspark": {"num_speculative_tokens": 7, "topk": 2, "num_draft_tokens": 15},
    "dflash2": {"num_speculative_tokens": 7, "topk": 2, "num_draft_tokens": 15},
    "pard2": {"num_speculative_tokens": 8},
}


@pytest.mark.parametrize("method", SHAPES)
def test_drafts_of_a_block(method: str) -> None:
    """Trees as wide and deep as a method's own, and the rows of its rollouts."""
    config = parse_speculative_config({"method": method, "model": "x", **SHAPES[method]})
    assert config is not None
    needs = drafter_needs(config)
    events: Counter[str] = Counter()
    for seed in range(40):
        world = random_world(seed)
        depth, nodes = needs.max_depth, needs.max_nodes
        model = replace(world.model, depth=depth, width=nodes // depth, skill=90, window=0)
        rows = world.batch * (1 + nodes)
        for lag in (1, 2):
            shaped = replace(world, model=model, draft=needs.caches[0].slots, spare_rows=rows)
            events += compare(shaped, lag)
    assert events["2 in flight"] > 20 and events["surplus"] > 5, events


def plain_world(seed: int) -> World:
    """One in which nothing fails, and all runs on the device."""
    world = random_world(seed)
    model = replace(world.model, nan_every=0, depth=2, width=2, skill=80, window=0)
    plain = replace(world.arrivals[0].params, stop=(), logprobs=None, max_tokens=14)
    arrivals = tuple(
        replace(arrival, params=plain, ends=(), abort=None, watched=False)
        for arrival in (world.arrivals * 2)[:2]
    )
    nothing: frozenset[int] = frozenset()
    return replace(
        world, model=model, arrivals=arrivals, on_host=0, failing=nothing, failing_collects=nothing
    )


def stopped_early(**others: Any) -> World:
    """A plain one whose first request ends at a stop string, in the middle of its text."""
    world = replace(plain_world(5), **others)
    first, second = world.arrivals
    return replace(world, arrivals=(with_stop(world.model, 0, first, 4, 1), second))


@pytest.mark.parametrize("lag", LAGS)
def test_a_stop_string_at_every_position(lag: int) -> None:
    world = plain_world(5)
    events: Counter[str] = Counter()
    for last in range(14):
        for length in (1, 3):
            first, second = world.arrivals
            stopped = with_stop(world.model, 0, first, last, length), second
            events += compare(replace(world, arrivals=stopped), lag)
    assert events["stop string"] == 28 and events["surplus"] > 10, events


class FreesEarly(Scheduler):
    """Gives the blocks of an ended request back while launches are in flight."""

    early = 0

    def finish(self, request: Request) -> None:
        while True:
            try:
                super().collected()
            except RuntimeError:
                break
            self.early += 1
        super().finish(request)

    def collected(self) -> None:
        if self.early:
            self.early -= 1
        else:
            super().collected()


def test_a_block_that_is_freed_too_early_is_noticed() -> None:
    class Early(Run):
        scheduler_type = FreesEarly

    world = stopped_early(batch=1, spare_blocks=0)
    compare(world, 2)
    with pytest.raises(AssertionError, match="given away in flight"):
        compare(world, 2, Early)


def test_a_commit_at_the_launched_length_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = py_executor.confirmed

    def launched(plan: StepPlan, result: StepResult) -> tuple[StepPlan, StepResult]:
        settled, result = settle(plan, result)
        items = [
            replace(item, start=item.start + item.max_nodes) if item.is_generation else item
            for item in settled.items
        ]
        return replace(settled, items=tuple(items)), result

    monkeypatch.setattr(py_executor, "confirmed", launched)
    with pytest.raises(AssertionError):
        check(range(100))


def test_a_surplus_token_that_is_kept_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    settle = py_executor.confirmed

    def keep_all(plan: StepPlan, result: StepResult) -> tuple[StepPlan, StepResult]:
        reasons = [item.request.finish_reason for item in plan.items]
        for item in plan.items:
            item.request.finish_reason = None
        settled, result = settle(plan, result)
        for item, reason in zip(plan.items, reasons, strict=True):
            item.request.finish_reason = reason
        return settled, result

    monkeypatch.setattr(py_executor, "confirmed", keep_all)
    with pytest.raises(AssertionError):
        compare(stopped_early(), 2)


def test_a_surplus_token_in_the_histogram_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counts(Run):
        def __init__(self, world: World, lag: int) -> None:
            super().__init__(world, lag)
            settle, metrics = py_executor.confirmed, self.executor.metrics

            def count_all(plan: StepPlan, result: StepResult) -> tuple[StepPlan, StepResult]:
                for i, item in enumerate(plan.items):
                    if item.request.is_finished and result.num_emitted(i):
                        metrics.record_verify(item.request.id, result.num_emitted(i), 9, 9)
                return settle(plan, result)

            monkeypatch.setattr(py_executor, "confirmed", count_all)

    with pytest.raises(AssertionError, match="counted"):
        compare(stopped_early(), 2, Counts)


@pytest.mark.parametrize("part", ["tables", "entered", "removed"])
def test_a_patch_that_is_forgotten_is_noticed(part: str) -> None:
    class Forgets(Device):
        def launch(self, patch: Patch) -> Launch:
            number = len(self.patches)
            nothing: Any = {} if part == "tables" else ()
            return super().launch(replace(patch, **{part: nothing}) if number % 5 == 4 else patch)

    class Forgetful(Run):
        device_type = Forgets

    reason = {"tables": "told|on the device|given away", "entered": "entered", "removed": "removed"}
    with pytest.raises(AssertionError, match=reason[part]):
        check(range(100), run=Forgetful)


def test_a_state_that_is_not_restored_is_noticed() -> None:
    class Forgets(Device):
        def _take_in(self, held: Held, states: ItemStates, start: int) -> None:
            slot, _, *snapshot = states
            super()._take_in(held, (slot, -1, *snapshot), start)

    class Forgetful(Run):
        device_type = Forgets

    with pytest.raises(AssertionError, match="is not that of"):
        check(range(100), run=Forgetful)


def test_a_patch_holds_what_is_new() -> None:
    """A request enters once, is told its blocks when it gets some, and is removed once."""
    world = replace(plain_world(5), block=4, spare_blocks=20, batch=4, spare_rows=30)
    run = Run(world, 2)
    run.run()
    patches = run.device.patches
    entered = [entry.request.id for patch in patches for entry in patch.entered]
    assert sorted(entered) == [0, 1]
    removed = [id for patch in patches for id in patch.removed]
    assert len(removed) == len(set(removed)) <= 2
    told: dict[int, list[int]] = {}
    for patch in patches:
        for id, tables in patch.tables.items():
            sizes = list(map(len, tables))
            assert sizes != told.get(id)
            told[id] = sizes
    assert sum(len(patch.tables) for patch in patches) < sum(len(p.plan.items) for p in patches)


@pytest.mark.parametrize("lag", range(4))
def test_other_work_is_done_once_a_step_at_any_lag(lag: int) -> None:
    run = Run(plain_world(7), lag)
    executor = run.executor
    executor._overlap = Overlap(calls_wait=False)
    done: list[int] = []
    executor.meanwhile = lambda: done.append(1)
    step = executor.step

    def counted() -> list[StepOutput]:
        steps.append(1)
        return step()

    steps: list[int] = []
    executor.step = counted  # type: ignore[method-assign]
    run.run()
    assert len(done) == len(steps) > 5


def test_a_lag_needs_a_target_on_the_device() -> None:
    executor = Run(plain_world(5), 0).executor
    parts: Any = (executor._target, executor._resources, executor._scheduler, executor._drafter)
    with pytest.raises(ConfigError, match=r"lag=2 needs a target that keeps .* lag must be 0"):
        PyExecutor(*parts, lag=2)
