"""What steps take and bring, as running means over those of late."""

from __future__ import annotations

_AROUND_WEIGHT = 0.1  # of a step, in the mean of what is around drafting and verifying
_LONG_AROUND = 2.0  # times that mean; more counts as so much
_PACE_MEMORY = 64.0  # steps of a batch size that its pace is an average of
_PROMPT_MEMORY = 512.0  # steps that the rows of prompts in a step are an average of
_PROMPT_TRUST = 64.0  # steps without any, as if they had been seen at the start


class Pace:
    """Tokens a second of steps with one number of requests: a running mean of what is *expected* of
    each step, so that wrong estimates err alike on both sides of a comparison. Seconds are those at
    a `CostCurve.slowness` of 1: the machine's speed changes nothing about what pays."""

    def __init__(self) -> None:
        self._steps = 0
        self._tokens = self._seconds = 0.0

    def observe(self, tokens: float, seconds: float, steps: int) -> None:
        """Add a step that stands for ``steps`` steps like it."""
        self._steps += steps
        weight = min(max(steps / self._steps, steps / _PACE_MEMORY), 1.0)
        self._tokens += weight * (tokens - self._tokens)
        self._seconds += weight * (seconds - self._seconds)

    @property
    def tokens_per_second(self) -> float:
        """0 before the first step."""
        return self._tokens / self._seconds if self._seconds else 0.0


class Around:
    """Seconds of steps with one number of requests around drafting and verifying: a running mean of
    steps in which an engine drafts, and one of the others, which have less to do."""

    def __init__(self) -> None:
        self._steps = {True: 0, False: 0}
        self._means = {True: 0.0, False: 0.0}

    def observe(self, drafting: bool, seconds: float) -> None:
        """Add a step. A pause of the machine, or of its users, is cut to a little more than the
        mean."""
        mean = self._means[drafting]
        if mean > 0:
            seconds = min(seconds, _LONG_AROUND * mean)
        self._steps[drafting] += 1
        weight = max(_AROUND_WEIGHT, 1 / self._steps[drafting])
        self._means[drafting] += weight * (seconds - mean)

    def seconds(self, drafting: bool) -> float:
        """The expected seconds. A step without drafts counts as free until there was one, so that
        there soon is; from then on as no slower than a step with drafts."""
        if not self._steps[True]:
            return self._means[False]
        return self._means[True] if drafting else min(self._means.values())


class PromptRows:
    """Rows of prompts in a step, as a running mean."""

    def __init__(self) -> None:
        self._rows, self._steps = 0.0, _PROMPT_TRUST  # that still count

    def observe(self, rows: int) -> None:
        """Add a step's rows of prompts."""
        kept = 1 - 1 / _PROMPT_MEMORY
        self._rows = kept * self._rows + rows
        self._steps = kept * self._steps + 1

    @property
    def mean(self) -> float:
        """Rows of prompts in a step, of late."""
        return self._rows / self._steps
