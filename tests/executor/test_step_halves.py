"""A step in two halves: launching changes no text and no committed length, collecting does all."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from trtspec.executor.py_executor import LaunchedStep, StepOutput

from ..conformance.recorder import Recorder
from ..conformance.scenario import random_scenario

SEEDS = range(300, 330)


class Halves(Recorder):
    """Looks at all requests and caches between the halves of every step."""

    def __init__(self, seed: int) -> None:
        super().__init__(random_scenario(seed))
        self.launched: list[LaunchedStep] = []
        self.executor.step = self._halves  # type: ignore[method-assign]

    def _halves(self) -> list[StepOutput]:
        plan = self.executor.plan()
        before = self._state()
        self.launched.append(self.executor.launch(plan))
        assert self._state() == before, "the first half has changed a text or a cache"
        return self.executor.collect(self.launched[-1])

    def _state(self) -> list[object]:
        texts = [(id, tuple(r.tokens), r.finish_reason) for id, r in self.requests.items()]
        return [texts, *(cache.committed_lengths() for cache in self.resources.all)]


def test_the_halves_are_the_step() -> None:
    """The same trace, whoever calls the halves; steps that fail in either half are among them. The
    plan has blocks for every row that may be fed, and nothing of requests that lost theirs."""
    seen: Counter[str] = Counter()
    for seed in SEEDS:
        halves = Halves(seed)
        assert halves.run() == Recorder(random_scenario(seed)).run()
        for step in halves.launched:
            plan = step.plan
            seen["preempted"] += len(plan.preempted)
            seen["failed at launch"] += step.failure is not None
            for item, blocks in zip(plan.items, plan.blocks, strict=True):
                rows = item.start + item.num_rows + item.max_nodes
                assert len(blocks) * halves.scenario.tokens_per_block >= rows
                assert item.request not in plan.preempted
                seen["drafts"] += item.max_nodes
    assert all(seen[event] > 0 for event in ("preempted", "failed at launch", "drafts")), seen


def test_a_launch_that_emits_is_noticed() -> None:
    halves = Halves(SEEDS[0])
    launch = halves.executor.launch

    def emits(plan: Any) -> LaunchedStep:
        plan.items[0].request.tokens.extend([1])
        return launch(plan)

    halves.executor.launch = emits  # type: ignore[method-assign]
    with pytest.raises(AssertionError, match="first half"):
        halves.run()
