"""Routine: steps that are taken like one that was weighed, because weighing them would change
nothing."""

from __future__ import annotations


class Routine:
    """How many steps to come are taken like the one weighed last, if as many requests generate."""

    def __init__(self) -> None:
        self._requests = 0
        self._left = 0
        self._since = StepsSince()

    def set(self, requests: int, steps: int) -> None:
        """So many steps may be taken like the one that was just weighed, in which that many
        requests generate."""
        self._requests, self._left = requests, steps

    def goes_on(self, requests: int) -> bool:
        """Whether the step under way, in which so many requests generate, is taken like the one
        weighed last. If so, the routine counts the step."""
        if not self.num_left(requests):
            return False
        self.leave_out()
        return True

    def num_left(self, requests: int) -> int:
        """The steps to come that are taken so, if so many requests generate."""
        return self._left if requests == self._requests else 0

    def leave_out(self) -> None:
        """The step under way is not weighed, whatever is taken like the one weighed last."""
        self._left = max(self._left - 1, 0)
        self._since.leave_out()

    def end(self) -> int:
        """The step under way is weighed anew. Returns how many steps that stands for."""
        self._left = 0
        return self._since.take()


class StepsSince:
    """Counts the steps since the last one in which something was done."""

    def __init__(self) -> None:
        self._left_out = 0

    def leave_out(self) -> None:
        """Not in the step under way."""
        self._left_out += 1

    def take(self) -> int:
        """In the step under way: how many steps that stands for, those left out among them."""
        steps, self._left_out = 1 + self._left_out, 0
        return steps
