"""What steps take and bring, as running means over those of late."""

from __future__ import annotations

_AROUND_WEIGHT = 0.1  # of a step, in the mean of what is around drafting and verifying
_LONG_AROUND = 2.0  # times that mean; more counts as so much
_PLAIN_FIRST, _PLAIN_AFTER = 8, 256
"""Steps with drafts after which one without is due to compare them with: the first, and later."""

_PACE_MEMORY = 64.0  # steps of a batch size that its pace is an average of
_PROMPT_MEMORY = 512.0  # steps that the rows of prompts in a step are an average of
_PROMPT_TRUST = 64.0  # steps without any, as if they had been seen at the start


class Pace:
    """Tokens a second of steps with one number of requests, as a running mean of what is expected
    of each: an estimate that is wrong then errs alike in what it is compared with. The seconds are
    those that it would take at a `CostCurve.slowness` of 1: a machine that gets slower or faster
    changes nothing about what pays."""

    def __init__(self) -> None:
        self._steps = 0
        self._tokens = self._seconds = 0.0

    def observe(self, tokens: float, seconds: float, steps: int) -> None:
        """That of a step, and of so many like it in all."""
        self._steps += steps
        weight = min(max(steps / self._steps, steps / _PACE_MEMORY), 1.0)
        self._tokens += weight * (tokens - self._tokens)
        self._seconds += weight * (seconds - self._seconds)

    @property
    def tokens_per_second(self) -> float:
        """0 before the first step."""
        return self._tokens / self._seconds if self._seconds else 0.0


class Around:
    """Seconds of steps with one number of requests around drafting and verifying, as a running
    mean: of those in which an engine drafts, and of the others, which have less to do."""

    def __init__(self) -> None:
        self._steps = {True: 0, False: 0}
        self._means = {True: 0.0, False: 0.0}
        self._drafting = 0  # steps with drafts since one without

    def observe(self, drafting: bool, seconds: float) -> None:
        """Those of a step; a pause of the machine, or of its users, counts as little more."""
        mean = self._means[drafting]
        if mean > 0:
            seconds = min(seconds, _LONG_AROUND * mean)
        self._steps[drafting] += 1
        self._drafting = self._drafting + 1 if drafting else 0
        weight = max(_AROUND_WEIGHT, 1 / self._steps[drafting])
        self._means[drafting] += weight * (seconds - mean)

    @property
    def needs_plain(self) -> bool:
        """Whether what a step without drafts takes is known from too long ago, or not at all."""
        return self._drafting >= (_PLAIN_AFTER if self._steps[False] else _PLAIN_FIRST)

    def seconds(self, drafting: bool) -> float:
        """What is expected. Steps without drafts count as free until one was seen, so one soon is;
        then as no slower than those with drafts, however long ago it was seen."""
        if not self._steps[True]:
            return self._means[False]
        return self._means[True] if drafting else min(self._means.values())


class PromptRows:
    """Rows of prompts in a step, as a running mean."""

    def __init__(self) -> None:
        self._rows, self._steps = 0.0, _PROMPT_TRUST  # that still count

    def observe(self, rows: int) -> None:
        """Those of a step."""
        kept = 1 - 1 / _PROMPT_MEMORY
        self._rows = kept * self._rows + rows
        self._steps = kept * self._steps + 1

    @property
    def mean(self) -> float:
        """Of late."""
        return self._rows / self._steps
