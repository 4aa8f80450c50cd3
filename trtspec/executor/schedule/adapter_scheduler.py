"""AdapterScheduler: requests begin where their adapters have a place in the engine."""

from __future__ import annotations

from collections import deque
from typing import Any

from trtspec.executor.engines.adapter_pool import AdapterPool
from trtspec.executor.schedule.scheduler import Scheduler
from trtspec.executor.step.request import Request


class AdapterScheduler(Scheduler):
    """A scheduler whose requests may have adapters. Each holds the place of its own from before it
    can be admitted to its end. Those that come while requests use all places for other adapters
    wait in a line, and so do all with adapters behind them: whoever is first in it gets the next
    place that is given back, and nobody waits for ever. Requests without an adapter pass them."""

    def __init__(self, pool: AdapterPool, *given: Any, **named: Any) -> None:
        """``pool``: the places; the rest as in `Scheduler`."""
        super().__init__(*given, **named)
        self._pool = pool
        self._line: deque[Request] = deque()

    @property
    def num_waiting(self) -> int:
        return super().num_waiting + len(self._line)

    def add(self, request: Request) -> None:
        self.check_fits(request)
        if request.adapter is None:
            super().add(request)
        elif self._line or not self._enter(request):
            self._line.append(request)

    def abort(self, request_id: int) -> Request | None:
        waits = next((each for each in self._line if each.id == request_id), None)
        if waits is None:
            return super().abort(request_id)
        waits.finish_reason = waits.finish_reason or "abort"
        self._line.remove(waits)
        return waits

    def finish(self, request: Request) -> None:
        super().finish(request)
        if request.adapter is None:
            return
        self._pool.give_back(request.adapter)
        while self._line and self._enter(self._line[0]):
            self._line.popleft()

    def _enter(self, request: Request) -> bool:
        """Whether there is a place for its adapter, which is the request's from now on."""
        assert request.adapter is not None, "requests without one need no place"
        place = self._pool.take(request.adapter)
        if place is None:
            return False
        request.place_adapter(place)
        super().add(request)
        return True
