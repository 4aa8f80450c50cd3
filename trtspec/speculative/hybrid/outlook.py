"""What a union and its controller tell each other of a step: what is expected, chosen and seen."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Load:
    """A step before drafting. requests: those that generate. rows: the rows that are fed without
    drafts: the root of each of these requests, and rows of prompts."""

    requests: int
    rows: int


@dataclass(frozen=True)
class Outlook:
    """What an engine is expected to give a step.

    chances [B, W]: of the best nodes of each request, falling along a row. None: nothing is known
    of the engine yet. seconds: of its call, with a share of the rows that its cache lacks. upkeep:
    seconds a step for feeding prompts to its cache. first_step: the outlook of a rollout that stops
    at its first step, if the engine can do so.
    """

    chances: Floats | None
    seconds: float
    upkeep: float = 0.0
    first_step: Outlook | None = None

    def of(self, first_step_only: bool) -> Outlook:
        """The outlook of the first step alone, which must be known, or of the whole rollout."""
        if not first_step_only:
            return self
        assert self.first_step is not None, "what is chosen was offered"
        return self.first_step

    def times(self, worths: Floats) -> Outlook:
        """The same with the chances of each request times ``worths [B]``, what its tokens are
        worth."""
        chances = None if self.chances is None else self.chances * worths[:, None]
        first_step = None if self.first_step is None else self.first_step.times(worths)
        return replace(self, chances=chances, first_step=first_step)


class Choice(NamedTuple):
    """An engine that drafts. engine: its place among the engines. first_step_only: its rollout
    stops at the first step."""

    engine: int
    first_step_only: bool = False


class Repeat(NamedTuple):
    """A step that is taken like the one before it, with the same engines. verifies_all: all that
    the only engine drafts is verified."""

    choices: tuple[Choice, ...]
    verifies_all: bool


@dataclass(frozen=True)
class Trial:
    """A request that an engine drafted for, to see what comes of it. nodes: the verified nodes of
    its tree. gain: emitted tokens beyond those expected without the trial. seconds: of drafting."""

    nodes: int
    gain: float
    seconds: float
