"""PyExecutor: the loop that drives the engines, one step at a time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch

from trtspec.backends.packing import RowGroup
from trtspec.errors import EngineError, TrtspecError
from trtspec.executor.acceptance_rule import AcceptanceRule
from trtspec.executor.drafter import Accepted, Drafter
from trtspec.executor.metrics import ExecutorMetrics
from trtspec.executor.model_engine import ModelEngine
from trtspec.executor.request import Request
from trtspec.executor.resources import ResourceManager
from trtspec.executor.sampler import Sampler
from trtspec.executor.scheduler import Scheduler
from trtspec.executor.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.stopping import StopChecker
from trtspec.executor.verdict import TokenLogprobs, Verdict
from trtspec.log import logger
from trtspec.ops.tree import TokenTree


@dataclass(frozen=True)
class StepOutput:
    """What a step did for one request; ``request.finish_reason`` says whether it ended."""

    request: Request
    tokens: Sequence[int] = ()
    logprobs: Sequence[TokenLogprobs] | None = None
    error: TrtspecError | None = None


@dataclass
class _Judged:
    """A scheduled request after the target's verdict."""

    item: ScheduledRequest
    output: StepOutput
    accepted: Accepted = field(default_factory=lambda: Accepted((), ()))


class PyExecutor:
    """Continuous batching with speculation over one target engine and any `Drafter`.

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
    ) -> None:
        """``metrics``: with the engines to report on; left out, none of them is."""
        self.metrics = metrics or ExecutorMetrics()
        self._target = target
        self._resources = resources
        self._scheduler = scheduler
        self._drafter = drafter
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
        self._stops[request.id] = stop

    def abort(self, request_id: int) -> None:
        """End a request now; an unknown or finished id is ignored."""
        if self._scheduler.abort(request_id) is not None:
            self._forget(request_id)

    def step(self) -> list[StepOutput]:
        """Run one step: schedule and reserve, draft, verify, accept, commit, emit."""
        self.metrics.start_step()
        batch = self._scheduler.schedule()
        self.metrics.record_preemptions(len(batch.preempted))
        if self._resources.enable_reuse:
            for item in batch.admitted:
                self.metrics.record_prefix(item.request.num_prompt_tokens, item.start)
        failure = None
        try:
            for request in batch.preempted:
                self._drafter.release(request.id)
            self._drafter.prepare_draft_tokens(batch)
            groups = [self._rows(item) for item in batch.items]
            hidden, verdicts = self._verify(batch, groups)
            judged = [self._accept(item, verdicts) for item in batch.items]
            if self._drafter.needs.reads_hidden:
                assert hidden is not None, "the target was built without hidden states"
                _share_out(hidden, groups, judged)
            drafted = self._drafter.on_accepted(batch, [j.accepted for j in judged])
            self._commit(judged, drafted)
        except Exception as error:
            logger.exception("a step of %d requests failed", len(batch.items))
            failure = EngineError(f"the step failed: {error}")
            judged = [_failed(item, failure) for item in batch.items]
        outputs = [self._emit(j) for j in judged]
        self.metrics.end_step(all(item.is_generation for item in batch.items), failure)
        return outputs

    def _rows(self, item: ScheduledRequest) -> RowGroup:
        request = item.request
        return RowGroup(
            tokens=request.tokens[item.start : item.start + item.num_rows],
            context=item.start,
            blocks=self._resources.target_block_table(request),
            tree=request.draft if item.is_generation else None,
            last_logits=item.samples,
        )

    def _verify(
        self, batch: StepPlan, groups: Sequence[RowGroup]
    ) -> tuple[torch.Tensor | None, dict[int, Verdict]]:
        """The target's states of all rows, if it hands them out, and its verdict on every request
        whose newest token was fed, by request id."""
        requests = [item.request for item in batch.items if item.samples]
        trees = [request.draft for request in requests]
        judges = bool(requests) and self._target.judges
        questions = self._sampler.questions(requests, trees) if judges else None
        judgement = None
        if questions is None:
            logits, hidden = self._target.forward(groups)
        else:
            logits, hidden, judgement = self._target.judge(groups, questions)
        if not requests:
            return hidden, {}
        verdicts = self._sampler.verify(requests, trees, logits, judgement)
        return hidden, dict(zip((r.id for r in requests), verdicts, strict=True))

    def _accept(self, item: ScheduledRequest, verdicts: dict[int, Verdict]) -> _Judged:
        """Extend the request by what the target emits, up to where its text ends."""
        request = item.request
        fed = tuple(range(item.num_rows))
        verdict = verdicts.get(request.id)
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
        emitted: list[int] = []
        for token in verdict.tokens:
            emitted.append(token)
            request.finish_reason = stop.accept(token)
            if request.finish_reason is not None:
                break
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
        sources: list[torch.Tensor] = []
        places: list[torch.Tensor] = []
        for j in judged:
            start, rows = j.item.start, j.accepted.rows
            moved = [(start + row, start + i) for i, row in enumerate(rows) if row != i]
            if moved:
                old, new = zip(*moved, strict=True)
                sources.append(self._resources.target_slots(j.item.request, old))
                places.append(self._resources.target_slots(j.item.request, new))
        if sources:
            self._target.compact(torch.cat(sources), torch.cat(places))
        for j, draft_committed in zip(judged, drafted, strict=True):
            if j.output.error is None:
                committed = j.item.start + len(j.accepted.rows)
                self._resources.commit(j.item.request, committed, draft_committed)

    def _emit(self, judged: _Judged) -> StepOutput:
        """Close the request's step; a request whose text ended gives everything back."""
        request = judged.item.request
        request.draft = TokenTree.empty()
        if request.is_finished:
            self._scheduler.finish(request)
            self._forget(request.id)
        return judged.output

    def _forget(self, request_id: int) -> None:
        self._stops.pop(request_id, None)
        self._sampler.release(request_id)
        self._drafter.release(request_id)


def _share_out(hidden: torch.Tensor, groups: Sequence[RowGroup], judged: Sequence[_Judged]) -> None:
    """Give every request the states of its accepted rows, gathered at once."""
    fed = sum(group.num_rows for group in groups)
    counts = [len(j.accepted.rows) for j in judged]
    # Copied in any case: the engine may write its next states over these.
    if sum(counts) == fed:
        gathered = hidden.clone()
    else:
        rows: list[int] = []
        first = 0
        for group, j in zip(groups, judged, strict=True):
            rows += [first + row for row in j.accepted.rows]
            first += group.num_rows
        gathered = hidden[torch.tensor(rows, dtype=torch.int64).to(hidden.device)]
    for j, share in zip(judged, torch.split(gathered, counts), strict=True):
        j.accepted.hidden = share


def _failed(item: ScheduledRequest, error: TrtspecError) -> _Judged:
    item.request.finish_reason = "error"
    return _Judged(item, StepOutput(item.request, error=error))
