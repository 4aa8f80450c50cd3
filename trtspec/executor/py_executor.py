"""PyExecutor: the loop that drives the engines, one step at a time."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from trtspec.errors import ConfigError, EngineError, TrtspecError
from trtspec.executor.engines.model_engine import ModelEngine
from trtspec.executor.executor_metrics import ExecutorMetrics, Use
from trtspec.executor.overlap import Overlap
from trtspec.executor.resident.engine import ResidentEngine
from trtspec.executor.resident.steps import ResidentSteps, confirmed
from trtspec.executor.schedule.resources import ResourceManager
from trtspec.executor.schedule.scheduler import OrderError, Scheduler
from trtspec.executor.step.acceptance_rule import AcceptanceRule
from trtspec.executor.step.drafter import Drafter
from trtspec.executor.step.prompt_logprobs import PromptLogprobs
from trtspec.executor.step.request import Request
from trtspec.executor.step.sampler import Sampler
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import SpecStep, StepResult, TokenLogprobs
from trtspec.executor.step.verification import Verification
from trtspec.executor.text.stopping import StopChecker
from trtspec.log import logger


@dataclass(frozen=True)
class StepOutput:
    """What a step did for one request; ``request.finish_reason`` says whether it ended."""

    request: Request
    tokens: Sequence[int] = ()
    logprobs: Sequence[TokenLogprobs] | None = None
    spec_step: SpecStep | None = None
    error: TrtspecError | None = None
    prompt_logprobs: PromptLogprobs | None = None


@dataclass(frozen=True)
class LaunchedStep:
    """A step whose engine calls have begun, for `PyExecutor.collect`. failure: why it could not be
    launched; then there is no verification. lag: how many others may be launched before it is
    collected; above 0 the step runs on the device alone. used: for its launch, if it is in flight.
    """

    plan: StepPlan
    verification: Verification | None = None
    failure: EngineError | None = None
    lag: int = 0
    used: Use | None = None


class PyExecutor:
    """Continuous batching with speculation, over one target engine and any `Drafter`.

    A step has two halves: `launch` starts the engine calls of a plan, `collect` waits for their
    result. Independent work can be done in between. With a lag, up to that many further steps are
    launched before a step is collected, whose result is then cut to what still counts.

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
        resident: ResidentEngine | None = None,
        lag: int = 0,
    ) -> None:
        """``metrics``: knows the engines to report on; by default none. ``overlap``: the engines
        announce their calls to it; by default nothing is done meanwhile.

        ``meanwhile``, an attribute to be set, is called by `step` between the halves if it
        ``overlaps``, possibly on another thread; it may `add` requests and call nothing else here.
        If it raises, so does `step`, whose result is lost: the step's requests must be aborted.

        ``resident``: the target as an engine that advances by itself; ``lag``: how many of its
        steps are in flight while another is launched. 0: every step runs on ``target``. ConfigError
        for a lag without such an engine.
        """
        if lag and resident is None:
            raise ConfigError(
                f"lag={lag} needs a target that keeps its running requests on the device; this one "
                "is told the rows of every step, so that lag must be 0"
            )
        self.metrics = metrics or ExecutorMetrics()
        self._target = target
        self._resources = resources
        self._scheduler = scheduler
        self._drafter = drafter
        self.meanwhile: Callable[[], None] = _nothing
        self._overlap = overlap
        self._sampler = Sampler(rule)
        self._stops: dict[int, StopChecker] = {}
        self._lag = lag
        self._in_flight: deque[LaunchedStep] = deque()  # the oldest first
        self._resident: ResidentSteps | None = None
        if lag and resident is not None:
            caches, needs_host = resources.draft_caches, self._sampler.needs_host
            self._resident = ResidentSteps(resident, scheduler, drafter, caches, needs_host)

    @property
    def has_work(self) -> bool:
        return self._scheduler.has_work or bool(self._in_flight)

    @property
    def num_running(self) -> int:
        """Requests that hold blocks."""
        return self._scheduler.num_running

    @property
    def num_waiting(self) -> int:
        """Requests that hold none yet, or were preempted."""
        return self._scheduler.num_waiting

    @property
    def kv_cache_usage(self) -> float:
        """Share of the blocks that are unavailable to others now, in the fullest cache; 0 to 1."""
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
        """Whether `meanwhile` is called while a step's engine calls run."""
        return self._overlap is not None

    def step(self) -> list[StepOutput]:
        """Run one step: schedule and reserve, draft, verify, accept, commit, emit. With a lag: the
        first half of one step, then the second half of an earlier one; either may be missing. If
        the admission policy fails, the waiting requests fail, and the others go on in the next
        step."""
        try:
            plan = self.plan()
        except OrderError as error:
            refused = self._refuse_waiting(error)
            if self._overlap is not None:
                self.meanwhile()
            return refused
        if self._overlap is None:
            launched = self._begin(plan)
        else:
            launched = self._overlap.during(lambda: self._begin(plan), self.meanwhile)
        return [] if launched is None else self.collect(launched)

    def close(self) -> None:
        """End the overlapping thread, if there is one."""
        self.meanwhile = _nothing
        if self._overlap is not None:
            self._overlap.close()

    def plan(self) -> StepPlan:
        """Begin a step: choose its rows and reserve their blocks. Empty if steps in flight must be
        collected first. OrderError: see `schedule`."""
        self.metrics.start_step()
        if self._resident is not None and self._must_wait(self._resident):
            return StepPlan(())
        plan = self._scheduler.schedule()
        self.metrics.record_preemptions(len(plan.preempted))
        if self._resources.enable_reuse:
            for item in plan.admitted:
                self.metrics.record_prefix(item.request.num_prompt_tokens, item.start)
        if self._resident is not None:
            return self._resident.admit(plan, in_flight=bool(self._in_flight))
        return plan

    def launch(self, plan: StepPlan) -> LaunchedStep:
        """Draft, and start the target's call over the plan's rows and drafts."""
        try:
            for request in plan.preempted:
                self._release(request.id)
            if self._resident is not None:
                if self._resident.takes_next:
                    return LaunchedStep(plan, self._resident.launch(plan), lag=self._lag)
                self._resident.step_on_host(plan)
            if plan.states is not None and plan.states.restored is not None:
                self._target.copy_states(*plan.states.restored)
            drafts = self._drafter.prepare_draft_tokens(plan)
            drafts = self._sampler.shape_drafts(plan, drafts, self._drafter.needs.max_depth)
            return LaunchedStep(plan, self._sampler.launch(self._target, plan, drafts))
        except Exception as error:
            return LaunchedStep(plan, failure=_step_failure(plan, error))

    def collect(self, launched: LaunchedStep) -> list[StepOutput]:
        """Read the result, accept, commit and emit; requests that ended meanwhile are ignored."""
        plan, failure = launched.plan, launched.failure
        requests = [item.request for item in plan.items if not item.request.is_finished]
        outputs: list[StepOutput] = []
        if failure is None:
            try:
                outputs = self._settle(launched)
            except Exception as error:
                failure = _step_failure(plan, error)
        if failure is not None:
            for request in requests:
                request.finish_reason = "error"
            outputs = [StepOutput(request, error=failure) for request in requests]
        for request in requests:
            if request.is_finished:
                self._end(request)
        self.metrics.end_step(plan.only_generates, failure, launched.used)
        return outputs

    def _begin(self, plan: StepPlan) -> LaunchedStep | None:
        """Launch a step unless its plan is empty; returns the step to collect now, if any."""
        in_flight = self._in_flight
        if plan.items or not in_flight:
            launched = self.launch(plan)
            if not (in_flight or launched.lag):
                return launched
            in_flight.append(replace(launched, used=self.metrics.end_launch()))
            if len(in_flight) <= launched.lag:
                return None
        return in_flight.popleft()

    def _must_wait(self, resident: ResidentSteps) -> bool:
        """Whether everything in flight must be collected before another step is planned: because
        that step needs the host, or because a launch failed and its requests end."""
        needs_host = resident.next_needs_host()
        in_flight = self._in_flight
        return bool(in_flight) and (needs_host or in_flight[-1].failure is not None)

    def _refuse_waiting(self, error: OrderError) -> list[StepOutput]:
        """Fail the requests that could not be ordered."""
        logger.error("the requests that wait are refused", exc_info=error)
        refused = self._scheduler.waiting
        for request in refused:
            request.finish_reason = "error"
            self._end(request)
        return [StepOutput(request, error=error) for request in refused]

    def _settle(self, launched: LaunchedStep) -> list[StepOutput]:
        """Extend requests by what the target emits, and update all caches and the drafter."""
        plan, verification = launched.plan, launched.verification
        assert verification is not None, "a step that did not fail was verified"
        result = verification.read()
        if launched.lag:
            plan, result = confirmed(plan, result)
        outputs = [self._conclude(item, result, i) for i, item in enumerate(plan.items)]
        for i, found in verification.prompts.items():
            outputs[i] = replace(outputs[i], prompt_logprobs=found)
        moves = self._resources.extend(plan, result)
        if self._drafter.needs.reads_hidden and not launched.lag:
            assert verification.hidden is not None, "the target was built without hidden states"
            result.keep_hidden(plan, verification.hidden)
        drafted = self._drafter.on_accepted(plan, result)
        if moves and not launched.lag:
            self._target.compact(*moves)
        if plan.states is not None and not launched.lag:
            self._target.move_states(self._resources.state_moves(plan, result))
        self._resources.commit(plan, result, drafted)
        return outputs

    def _conclude(self, item: ScheduledRequest, result: StepResult, i: int) -> StepOutput:
        """What the target emits for item i, cut where its text ends."""
        request = item.request
        if result.failed(i):
            request.finish_reason = "error"
            where = f"at output token {request.num_output_tokens}"
            unusable = EngineError(
                f"the model returned no usable logits {where} (NaN, or every token excluded); "
                "check the checkpoint and the request's bans, or use dtype float32, or "
                "kv_cache_dtype bfloat16, whose range is wider than float16's"
            )
            fault = self._sampler.fault(request, self._target.vocab_size)
            return StepOutput(request, error=fault or unusable)
        tokens = result.emitted(i)
        if not tokens:  # its newest token was not fed yet
            return StepOutput(request)
        stop = self._stops[request.id]
        count = stop.accept(tokens, result.ends[i])
        if count < len(tokens):
            tokens = tokens[:count]
        result.cut(i, count, stop.finish_reason)
        request.finish_reason = stop.finish_reason
        if item.is_generation:
            request.num_steps += 1
            drafts = result.drafts
            by_source = drafts.by_source(i, result.accepted_rows(i))
            verified = drafts.counts[i], drafts.max_depths[i], by_source
            name = None if request.adapter is None else request.adapter.name
            self.metrics.record_verify(request.id, count, *verified, adapter=name)
        spec_step = result.spec_step(i) if request.params.return_spec_steps else None
        return StepOutput(request, tokens, result.logprobs.get(i), spec_step)

    def _end(self, request: Request) -> None:
        self._scheduler.finish(request)
        self._forget(request.id)

    def _forget(self, request_id: int) -> None:
        self._stops.pop(request_id, None)
        self._sampler.release(request_id)
        self._release(request_id)

    def _release(self, request_id: int) -> None:
        """The request ended or was preempted."""
        self._drafter.release(request_id)
        if self._resident is not None:
            self._resident.forget(request_id)


def _nothing() -> None:
    pass


def _step_failure(plan: StepPlan, error: Exception) -> EngineError:
    logger.exception("a step of %d requests failed", len(plan.items))
    return EngineError(f"the step failed: {error}")
