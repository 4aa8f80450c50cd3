"""DraftCosts: what a drafter's engine takes."""

from __future__ import annotations

from trtspec.executor.counted_engine import CountedEngine
from trtspec.log import logger
from trtspec.speculative.hybrid.costs import CostCurve, Slowness

_FEW_BEHIND = 16  # rows of a request: more would blur the time of a draft
_CATCHES_UP_FOR = 16  # steps over which a catch-up is amortised
_CATCH_UP_WEIGHT = 0.3
_MANY_BEHIND = 128  # rows by whose time catching up is first judged


class DraftCosts:
    """Seconds of an engine's rollouts by the number of requests, whole or left at their first step,
    and of a row that the engine catches up.

    whole, first_step: the curves. catch_up: seconds for a row that its cache lacks.
    """

    def __init__(self) -> None:
        slowness = Slowness()
        self.whole = CostCurve(slowness)
        self.first_step = CostCurve(slowness)
        self.catch_up = 0.0

    def profile(self, name: str, engine: CountedEngine, has_cache: bool, max_requests: int) -> None:
        """Time the engine, before there are requests."""
        # After a step, two rows or so of each request are new to it.
        self.whole.profile(lambda requests: engine.time_call(requests, 2 * requests), max_requests)
        logger.info("%s drafts in ms by requests: %s", name, self.whole.table())
        if engine.rolls_first_step:
            self.first_step.profile(
                lambda requests: engine.time_call(requests, 2 * requests, first_step_only=True),
                max_requests,
            )
            logger.info("one step of %s in ms by requests: %s", name, self.first_step.table())
        if has_cache:
            seconds = min(engine.time_call(1, _MANY_BEHIND) or 0.0 for _ in range(2))
            self.catch_up = max(seconds - self.whole.at(1), 0.0) / _MANY_BEHIND

    def seconds(self, requests: int, first_step_only: bool) -> float:
        """What drafting for so many should take."""
        return (self.first_step if first_step_only else self.whole).at(requests)

    def observe(self, requests: int, behind: int, seconds: float, first_step_only: bool) -> None:
        """Drafting for so many, whose texts were ``behind`` tokens longer than the cache in all,
        took that long."""
        curve = self.first_step if first_step_only else self.whole
        if behind <= _FEW_BEHIND * requests:
            curve.observe(requests, seconds)
            return
        more = max(seconds - curve.at(requests), 0.0) / behind
        self.catch_up += _CATCH_UP_WEIGHT * (more - self.catch_up)

    def catching_up(self, requests: int, behind: int) -> float:
        """Seconds that a step is charged for the rows that its requests lack, if they are many."""
        if behind <= _FEW_BEHIND * requests:
            return 0.0
        return self.catch_up * behind / _CATCHES_UP_FOR
