"""Alarms: steady acceptance raises none, a loss raises one, within a bound, and is taken back."""

from __future__ import annotations

import logging
import random
from collections.abc import Sequence
from typing import Any

import pytest

from trtspec.config.sampling import SamplingParams
from trtspec.executor.logits.logit_bias import LogitBias
from trtspec.executor.step.drafter import DrafterNeeds, NoDrafter
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree
from trtspec.speculative.alarm import AcceptanceAlarm, AlarmedDrafter

SEEDS = range(500)
LEARNED = 512  # drafts that what is usual is made of
BOUND = 256  # drafted tokens that were compared, within which a loss is told
BACK = 128  # and its end


def draft(rng: random.Random, rates: Sequence[float]) -> tuple[int, int]:
    """Tokens of a draft that are compared, and right, where each is right by such a chance."""
    right = 0
    while right < len(rates) and rng.random() < rates[right]:
        right += 1
    return min(right + 1, len(rates)), right


def changes(
    alarm: AcceptanceAlarm, rng: random.Random, rates: Sequence[float], drafts: int
) -> list[int]:
    """After how many compared tokens each change of the state came."""
    compared, found = 0, []
    for _ in range(drafts):
        tokens, right = draft(rng, rates)
        compared += tokens
        if alarm.observe(tokens, right):
            found.append(compared)
    return found


def usual_rates(rng: random.Random) -> list[float]:
    return [rng.uniform(0.25, 0.95) for _ in range(rng.randint(1, 8))]


@pytest.mark.parametrize("share", [1.0, 0.7])
def test_steady_acceptance_raises_none(share: float) -> None:
    """Nor does traffic of which a draft knows less than of the first."""
    for seed in SEEDS:
        rng, alarm = random.Random(seed), AcceptanceAlarm()
        rates = usual_rates(rng)
        assert not changes(alarm, rng, rates, LEARNED)
        assert not changes(alarm, rng, [share * rate for rate in rates], 800)


@pytest.mark.parametrize("left", [0.0, 0.02])
def test_a_loss_is_told_once_and_taken_back(left: float) -> None:
    for seed in SEEDS:
        rng, alarm = random.Random(seed), AcceptanceAlarm()
        rates = usual_rates(rng)
        assert not changes(alarm, rng, rates, LEARNED)
        for times in (1, 2):  # it is armed again
            (after,) = changes(alarm, rng, [left] * len(rates), 400)
            assert after <= BOUND and alarm.is_on and alarm.num_raised == times
            (after,) = changes(alarm, rng, rates, 200)
            assert after <= BACK and not alarm.is_on


def test_a_draft_that_never_fits_is_told() -> None:
    for seed in SEEDS:
        rng, alarm = random.Random(seed), AcceptanceAlarm()
        (after,) = changes(alarm, rng, [rng.uniform(0.0, 0.03), 0.5], 600)
        assert after <= BOUND and alarm.is_on


def test_a_loss_of_later_positions_is_told() -> None:
    """The first tokens are as right as ever, those behind them never."""
    rng, alarm = random.Random(0), AcceptanceAlarm()
    assert not changes(alarm, rng, [0.5, 0.9, 0.9], LEARNED)
    assert changes(alarm, rng, [0.15, 0.0, 0.0], 3000)
    steady = AcceptanceAlarm()
    assert not changes(steady, rng, [0.5, 0.02, 0.0], 6000)  # it always was so


def test_what_is_usual_is_learned_by_position() -> None:
    rng, alarm = random.Random(1), AcceptanceAlarm()
    assert alarm.usual == [0.4]
    changes(alarm, rng, [0.8, 0.6, 0.5], LEARNED)
    assert alarm.usual == pytest.approx([0.8, 0.6, 0.5], abs=0.08)
    learned = list(alarm.usual)
    changes(alarm, rng, [0.5, 0.5, 0.5], 2000)
    assert alarm.usual == learned


class Chains(NoDrafter):
    """Drafts tokens 1 to 3 for every request."""

    needs = DrafterNeeds(3, 3)

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        return DraftBatch.of([TokenTree.chain([1, 2, 3]) for _ in batch.items])


class Clock:
    """An engine whose calls take that long, but for the first."""

    def __init__(self, seconds: float | None) -> None:
        self.seconds, self.num_calls = seconds, 0

    def time_call(self, requests: int, rows: int) -> float | None:
        self.num_calls += 1
        return self.seconds if self.num_calls > 1 or self.seconds is None else 9.0


def watched(draft_seconds: float | None = 1.0) -> AlarmedDrafter:
    engine: Any = Clock(draft_seconds)
    return AlarmedDrafter(Chains(), "eagle3 (draft)", engine)


def plan(ids: Sequence[int]) -> StepPlan:
    requests = [Request.create(i, [9], SamplingParams(max_tokens=9), 0, 99) for i in ids]
    return StepPlan(tuple(ScheduledRequest(each, 0, 1, True, 3, True) for each in requests))


def steps(
    drafter: AlarmedDrafter, emitted: dict[int, list[int]], number: int, on_device: bool = False
) -> None:
    """Steps of requests that emit these tokens in each, drafted by the host or by a device."""
    batch = plan(list(emitted))
    for _ in range(number):
        result = StepResult.of(list(emitted.values()))  # what was verified is no matter
        if on_device:
            result.drafts, result.drafted = (
                Chains().prepare_draft_tokens(batch),
                [()] * len(emitted),
            )
        else:
            drafter.prepare_draft_tokens(batch)
        assert drafter.on_accepted(batch, result) == [()] * len(emitted)


def test_one_line_says_what_was_lost(caplog: pytest.LogCaptureFixture) -> None:
    drafter = watched()
    steps(drafter, {1: [1, 2, 7], 2: [1, 2, 3, 4]}, LEARNED)
    assert not caplog.records
    steps(drafter, {1: [5], 2: [5]}, 400)
    (record,) = caplog.records
    assert record.levelno == logging.WARNING
    said = record.getMessage()
    assert "draft eagle3 (draft) is hardly accepted: of " in said and " 0 were right" in said
    assert "usual are 100% of the first ones" in said and "chat template" in said
    (report,) = drafter.reports()
    assert report["alarm"] and report["num_alarms"] == 1
    steps(drafter, {1: [1, 2, 3, 4], 2: [5]}, 400)
    assert len(caplog.records) == 2 and "is accepted again" in caplog.records[1].getMessage()
    assert not drafter.reports()[0]["alarm"]


@pytest.mark.parametrize("on_device", [False, True])
def test_requests_are_watched_in_turn(on_device: bool) -> None:
    drafter = watched()
    seen: list[tuple[int, int]] = []
    drafter._observe = lambda compared, right: seen.append((compared, right))  # type: ignore[method-assign]
    steps(drafter, {1: [5], 2: [1, 5], 3: [1, 2, 3, 4]}, 6, on_device)
    assert sorted(seen) == [(1, 0), (1, 0), (2, 1), (2, 1), (3, 3), (3, 3)]


def test_a_text_that_a_processor_shapes_is_not_watched() -> None:
    drafter, batch = watched(), plan([1, 2])
    batch.items[0].request.processors = (LogitBias({}),)
    for _ in range(2000):  # the guided one accepts nothing, the other all
        drafter.prepare_draft_tokens(batch)
        drafter.on_accepted(batch, StepResult.of([[7], [1, 2, 3, 4]]))
    assert drafter.alarm.num_raised == 0
    assert drafter.alarm.usual == [1.0, 1.0, 1.0]


def test_drafts_of_a_request_that_is_gone_are_forgotten() -> None:
    drafter = watched()
    drafter.prepare_draft_tokens(plan([1]))
    drafter.on_accepted(plan([2]), StepResult.of([[1]]))
    assert drafter.alarm.compared == 0


@pytest.mark.parametrize(
    ("draft", "step", "share", "told"),
    [(0.3, 1.0, 0.1, False), (1.5, 1.0, 0.5, True), (None, 1.0, None, False),
     (1.5e-3, 9e-4, 1.5 / 2.7, False)],
)  # fmt: skip
def test_a_heavy_draft_is_told_with_its_figure(
    caplog: pytest.LogCaptureFixture, draft: float | None, step: float, share: float, told: bool
) -> None:
    """A rollout of three tokens; a target so small that calls cost more than what they read."""
    drafter, target = watched(draft), Clock(step)
    drafter.profile(target, 4, 64)  # type: ignore[arg-type]
    assert drafter.token_cost == pytest.approx(share)
    assert len(caplog.messages) == told
    if told:
        expected = "takes 50% of a step of the target (3 of them 1500.00 ms, a step 1000.00 ms)"
        assert expected in caplog.messages[0]
