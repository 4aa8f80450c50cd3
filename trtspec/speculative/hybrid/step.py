"""Step: what a union notes of a step under way."""

from __future__ import annotations

from trtspec.speculative.hybrid.controller import Load, Trial
from trtspec.speculative.hybrid.rest import Rest


class Step:
    """The times and counts of a step. is_pure: no prompt was fed. is_resting: nobody was asked.
    rest: what was asked whether it rests; None: nothing was. is_compared: see `Rest`. others_wait:
    requests are left in the queue. longest: see `longest_text`, before the step; 0 where others
    wait. shortened: what it fell by. is_learning: see `Controller`."""

    def __init__(
        self, load: Load, is_pure: bool, began: float, is_resting: bool, others_wait: bool
    ) -> None:
        self.load = load
        self.is_pure = is_pure
        self.is_resting = is_resting
        self.rest: Rest | None = None
        self.is_compared = False
        self.others_wait = others_wait
        self.began = began
        self.drafted = self.judged = self.ended = 0.0
        self.spent = self.drafting = 0.0  # seconds of engines, as expected and as they were
        self.nodes = self.tokens = 0  # verified, emitted
        self.longest = self.shortened = 0
        self.tried: int | None = None  # the request of a trial
        self.expected = self.trying = 0.0  # tokens without the trial, seconds of the trial
        self.trial: Trial | None = None
        self.is_learning = False

    def judge_trial(self, nodes: int, tokens: int) -> None:
        """What became of the request of the trial: its verified nodes, the emitted tokens."""
        self.trial = Trial(nodes, tokens - self.expected, self.trying)
