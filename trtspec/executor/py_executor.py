"""PyExecutor: the loop that drives the engines, one step at a time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import torch

from trtspec.backends.packing import RowGroup
from trtspec.errors import EngineError, TrtspecError
from trtspec.executor.acceptance_rule import AcceptanceRule
from trtspec.executor.drafter import Accepted, Drafter
from trtspec.executor.metrics import ExecutorMetrics
from trtspec.executor.model_engine import ModelEngine
from trtspec.executor.overlap import Overlap
from trtspec.executor.request import Request
from trtspec.executor.resources import ResourceManager
from trtspec.executor.sampler import Sampler
from trtspec.executor.scheduler import OrderError, Scheduler
from trtspec.executor.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.stopping import StopChecker
from trtspec.executor.verdict import TokenLogprobs, Verdict
from trtspec.executor.verification import Verification
from trtspec.log import logger
from trtspec.ops.tree import TokenTree


@dataclass(frozen=True)
class StepOutput:
    """What a step did for one request; ``request.finish_reason`` says whether it ended."""

    request: Request
    tokens: Sequence[int] = ()
    logprobs: Sequence[TokenLogprobs] | None = None
    error: TrtspecError | None = None


@dataclass(frozen=True)
class LaunchedStep:
    """A step whose engine calls have begun, as `PyExecutor.collect` needs it. groups: the rows that
    are fed, of each item. failure: why nothing came of it; then there is no verification."""

    plan: StepPlan
    groups: Sequence[RowGroup] = ()
    verification: Verification | None = None
    failure: EngineError | None = None


@dataclass
class _Judged:
    """A scheduled request after the target's verdict."""

    item: ScheduledRequest
    output: StepOutput
    accepted: Accepted = field(default_factory=lambda: Accepted((), ()))


class PyExecutor:
    """Continuous batching with speculation over one target engine and any `Drafter`.

    A step has two halves: `launch` starts the engine calls of a plan, `collect` waits for their
    verdicts. What does not depend on these can be done between the two.

    Not thread-safe: one thread calls everything.
    """

    def __init__(
        self,
        target: ModelEngine,
        resources: ResourceManager,
        scheduler: Scheduler,
        drafter: Drafter,
        rule: AcceptanceRule | None = None,
        metrics: ExecutorMetrics | None = None,
        overlap: Overlap | None = None,
    ) -> None:
        """``metrics``: with the engines to report on; left out, none of them is. ``overlap``: to
        which the engines announce their calls; left out, nothing is done meanwhile.

        ``meanwhile``, to be set, is what `step` does between the halves where it ``overlaps``: on
        another thread perhaps, which may `add` requests and call nothing else here. What it raises
        `step` raises, which then comes to nothing: its requests must be aborted.
        """
        self.metrics = metrics or ExecutorMetrics()
        self._target = target
        self._resources = resources
        self._scheduler = scheduler
        self._drafter = drafter
        self.meanwhile: Callable[[], None] = _nothing
        self._overlap = overlap
        self._sampler = Sampler(rule)
        self._stops: dict[int, StopChecker] = {}

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work

    @property
    def num_running(self) -> int:
        """Requests that hold blocks."""
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        """Requests that hold none yet, or lost theirs."""
        return self._scheduler.num_waiting

    @property
    def kv_cache_usage(self) -> float:
        """Share of the blocks that nobody else could have now, of the fullest cache; 0 to 1."""
        return self._resources.usage

    def add(self, request: Request, stop: StopChecker) -> None:
        """Queue a request.

        Raises:
            RequestError: it could never run; both lengths are named.
        """
        self._scheduler.add(request)
        self._sampler.begin(request)
        self._stops[request.id] = stop

    def abort(self, request_id: int) -> None:
        """End a request now; an unknown or finished id is ignored."""
        if self._scheduler.abort(request_id) is not None:
            self._forget(request_id)

    @property
    def overlaps(self) -> bool:
        """Whether `meanwhile` is called while the engine calls of a step run."""
        return self._overlap is not None

    def step(self) -> list[StepOutput]:
        """Run one step: schedule and reserve, draft, verify, accept, commit, emit. Where a policy
        cannot order the requests that wait, these fail instead, and the others go on next time."""
        try:
            plan = self.plan()
        except OrderError as error:
            refused = self._refuse_waiting(error)
            if self._overlap is not None:
                self.meanwhile()
            return refused
        if self._overlap is None:
            return self.collect(self.launch(plan))
        return self.collect(self._overlap.during(lambda: self.launch(plan), self.meanwhile))

    def close(self) -> None:
        """End the thread that overlaps, if there is one."""
        self.meanwhile = _nothing
        if self._overlap is not None:
            self._overlap.close()

    def plan(self) -> StepPlan:
        """Begin a step: choose its rows, reserve their blocks. OrderError: see `schedule`."""
        self.metrics.start_step()
        plan = self._scheduler.schedule()
        self.metrics.record_preemptions(len(plan.preempted))
        if self._resources.enable_reuse:
            for item in plan.admitted:
                self.metrics.record_prefix(item.request.num_prompt_tokens, item.start)
        return plan

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Draft, and start the target's call over the rows of the plan and its drafts."""
        try:
            for request in plan.preempted:
                self._drafter.release(request.id)
            self._drafter.prepare_draft_tokens(plan)
            self._sampler.shape_drafts(plan, self._drafter.needs.max_depth)
            groups = [_rows(*planned) for planned in zip(plan.items, plan.blocks, strict=True)]
            judged = [item.request for item in plan.items if item.samples]
            return LaunchedStep(plan, groups, self._sampler.launch(self._target, groups, judged))
        except Exception as error:
            return LaunchedStep(plan, failure=_step_failure(plan, error))

    def collect(self, launched: LaunchedStep) -> list[StepOutput]:
        """Read the verdicts, accept, commit and emit."""
        plan, failure = launched.plan, launched.failure
        judged: list[_Judged] = []
        if failure is None:
            try:
                judged = self._settle(launched)
            except Exception as error:
                failure = _step_failure(plan, error)
        if failure is not None:
            judged = [_failed(item, failure) for item in plan.items]
        outputs = [self._emit(j) for j in judged]
        self.metrics.end_step(plan.only_generates, failure)
        return outputs

    def _refuse_waiting(self, error: OrderError) -> list[StepOutput]:
        """Fail the requests that could not be put in order."""
        logger.error("the requests that wait are refused", exc_info=error)
        refused = self._scheduler.waiting
        for request in refused:
            request.finish_reason = "error"
            self._end(request)
        return [StepOutput(request, error=error) for request in refused]

    def _settle(self, launched: LaunchedStep) -> list[_Judged]:
        """Extend requests by what the target emits, and bring all caches and the drafter there."""
        plan, verification = launched.plan, launched.verification
        assert verification is not None, "a step that did not fail was verified"
        verdicts = verification.read()
        judged = [self._accept(item, verdicts.get(item.request.id)) for item in plan.items]
        if self._drafter.needs.reads_hidden:
            assert verification.hidden is not None, "the target was built without hidden states"
            _share_out(verification.hidden, launched.groups, judged)
        drafted = self._drafter.on_accepted(plan, [j.accepted for j in judged])
        self._commit(judged, drafted)
        return judged

    def _accept(self, item: ScheduledRequest, verdict: Verdict | None) -> _Judged:
        """Extend the request by what the target emits, up to where its text ends. No verdict: its
        newest token was not fed yet."""
        request = item.request
        fed = tuple(range(item.num_rows))
        if verdict is None:
            return _Judged(item, StepOutput(request), Accepted(fed, ()))
        if verdict.failed:
            where = f"at output token {request.num_output_tokens}"
            error = EngineError(
                f"the model returned no usable logits {where} (NaN, or every token excluded); "
                "check the checkpoint and the request's bans, or use dtype float32"
            )
            return _failed(item, error)
        stop = self._stops[request.id]
        emitted = verdict.tokens[: stop.accept(verdict.tokens, verdict.reason)]
        request.finish_reason = stop.finish_reason
        request.tokens.extend(emitted)
        # Rows of accepted drafts lie behind the fed tokens; the last emitted token has no row yet.
        nodes = tuple(item.num_rows - 1 + row for row in verdict.rows[1 : len(emitted)])
        logprobs = verdict.logprobs[: len(emitted)] if verdict.logprobs else None
        if item.is_generation:
            tree = request.draft
            request.num_steps += 1
            self.metrics.record_verify(request.id, len(emitted), len(tree), tree.max_depth)
        return _Judged(
            item, StepOutput(request, emitted, logprobs), Accepted(fed + nodes, tuple(emitted))
        )

    def _commit(self, judged: Sequence[_Judged], drafted: Sequence[tuple[int, ...]]) -> None:
        """Make accepted rows contiguous in the target's cache and move all caches' counters."""
        kept: list[_Judged] = []
        lengths: list[tuple[int, ...]] = []
        for j, draft_committed in zip(judged, drafted, strict=True):
            if j.output.error is None:
                kept.append(j)
                lengths.append(draft_committed)
        # Rows rise: those whose last is at its place are all at theirs.
        moved = [j for j in kept if j.accepted.rows[-1] >= len(j.accepted.rows)]
        resources = self._resources
        if moved:
            starts = [j.item.start for j in moved]
            rows = [j.accepted.rows for j in moved]
            self._target.compact(*resources.moves([j.item.request for j in moved], starts, rows))
        committed = [j.item.start + len(j.accepted.rows) for j in kept]
        resources.commit([j.item.request for j in kept], committed, lengths)

    def _emit(self, judged: _Judged) -> StepOutput:
        """Close the request's step; a request whose text ended gives everything back."""
        request = judged.item.request
        request.draft = TokenTree.empty()
        if request.is_finished:
            self._end(request)
        return judged.output

    def _end(self, request: Request) -> None:
        self._scheduler.finish(request)
        self._forget(request.id)

    def _forget(self, request_id: int) -> None:
        self._stops.pop(request_id, None)
        self._sampler.release(request_id)
        self._drafter.release(request_id)


def _nothing() -> None:
    pass


def _rows(item: ScheduledRequest, blocks: torch.Tensor) -> RowGroup:
    request = item.request
    return RowGroup(
        tokens=request.tokens[item.start : item.start + item.num_rows],
        context=item.start,
        blocks=blocks,
        tree=request.draft if item.is_generation else None,
        last_logits=item.samples,
    )


def _share_out(hidden: torch.Tensor, groups: Sequence[RowGroup], judged: Sequence[_Judged]) -> None:
    """Give every request the states of its accepted rows, gathered at once."""
    fed = sum(group.num_rows for group in groups)
    counts = [len(j.accepted.rows) for j in judged]
    if sum(counts) == fed:
        gathered = hidden if hidden.device.type == "cpu" else hidden.clone()  # see `Session.run`
    else:
        rows: list[int] = []
        first = 0
        for group, j in zip(groups, judged, strict=True):
            rows += [first + row for row in j.accepted.rows]
            first += group.num_rows
        gathered = hidden[torch.tensor(rows, dtype=torch.int64).to(hidden.device)]
    shares = torch.split(gathered, counts) if len(counts) > 1 else (gathered,)
    for j, share in zip(judged, shares, strict=True):
        j.accepted.hidden = share


def _failed(item: ScheduledRequest, error: TrtspecError) -> _Judged:
    item.request.finish_reason = "error"
    return _Judged(item, StepOutput(item.request, error=error))


def _step_failure(plan: StepPlan, error: Exception) -> EngineError:
    logger.exception("a step of %d requests failed", len(plan.items))
    return EngineError(f"the step failed: {error}")
