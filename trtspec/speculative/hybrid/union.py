"""UnionDrafter: several drafters propose, the best nodes of all are verified, once."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Sequence, Set

import numpy as np
from torch import Tensor

from trtspec.executor.counted_engine import CountedEngine
from trtspec.executor.drafter import Accepted, Drafter, DrafterNeeds
from trtspec.executor.step_plan import ScheduledRequest, StepPlan
from trtspec.log import logger
from trtspec.ops.tree import TokenTree
from trtspec.speculative.hybrid.candidates import Floats, merged, ranked, scores, share
from trtspec.speculative.hybrid.controller import Controller, batch_of
from trtspec.speculative.hybrid.costs import CostCurve
from trtspec.speculative.hybrid.member import Member
from trtspec.speculative.hybrid.nap import Nap
from trtspec.speculative.hybrid.outlook import Choice, Load
from trtspec.speculative.hybrid.pace import PromptRows
from trtspec.speculative.hybrid.rest import Rest
from trtspec.speculative.hybrid.step import Step
from trtspec.speculative.hybrid.worth import Worth, longest_text
from trtspec.speculative.token_drafter import MOST_BEHIND


class UnionDrafter(Drafter):
    """Merges the trees of its members by token path and gives the rows of a step to the nodes that
    are likeliest to be accepted, of the whole batch; where no request waits, to those that shorten
    the time until all have ended (see `Worth`).

    The chance of a node is the highest that a member gives its path. Members without an engine
    draft first. The `Controller` says which engines draft as well, and how many of the nodes are
    verified. Whether anybody is asked at all is measured (see `Rest`).
    """

    def __init__(
        self,
        members: Sequence[Member],
        needs: DrafterNeeds,
        *,
        adapts: bool,
        has_own_rule: bool = False,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        """``adapts``: draft and verify what pays; False: as much as there may be.
        ``has_own_rule``: an `AcceptanceRule` accepts drafts, not the target's own choice."""
        self.needs = needs
        self.target_cost = CostCurve()
        self._members = tuple(members)
        self._cheap = [member for member in members if not member.has_engine]
        self._engines = [member for member in members if member.has_engine]
        self._in_use = self._engines  # those that are fed prompts
        self._has_own_rule = has_own_rule
        self._controller = Controller(self.target_cost, adapts, sees_all=not has_own_rule)
        self._clock = clock
        self._step: Step | None = None
        self._nap = Nap()
        self._blocks: dict[int, Tensor] = {}  # the target's, while drafts are made
        self._prompt_rows = PromptRows()
        self._can_rest = adapts and not needs.reads_every_row
        # By about how many requests generate, and whether others wait.
        self._rests: defaultdict[tuple[int, bool], Rest] = defaultdict(Rest)
        self._adapts = adapts
        self._others_wait = False
        self._num_begun = 0  # texts
        self._worth = Worth()
        self._is_resting = self._is_comparing = self._is_glance = False
        self._rest: Rest | None = None  # that was asked about the step under way

    def skips_drafts(self, num_requests: int) -> bool:
        self._is_comparing = self._is_glance = False
        if self._nap.goes_on(num_requests):
            return True
        self._wake()
        self._is_resting, self._rest = False, None
        if self._can_rest and num_requests:
            self._rest = rest = self._rest_of(num_requests, self._others_wait)
            self._is_resting = rest.rests(num_requests, self._num_begun)
            self._is_comparing = rest.is_comparing
            if self._is_resting:
                if self._cheap and num_requests == 1 and not rest.is_comparing:
                    self._is_glance = rest.glances.is_due(self._num_begun)
                if not self._is_glance:
                    self._controller.leave_out()
                return not self._is_glance
        return not self._cheap and self._controller.rests(num_requests)

    def prepare_draft_tokens(self, batch: StepPlan) -> None:
        began = self._clock()
        if self._step is not None:
            self._step.close(began, self.target_cost, self._controller, bool(self._cheap))
            self._step = None
        if self._nap.holds(batch):
            return
        self._wake()
        self._tell_late()
        items = [item for item in batch.items if item.is_generation]
        load = Load(len(items), sum(item.num_rows for item in batch.items))
        # Longer prompts are fed whether an engine is in use or not.
        self._prompt_rows.observe(
            sum(
                item.num_rows
                for item in batch.items
                if not item.is_generation and len(item.request.tokens) < MOST_BEHIND
            )
        )
        is_pure = 0 < len(items) == len(batch.items)
        self._others_wait = batch.num_waiting > 0
        rests, glances = self._is_resting and not self._is_glance, self._is_glance
        self._step = step = Step(load, is_pure, began, rests, glances, self._others_wait)
        step.rest, step.is_compared = self._rest, self._is_comparing
        for item in items:
            item.request.draft = TokenTree.empty()
        items = [item for item in items if item.max_nodes > 0]
        if items:
            ids = (item.request.id for item in batch.items)
            self._blocks = dict(zip(ids, batch.blocks, strict=False))  # a plan may leave them out
            drafts = [self._drafts_of(member, items) for member in self._cheap]
            trees = merged(drafts) if drafts else [TokenTree.empty()] * len(items)
            if self._weighs(step, any(map(len, trees))):
                self._draft(step, items, trees)
            self._blocks = {}
        step.drafted = self._clock()

    def on_accepted(self, batch: StepPlan, accepted: Sequence[Accepted]) -> list[tuple[int, ...]]:
        nap, step = self._nap, self._step
        if nap.ids:
            if nap.add(batch, accepted, self._clock()):
                self._wake()
                self._tell_late()
                self._tell_of_ended(batch, accepted)
            return nap.kept
        assert step is not None, "drafts are prepared before they are judged"
        step.judged = self._clock()
        for item, outcome in zip(batch.items, accepted, strict=True):
            step.tokens += len(outcome.tokens)
            self._num_begun += bool(outcome.tokens) and not item.is_generation
            if item.is_generation and step.nodes:
                self._worth.observe(item.request.id, len(outcome.tokens))
            if item.request.id == step.tried:
                step.judge_trial(len(item.request.draft), len(outcome.tokens))
        if step.longest:
            step.shortened = step.longest - longest_text(batch.items)
        if step.is_glance and step.is_pure:
            step.judge_glance(self.target_cost)
        told: Sequence[Member] = self._members
        if step.is_resting:
            self._tell_of_ended(batch, accepted)
            told = self._engines
        for member in told:
            member.learn(batch, accepted, self._has_own_rule)
        each = [[()] * len(batch.items), *(self._accept(m, batch, accepted) for m in told)]
        kept = [sum(lengths, ()) for lengths in zip(*each, strict=True)]
        step.ended = self._clock()
        nap.begin(batch, kept, step.others_wait, self._num_alike(step), step.ended)
        return kept

    def release(self, request_id: int) -> None:
        if request_id in self._nap.ids:
            self._wake()
        self._nap.release(request_id)
        for member in self._members:
            member.release(request_id)
        self._worth.release(request_id)
        self._blocks.pop(request_id, None)
        if self._step is not None and self._step.tried == request_id:
            self._step.tried = None

    @property
    def live_requests(self) -> Set[int]:
        ids = {request_id for member in self._members for request_id in member.live_requests}
        ids |= self._worth.live_requests | self._nap.live_requests
        if self._step is not None and self._step.tried is not None:
            ids.add(self._step.tried)
        return ids

    def profile(self, target: CountedEngine, max_requests: int, max_rows: int) -> None:
        """See `Drafter.profile`: times the target, then the engine of each member."""
        most = min(max_rows, max_requests * (1 + self.needs.max_nodes))
        self.target_cost.profile(lambda rows: target.time_call(min(rows, max_requests), rows), most)
        logger.info("a target step in ms by rows: %s", self.target_cost.table())
        for member in self._engines:
            member.profile(max_requests)

    def _draft(self, step: Step, items: Sequence[ScheduledRequest], trees: list[TokenTree]) -> None:
        """Let the engines draft that pay, beside the ``trees`` of the other members, and give each
        request the nodes that are worth a row."""
        load = step.load
        worths = self._worths(step, items)
        if worths is not None:
            step.longest = longest_text(items)
        # Other members' trees differ from step to step, and so does what an engine adds to them.
        repeat = None if self._cheap else self._controller.repeat(load.requests)
        chosen: tuple[Choice, ...] = ()
        tried: tuple[int, ...] = ()
        if repeat is not None:
            chosen = repeat.choices
            if repeat.verifies_all and not self._needs_all_steps(chosen[0]):
                self._controller.verify_all()
                self._verify_all(step, items, chosen[0])
                return
            step.spent = sum(self._seconds(choice, len(items)) for choice in chosen)
        elif not (
            step.is_glance or (self._cheap and self._controller.leaves_engines(load.requests))
        ):
            chosen, tried = self._weigh(step, items, trees, worths)
        chosen = tuple(
            choice._replace(first_step_only=False) if self._needs_all_steps(choice) else choice
            for choice in chosen
        )
        in_use = self._controller.engines_in_use.union(choice.engine for choice in chosen)
        self._in_use = [self._engines[i] for i in in_use]
        began = self._clock()
        if chosen:
            drafts = [
                self._drafts_of(self._engines[i], items, first_step_only=first_step_only)
                for i, first_step_only in chosen
            ]
            trees = merged([trees, *drafts] if self._cheap else drafts)
        if tried:
            self._try(step, items, trees, [self._engines[i] for i in tried])
        step.drafting = self._clock() - began
        trees = TokenTree.best_each(trees, [item.max_nodes for item in items])
        counts = share(
            trees, worths, lambda chances: self._controller.count(load, chances, step.spent)
        )
        for item, draft in zip(items, TokenTree.best_each(trees, counts), strict=True):
            item.request.draft = draft
        step.nodes = sum(counts)
        self._controller.report(load, [self._name(choice) for choice in chosen], step.nodes)

    def _weighs(self, step: Step, has_nodes: bool) -> bool:
        """Whether it is weighed what is drafted and verified; ``has_nodes``: of members without an
        engine, if there are any."""
        if step.is_glance and has_nodes:
            self._controller.glance()
        elif step.is_glance:
            self._controller.leave_out()
        elif self._cheap and not has_nodes:  # without them, the scheduler has asked already
            return not self._controller.rests(step.load.requests)
        return has_nodes or not self._cheap

    def _weigh(
        self,
        step: Step,
        items: Sequence[ScheduledRequest],
        trees: Sequence[TokenTree],
        worths: Floats | None,
    ) -> tuple[tuple[Choice, ...], tuple[int, ...]]:
        """See `Controller.plan`."""
        outlooks = [member.outlook(items, self._prompt_rows.mean) for member in self._engines]
        cheap = ranked(trees) if outlooks else None
        if worths is not None and cheap is not None:
            cheap = cheap * worths[:, None]
            outlooks = [outlook.times(worths) for outlook in outlooks]
        chosen, tried = self._controller.plan(step.load, cheap, outlooks)
        step.is_learning = self._controller.is_learning
        step.spent = sum(outlooks[i].of(first_step_only).seconds for i, first_step_only in chosen)
        return chosen, tried

    def _verify_all(self, step: Step, items: Sequence[ScheduledRequest], choice: Choice) -> None:
        """Let one engine draft, and give each request its whole tree, without chances."""
        step.spent = self._seconds(choice, len(items))
        began = self._clock()
        member, first_step_only = self._engines[choice.engine], choice.first_step_only
        blocks = self._blocks_of(items)
        trees = member.draft(items, self._clock, False, first_step_only, blocks)
        for item, tree in zip(items, trees, strict=True):
            item.request.draft = tree
            step.nodes += len(tree)
        step.drafting = self._clock() - began

    def _try(
        self,
        step: Step,
        items: Sequence[ScheduledRequest],
        trees: list[TokenTree],
        members: Sequence[Member],
    ) -> None:
        """Add what these members draft for one request to its tree: the request whose drafts cost
        least."""
        place = min(range(len(items)), key=lambda i: members[0].num_behind(items[i].request))
        step.tried = items[place].request.id
        step.expected = 1.0
        if len(trees[place]):
            step.expected += float(np.exp(scores(trees[place])).sum())
        began = self._clock()
        for member in members:
            drafts = self._drafts_of(member, items[place : place + 1], is_trial=True)
            trees[place] = TokenTree.merge([trees[place], *drafts])
        step.trying = self._clock() - began
        step.spent += step.trying

    def _drafts_of(
        self,
        member: Member,
        items: Sequence[ScheduledRequest],
        is_trial: bool = False,
        first_step_only: bool = False,
    ) -> list[TokenTree]:
        """The trees of a member for these items; scores are the ln of the chances of paths."""
        blocks = self._blocks_of(items)
        trees = member.draft(items, self._clock, is_trial, first_step_only, blocks)
        return member.calibrate(items, trees)

    def _blocks_of(self, items: Sequence[ScheduledRequest]) -> list[Tensor]:
        """See `StepPlan`; empty where the plan leaves them out."""
        return [self._blocks[item.request.id] for item in items] if self._blocks else []

    def _needs_all_steps(self, choice: Choice) -> bool:
        """Whether the engine makes the whole rollout in place of its first step."""
        return choice.first_step_only and self._engines[choice.engine].needs_all_steps

    def _seconds(self, choice: Choice, requests: int) -> float:
        """Expected seconds of drafting for that many requests."""
        return self._engines[choice.engine].costs.seconds(requests, choice.first_step_only)

    def _name(self, choice: Choice) -> str:
        name = self._engines[choice.engine].name
        return f"one step of {name}" if choice.first_step_only else name

    def _accept(
        self, member: Member, batch: StepPlan, accepted: Sequence[Accepted]
    ) -> Sequence[tuple[int, ...]]:
        """Tell a member what was accepted; engines not in use need not feed prompts."""
        if member.has_engine and (self._is_resting or member not in self._in_use):
            batch = batch.without_feeding()
        return member.drafter.on_accepted(batch, accepted)

    def _tell_of_ended(self, batch: StepPlan, accepted: Sequence[Accepted]) -> None:
        """Tell members without an engine, which rest, of requests that end now: they may keep their
        texts. Of others they take in what they lack when they are next asked."""
        ended = [i for i, item in enumerate(batch.items) if item.request.is_finished]
        if ended:
            batch = StepPlan(tuple(batch.items[i] for i in ended))
            for member in self._cheap:
                member.drafter.on_accepted(batch, [accepted[i] for i in ended])

    def _wake(self) -> None:
        """There is no nap any more: count its steps. Engines are told of them by `_tell_late`, once
        those requests are released that are to be."""
        nap = self._nap
        if nap.ids and nap.num_steps:
            rest = self._rest_of(len(nap.ids), nap.others_wait)
            rest.pass_over(nap.num_steps, nap.seconds)
            for _ in range(nap.num_steps):
                self._controller.leave_out()
                self._prompt_rows.observe(0)
        nap.end()

    def _num_alike(self, step: Step) -> int:
        """How many steps to come go without drafts like this one, if the same texts go on."""
        rest, texts = step.rest, step.load.requests
        if not step.is_pure or rest is None or rest is not self._rest_of(texts, step.others_wait):
            return 0
        if step.is_resting or step.is_glance:
            sure = rest.num_sure(texts, self._num_begun)
            if self._cheap and texts == 1:
                sure = min(sure, rest.glances.num_left(self._num_begun))
            return sure
        if self._cheap or step.is_compared or not (left := self._controller.num_rests(texts)):
            return 0
        return min(left, rest.num_sure(texts, self._num_begun))

    def _tell_late(self) -> None:
        """Tell engines of the steps of a nap, which fed no prompts."""
        for batch, accepted in self._nap.take_untold():
            for member in self._engines:
                member.drafter.on_accepted(batch, accepted)

    def _worths(self, step: Step, items: Sequence[ScheduledRequest]) -> Floats | None:
        """What a token of each request is worth ``[B]``; None: all the same."""
        if not self._adapts or step.others_wait or not step.is_pure or len(items) == 1:
            return None
        one, all_rows = (self.target_cost.at(n) for n in (1, len(items)))
        row_share = 1 - one / all_rows if all_rows else 0.0
        return self._worth.of([item.request for item in items], row_share)

    def _rest_of(self, requests: int, others_wait: bool) -> Rest:
        return self._rests[batch_of(requests), others_wait]


def union_needs(members: Sequence[DrafterNeeds], max_nodes: int) -> DrafterNeeds:
    """What a union of ``max_nodes`` nodes at most needs for its members."""
    nodes = min(max_nodes, sum(needs.max_nodes for needs in members))
    return DrafterNeeds(
        max_nodes=nodes,
        max_depth=min(max(needs.max_depth for needs in members), nodes),
        caches=tuple(cache for needs in members for cache in needs.caches),
        reads_hidden=any(needs.reads_hidden for needs in members),
        reads_every_row=any(needs.reads_every_row for needs in members),
        has_draft_engine=any(needs.has_draft_engine for needs in members),
    )
