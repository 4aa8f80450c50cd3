"""What adaptive methods make of acceptance recorded on real text, on machines that change their
speed."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest

from trtspec.executor.step_plan import StepPlan
from trtspec.ops.tree import TokenTree

from .recorded.trace import trace
from .simulated_serving import (
    ChainDrafter,
    World,
    in_bursts,
    in_steps,
    requests_of,
    steady,
    union_of,
)

STEPS = 4000
DRAWS = 4
Speed = Callable[[float], float]


@dataclass(frozen=True)
class Costs:
    """Seconds, as measured on SmolLM2 with 2 cores: of a target's call by its rows, of looking for
    drafts on the host, and of a rollout of the head."""

    first: float = 6.2e-3
    row: float = 0.22e-3
    host: float = 0.45e-3
    host_request: float = 0.06e-3
    rollout: float = 2.0e-3
    rollout_request: float = 0.25e-3

    def target(self, rows: int) -> float:
        return self.first + self.row * rows


COSTS = Costs()


class RecordedDrafter(ChainDrafter):
    """Drafts what was recorded at each position of a text that repeats for ever; requests begin at
    different places of it."""

    def __init__(self, world: World, drafter: str, temperature: int, name: int) -> None:
        self.places = trace(temperature, drafter)
        is_engine = drafter == "eagle3"
        super().__init__(
            world,
            max(place.nodes for place in self.places),
            0.0,
            seconds=COSTS.rollout if is_engine else 0.0,
            name=name,
        )
        self.is_engine = is_engine

    def prepare_draft_tokens(self, batch: StepPlan) -> None:
        self.num_calls += 1
        requests = len(batch.items)
        if self.is_engine:
            self.world.pass_time(COSTS.rollout + COSTS.rollout_request * requests)
        else:
            self.world.pass_time(COSTS.host + COSTS.host_request * requests)
        for item in batch.items:
            request = item.request
            begin = request.id * 701 + len(request.tokens) - 1
            place = self.places[begin % len(self.places)]
            if not place.nodes:
                request.draft = TokenTree.empty()
                continue
            text = self.world.text(request)
            tokens = [text(i) if i < place.right else -self.name for i in range(place.nodes)]
            sure = np.log(max(place.sureness, 0.02)) * np.arange(1, place.nodes + 1)
            request.draft = TokenTree(tokens, range(-1, place.nodes - 1), sure.astype(np.float32))


def speed(
    drafters: tuple[str, ...], adapts: bool, temperature: int, batch: int, by: Speed
) -> float:
    """Tokens by the work that they took, a mean of draws; without drafters, of no speculation."""
    draws = range(DRAWS)
    return sum(drawn(drafters, adapts, temperature, batch, by, draw) for draw in draws) / DRAWS


@cache
def drawn(
    drafters: tuple[str, ...], adapts: bool, temperature: int, batch: int, by: Speed, draw: int
) -> float:
    """Of texts and slow moments of its own: where a comparison meets one, drafts rest for long."""
    world = World(COSTS.target, slowness=lambda now: by(now + 0.77 * draw))
    chosen = [
        RecordedDrafter(world, drafter, temperature, i + 1)
        for i, drafter in enumerate(drafters or ("ngram",))
    ]
    union = union_of(world, chosen, adapts=adapts)
    union.profile_with(world.target, 256)
    if not drafters:
        union.skips_drafts = lambda num_requests: True  # type: ignore[method-assign]
        chosen[0].prepare_draft_tokens = lambda batch: None  # type: ignore[method-assign]
    requests = requests_of(batch)
    for request in requests:
        request.id += 37 * draw
    world.serve(union, requests, STEPS)
    return world.tokens / world.work


CASES = [
    (drafter, temperature, batch, by)
    for drafter in ("ngram", "suffix")
    for temperature in (0, 1)
    for batch in (1, 8)
    for by in (steady, in_steps, in_bursts)
]
SHORT = [
    ("ngram", 0, 1, in_steps),
    ("suffix", 1, 8, in_bursts),
]
"""Those that run with the slow tests."""


@pytest.mark.parametrize(
    ("drafter", "temperature", "batch", "by"),
    [
        pytest.param(*case, marks=pytest.mark.slow if case in SHORT else pytest.mark.matrix)
        for case in CASES
    ],
)
def test_adaptive_is_as_fast_as_the_best_of_none_and_always(
    drafter: str, temperature: int, batch: int, by: Speed
) -> None:
    best = max(
        speed((), True, temperature, batch, by), speed((drafter,), False, temperature, batch, by)
    )
    assert speed((drafter,), True, temperature, batch, by) > 0.97 * best


@pytest.mark.slow
def test_neither_none_nor_always_would_do() -> None:
    """At batch 8 and temperature 1 drafting always loses what it wins at batch 1 and 0."""
    always, none = ("suffix",), ()
    assert speed(always, False, 1, 8, in_steps) < 0.95 * speed(none, True, 1, 8, in_steps)
    assert speed(always, False, 0, 1, in_bursts) > 1.15 * speed(none, True, 0, 1, in_bursts)
