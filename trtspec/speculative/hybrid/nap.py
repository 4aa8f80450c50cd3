"""Nap: steps at rest that a union does not look at, and of which it tells its members together."""

from __future__ import annotations

from collections.abc import Sequence, Set
from typing import NamedTuple

from trtspec.executor.drafter import Accepted
from trtspec.executor.step_plan import StepPlan

MOST_STEPS = 16
"""Steps of a nap, whose states wait."""


class Told(NamedTuple):
    """A step, and what became of its items."""

    batch: StepPlan
    accepted: Sequence[Accepted]


class Nap:
    """Steps of the same requests, one behind the other, in which nobody is asked, so that no draft
    cache grows. What a drafter does in such a step has left the processor's caches when the
    target's call is over, and takes ten times as long when it is first run again; so it waits.

    ids: of the requests; none while there is no nap. kept: what `Drafter.on_accepted` answers.
    others_wait: whether requests are left in the queue. seconds: of the steps that are over.
    """

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.kept: list[tuple[int, ...]] = []
        self.others_wait = False
        self.seconds = self._began = 0.0
        self._left = 0
        self._untold: list[Told] = []

    def begin(
        self,
        batch: StepPlan,
        kept: list[tuple[int, ...]],
        others_wait: bool,
        steps: int,
        now: float,
    ) -> None:
        """So many steps like ``batch``, the last one, whose members answered ``kept``, are not
        looked at; none if a text has ended in that one."""
        if steps > 0 and not _ends(batch):
            self.ids = [item.request.id for item in batch.items]
            self.kept, self.others_wait, self._left = kept, others_wait, min(steps, MOST_STEPS)
            self.seconds, self._began = 0.0, now

    def goes_on(self, num_requests: int) -> bool:
        """Whether a step in which so many requests generate may be one of them."""
        return self._left > 0 and num_requests == len(self.ids)

    def holds(self, batch: StepPlan) -> bool:
        """Whether a step is one of them."""
        return (
            self._left > 0
            and [item.request.id for item in batch.items] == self.ids
            and batch.only_generates
            and (batch.num_waiting > 0) == self.others_wait
        )

    def add(self, batch: StepPlan, accepted: Sequence[Accepted], now: float) -> bool:
        """Such a step is over. Returns whether it was the last one, as that in which a text ends
        is."""
        self._untold.append(Told(batch, accepted))
        self._left -= 1
        self.seconds = now - self._began
        return self._left == 0 or _ends(batch)

    @property
    def num_steps(self) -> int:
        """Those that are over and that nobody was told of."""
        return len(self._untold)

    def end(self) -> None:
        """There is no nap; its steps are still to be told of."""
        self.ids, self._left = [], 0

    def take_untold(self) -> list[Told]:
        """The steps that nobody was told of, once."""
        untold, self._untold = self._untold, []
        return untold

    def release(self, request_id: int) -> None:
        """Forget a request, of which nobody is to be told; its nap must have ended."""
        self._untold = [told for each in self._untold if (told := _without(each, request_id))]

    @property
    def live_requests(self) -> Set[int]:
        """Those that it knows of."""
        return {item.request.id for told in self._untold for item in told.batch.items}.union(
            self.ids
        )


def _ends(batch: StepPlan) -> bool:
    return any(item.request.is_finished for item in batch.items)


def _without(told: Told, request_id: int) -> Told | None:
    """The same of the other requests, if there are any."""
    pairs = [
        pair
        for pair in zip(told.batch.items, told.accepted, strict=True)
        if pair[0].request.id != request_id
    ]
    if not pairs:
        return None
    items, accepted = zip(*pairs, strict=True)
    return Told(StepPlan(items), accepted)
