"""Step: what a union notes of a step under way."""

from __future__ import annotations

from trtspec.speculative.hybrid.controller import Controller
from trtspec.speculative.hybrid.costs import CostCurve
from trtspec.speculative.hybrid.outlook import Load, Trial
from trtspec.speculative.hybrid.rest import Rest


class Step:
    """The times and counts of a step. is_pure: no prompt was fed. is_resting: nobody was asked.
    is_glance: see `Glances`. rest: what was asked whether it rests; None: nothing was. is_compared:
    see `Rest`. others_wait: requests are left in the queue. longest: see `longest_text`, before the
    step; 0 where others wait. shortened: what it fell by. is_learning: see `Controller`."""

    def __init__(
        self,
        load: Load,
        is_pure: bool,
        began: float,
        is_resting: bool,
        is_glance: bool,
        others_wait: bool,
    ) -> None:
        self.load = load
        self.is_pure = is_pure
        self.is_resting = is_resting
        self.is_glance = is_glance
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

    @property
    def gained(self) -> float:
        """What it brought: tokens a request, or what the group came nearer to its end by."""
        return self.shortened if self.longest else self.tokens / self.load.requests

    def judge_glance(self, target_cost: CostCurve) -> None:
        """What became of the drafts of a glance."""
        assert self.rest is not None, "who rests was asked to"
        roots, all_rows = (target_cost.at(self.load.rows + n) for n in (0, self.nodes))
        price = self.rest.dearer * (all_rows / roots if roots else 1.0)
        self.rest.glances.judge(self.gained, price)

    def judge_trial(self, nodes: int, tokens: int) -> None:
        """What became of the request of the trial: its verified nodes, the emitted tokens."""
        self.trial = Trial(nodes, tokens - self.expected, self.trying)

    def close(
        self, now: float, target_cost: CostCurve, controller: Controller, asks_others: bool
    ) -> None:
        """Another step begins: tell what this one took. ``asks_others``: drafters without an engine
        were asked, unless it rests."""
        if not self.is_pure or not self.ended:
            return
        load, verifying = self.load, self.judged - self.drafted
        target_cost.observe(load.rows + self.nodes, verifying)
        own = self.ended - self.began
        # Without requests to serve, time passes between steps.
        between = min(now - self.ended, own / 2)
        if self.rest is not None and self.trial is not None:
            if self.is_compared:
                self.rest.spend(self.trying)
        elif self.rest is not None and not self.is_glance:
            roots, all_rows = (target_cost.at(load.rows + n) for n in (0, self.nodes))
            for_nodes = verifying * (1 - roots / all_rows) if all_rows else 0.0
            seconds = own + between - for_nodes
            if self.is_learning and asks_others:  # that ends, and says nothing of the others
                seconds -= self.drafting
                self.rest.spend(self.drafting if self.is_compared else 0.0)
            drafted = not self.is_resting and (asks_others or self.spent > 0)
            self.rest.observe(drafted, self.gained, seconds, for_nodes / seconds, self.is_compared)
        around = max(own - verifying - self.drafting + between, 0.0)
        controller.observe(load, self.nodes, self.tokens, self.spent, around, self.trial)
