"""Records what PyExecutor does in a scenario, for trtspec_replay to compare.

A trace is JSON lines: for each scenario one ``{"scenario": ...}``, one ``{"step": n, ...}`` for
every step, and ``{"end": ...}``. What a step holds is written in `Recorder.run`.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

from trtspec.config.kv import CacheLayout
from trtspec.config.sampling import SamplingParams
from trtspec.errors import RequestError
from trtspec.executor.executor_metrics import ExecutorMetrics
from trtspec.executor.overlap import Overlap
from trtspec.executor.py_executor import PyExecutor, StepOutput
from trtspec.executor.schedule.kv_cache import KVCacheManager
from trtspec.executor.schedule.resources import ResourceManager
from trtspec.executor.schedule.scheduler import Scheduler
from trtspec.executor.step.drafter import Drafter, NoDrafter
from trtspec.executor.step.forwarding_drafter import ForwardingDrafter
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.text.stopping import StopChecker
from trtspec.ops.draft_batch import DraftBatch
from trtspec.speculative.draft_model.options import DraftTargetDecodingConfig
from trtspec.speculative.eagle.options import Eagle3DecodingConfig
from trtspec.speculative.hidden_state_drafter import HiddenStateDrafter, hidden_state_needs
from trtspec.speculative.ngram.drafter import NGramDrafter
from trtspec.speculative.ngram.options import NGramDecodingConfig
from trtspec.speculative.suffix.drafter import SuffixDrafter
from trtspec.speculative.suffix.options import SuffixDecodingConfig
from trtspec.speculative.token_drafter import TokenDrafter, token_needs

from .scenario import Arrival, Scenario, random_scenario
from .toy_engine import Kind, Model, ToyEngine


class _WatchedDrafter(ForwardingDrafter):
    """Passes everything on to a drafter and notes what the step is made of."""

    def __init__(self, drafter: Drafter, resources: ResourceManager) -> None:
        super().__init__(drafter)
        self.seen: dict[str, Any] = {}
        self._resources = resources

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        resources = self._resources
        requests = [item.request for item in batch.items]
        self.seen = {
            "items": [
                [i.request.id, i.start, i.num_rows, i.is_generation, i.max_nodes, i.samples]
                for i in batch.items
            ],
            "preempted": [request.id for request in batch.preempted],
            "target_blocks": [_ints(resources.target_block_table(r)) for r in requests],
            "draft_blocks": [
                _ints(cache.block_table(r)) for cache in resources.draft_caches for r in requests
            ],
            "drafts": [],
        }
        drafts = super().prepare_draft_tokens(batch)
        self.seen["drafts"] = [[tree.tokens.tolist(), tree.parents.tolist()] for tree in drafts]
        return drafts


class Recorder:
    """One scenario, run by PyExecutor over toy engines. ``overlap``: to which these announce their
    calls."""

    def __init__(self, scenario: Scenario, overlap: Overlap | None = None) -> None:
        self.scenario = s = scenario
        draft = s.draft
        layout = CacheLayout(s.tokens_per_block, s.blocks_per_sequence, s.mask_words)
        model = Model(s.vocab, s.vocab, s.salt, s.period, s.regularity, s.skill, s.nan_every)
        self.target = ToyEngine(Kind.TARGET, model, layout, s.num_blocks, s.failing_target_calls)
        self.draft: ToyEngine | None = None
        reuse = s.enable_block_reuse
        caches: list[KVCacheManager] = []
        if draft.has_cache:
            self.draft = ToyEngine(
                Kind(draft.kind),
                Model(s.draft_vocab, s.vocab, s.salt, s.period, s.regularity, s.skill, s.nan_every,
                      draft.topk, draft.num_steps, draft.max_nodes),
                CacheLayout(s.draft_tokens_per_block, s.draft_blocks_per_sequence, s.mask_words),
                s.draft_num_blocks,
                s.failing_draft_calls,
            )  # fmt: skip
            caches = [
                KVCacheManager(
                    s.draft_num_blocks,
                    s.draft_tokens_per_block,
                    reuse,
                    lookahead=int(draft.kind == "eagle"),
                )
            ]
        self.resources = ResourceManager(
            KVCacheManager(s.num_blocks, s.tokens_per_block, reuse),
            caches,
            [draft.kind == "draft_model"] * len(caches),
        )
        self.drafter = _WatchedDrafter(self._make_drafter(), self.resources)
        scheduler = Scheduler(
            self.resources, s.max_batch_size, s.max_num_tokens, s.max_seq_len, self.drafter.needs
        )
        target: Any = self.target
        self.executor = PyExecutor(
            target,
            self.resources,
            scheduler,
            self.drafter,
            metrics=ExecutorMetrics(target, [self.draft] if self.draft else [], overlap),
            overlap=overlap,
        )
        for engine in (self.target, self.draft) if overlap else ():
            if engine is not None and overlap is not None:
                engine.before_call = overlap.begin
        self.requests: dict[int, Request] = {}

    def _make_drafter(self) -> Drafter:
        draft = self.scenario.draft
        engine: Any = self.draft
        cache = self.resources.draft_caches[0] if engine else None
        shape: dict[str, Any] = {
            "speculative_model": "toy",
            "max_draft_len": draft.num_steps,
            "topk": draft.topk,
            "num_draft_tokens": draft.num_draft_tokens,
        }
        match draft.kind:
            case "ngram":
                return NGramDrafter(
                    NGramDecodingConfig(
                        max_draft_len=draft.max_draft_len,
                        prompt_lookup_min=draft.min_ngram,
                        prompt_lookup_max=draft.max_ngram,
                    )
                )
            case "suffix":
                assert draft.suffix is not None
                options = {f"suffix_decoding_{k}": v for k, v in asdict(draft.suffix).items()}
                return SuffixDrafter(
                    SuffixDecodingConfig(max_draft_len=draft.max_draft_len, **options)
                )
            case "draft_model":
                return TokenDrafter(engine, cache, token_needs(DraftTargetDecodingConfig(**shape)))
            case "eagle":
                return HiddenStateDrafter(
                    engine, cache, hidden_state_needs(Eagle3DecodingConfig(**shape))
                )
        return NoDrafter()

    def run(self) -> list[dict[str, Any]]:
        """The lines of the trace.

        Of a step: ``refused`` ids before it, and, if there is work: ``items`` (id, start, rows,
        is_generation, max_nodes, samples) and ``preempted`` ids as scheduled; block tables of the
        items in both caches before the drafts; ``drafts`` (tokens, parents) of the items, none if
        drafting failed; ``outputs`` (id, tokens, finish reason or null); ``logprobs`` (id, and of
        each token itself, its own and the best ones) where they were asked for; after the step,
        ``committed`` (id, target, draft) of the items' unfinished requests, ``free`` blocks of both
        caches and how many requests run and wait.
        """
        lines: list[dict[str, Any]] = [{"scenario": self.scenario.to_dict()}]
        waiting = list(self.scenario.requests)
        step = 0
        while waiting or self.executor.has_work:
            refused = [r.id for r in waiting if r.arrival <= step and not self._add(r)]
            waiting = [r for r in waiting if r.arrival > step]
            for request in self.scenario.requests:
                if request.abort == step:
                    self.executor.abort(request.id)
            lines.append({"step": step, "refused": refused, **self._step()})
            step += 1
            assert step < 2000, "the executor makes no progress"
        lines.append({"end": self._figures()})
        return lines

    def _add(self, arrival: Arrival) -> bool:
        try:
            request = request_of(arrival, self.scenario.max_seq_len)
            stop = StopChecker(request.params, request.eos_token_ids)
            self.executor.add(request, stop)
        except RequestError:
            return False
        self.requests[arrival.id] = request
        return True

    def _step(self) -> dict[str, Any]:
        if not self.executor.has_work:
            return {}
        outputs = self.executor.step()
        self.resources.check_invariants()
        going_on = {id for id, request in self.requests.items() if not request.is_finished}
        assert self.drafter.live_requests <= going_on - set(self.drafter.seen["preempted"])
        resources = self.resources
        return {
            **self.drafter.seen,
            "outputs": [[o.request.id, list(o.tokens), o.request.finish_reason] for o in outputs],
            "logprobs": [
                [o.request.id, [[e.token, e.logprob, list(e.top.items())] for e in o.logprobs]]
                for o in outputs
                if o.logprobs
            ],
            "committed": [_committed(o, resources) for o in outputs if not o.request.is_finished],
            "free": [cache.num_free_blocks for cache in resources.all],
            "running": self.executor.num_running,
            "waiting": self.executor.num_waiting,
        }

    def _figures(self) -> dict[str, Any]:
        metrics = self.executor.metrics
        figures = metrics.to_dict()
        names = (
            "acceptance_length", "acceptance_rate", "num_steps", "num_drafts", "num_draft_tokens",
            "num_accepted_tokens", "num_emitted_tokens", "num_accepted_tokens_per_pos",
            "num_drafts_per_pos", "acceptance_rate_per_pos", "histogram", "num_engine_calls",
            "num_target_calls", "num_draft_calls", "num_engine_steps",
        )  # fmt: skip
        own = {str(id): metrics.of(id).histogram for id in self.requests}
        return {**{name: figures[name] for name in names}, "of": own}


def request_of(arrival: Arrival, max_seq_len: int) -> Request:
    """RequestError if it is longer."""
    params = SamplingParams(
        max_tokens=arrival.max_tokens,
        temperature=arrival.temperature,
        top_k=arrival.top_k,
        top_p=arrival.top_p,
        min_p=arrival.min_p,
        seed=arrival.seed,
        repetition_penalty=arrival.repetition_penalty,
        presence_penalty=arrival.presence_penalty,
        frequency_penalty=arrival.frequency_penalty,
        logit_bias=dict(arrival.logit_bias),
        bad_words=tuple(map(tuple, arrival.bad_words)),
        min_tokens=arrival.min_tokens,
        stop_token_ids=tuple(arrival.stop_token_ids),
        ignore_eos=arrival.ignore_eos,
        logprobs=arrival.logprobs,
        detokenize=False,
    )
    eos = () if arrival.ignore_eos else tuple(arrival.eos_token_ids)
    seed, index = arrival.seed, arrival.sample_index
    return Request.create(arrival.id, arrival.prompt, params, seed, max_seq_len, index, eos)


def _committed(output: StepOutput, resources: ResourceManager) -> list[int]:
    request = output.request
    return [
        request.id,
        resources.target_committed(request),
        resources.draft_caches[0].committed(request) if resources.draft_caches else 0,
    ]


def _ints(values: Any) -> list[int]:
    return list(map(int, values))


def record(scenario: Scenario) -> list[dict[str, Any]]:
    """The trace of one scenario."""
    return Recorder(scenario).run()


SMALL_TRACE = Path(__file__).resolve().parents[2] / "cpp/tests/runtime/trace.jsonl"
"""A trace for the C++ tests alone."""
_SMALL_SEEDS = (396, 98, 311, 456, 486, 2922)  # none with log probabilities: torch's may differ


def small_trace() -> list[dict[str, Any]]:
    """A few short scenarios, all drafters among them."""
    return [line for seed in _SMALL_SEEDS for line in record(random_scenario(seed))]


if __name__ == "__main__":
    SMALL_TRACE.write_text("".join(json.dumps(line) + "\n" for line in small_trace()))
