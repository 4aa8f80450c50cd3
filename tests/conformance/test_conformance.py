"""Both executors, Python and C++, decide the same in every step of random scenarios."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count, islice, pairwise
from pathlib import Path
from typing import Any

import pytest
import torch

from trtspec.backends.packing import RowBatch, RowGroup, pack, pack_plan
from trtspec.executor.logits.bans import BadWords
from trtspec.executor.logits.penalties import Penalties
from trtspec.executor.schedule.resources import ResourceManager
from trtspec.executor.schedule.scheduler import Scheduler
from trtspec.executor.step import sampling_rows, step_plan
from trtspec.executor.step.request import Request
from trtspec.executor.step.request_processors import RequestProcessors
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.sampling import sample
from trtspec.ops.sequence import TokenSequence
from trtspec.speculative.suffix.drafter import SuffixDrafter

from .conftest import Replay
from .recorder import SMALL_TRACE, Recorder, record, request_of, small_trace
from .scenario import Arrival, Scenario, random_scenario
from .toy_engine import ToyEngine

NUM_SCENARIOS = 250
EVICTING = (2556, 3411, 5395)
"""Where a request that begins takes a response from the cache of suffix decoding, which others that
draft in the same step would find."""

Trace = list[dict[str, Any]]


def events_of(trace: Trace) -> Counter[str]:
    """What happened in the steps of one scenario."""
    events: Counter[str] = Counter()
    kind = trace[0]["scenario"]["draft"]["kind"]
    begun: set[int] = set()
    for line in trace[1:-1]:
        events["refused"] += len(line["refused"])
        events["preempted"] += len(line.get("preempted", ()))
        begun -= set(line.get("preempted", ()))
        for (id, start, _, generates, _, samples), (_, tokens, reason) in zip(
            line.get("items", ()), line.get("outputs", ()), strict=True
        ):
            events["reused"] += start > 0 and id not in begun
            begun.add(id)
            events["chunk"] += not samples
            events[f"{kind} accepted"] += generates and len(tokens) > 1
            events[str(reason)] += 1
        events["logprobs"] += sum(len(of) for _, of in line.get("logprobs", ()))
        for _, parents in line.get("drafts", ()):
            events["branched"] += any(b != a + 1 for a, b in pairwise(parents))
    requests = trace[0]["scenario"]["requests"]
    ended = sum(events[reason] for reason in ("stop", "length", "error"))
    events["aborted"] += len(requests) - ended - events["refused"]
    return events


@pytest.fixture(scope="module")
def traces() -> list[Trace]:
    return [record(random_scenario(seed)) for seed in (*range(NUM_SCENARIOS), *EVICTING)]


@pytest.mark.slow
def test_scenarios_reach_everything(traces: list[Trace]) -> None:
    events = sum(map(events_of, traces), Counter[str]())
    for event in (
        "preempted", "reused", "chunk", "aborted", "error", "stop", "length", "branched",
        "ngram accepted", "suffix accepted", "draft_model accepted", "eagle accepted", "logprobs",
    ):  # fmt: skip
        assert events[event] >= 20, (event, events)
    assert events["refused"] >= 3


def plain_text(scenario: Scenario, arrival: Arrival) -> list[int]:
    """What the model alone says, a token a call, up to where the text ends."""
    engine = Recorder(scenario).target
    blocks = torch.arange(min(scenario.num_blocks, scenario.blocks_per_sequence), dtype=torch.int32)
    request = request_of(arrival, scenario.max_seq_len)
    processors = RequestProcessors()
    processors.begin(request)
    text: list[int] = []
    fed = 0
    while len(text) < arrival.max_tokens and not set(request.end_tokens).intersection(text[-1:]):
        request.tokens.extend(text[-1:])
        logits, _ = engine.forward(
            pack([RowGroup(request.tokens[fed:], fed, blocks)], engine.layout)
        )
        fed = len(request.tokens)
        plan = StepPlan((ScheduledRequest(request, fed - 1, 1, True, 0, True),))
        for change in processors.changes(plan, DraftBatch.none(1)):
            if change is not None:
                change.apply(logits)
        token = sample(
            logits,
            torch.tensor([arrival.temperature]),
            torch.tensor([max(arrival.top_k, 0)], dtype=torch.int32),
            torch.tensor([arrival.top_p]),
            torch.tensor([arrival.min_p]),
            torch.tensor([arrival.seed]),
            torch.tensor([arrival.sample_index]),
            torch.tensor([len(text)]),
        )
        text.append(int(token))
        if text[-1] < 0:
            return text[:-1]  # no usable logits
    return text


@pytest.mark.slow
def test_the_toy_model_makes_text_that_depends_on_nothing_but_the_prompt(
    traces: list[Trace],
) -> None:
    checked = 0
    for trace in traces[:60]:
        scenario = random_scenario(trace[0]["scenario"]["seed"])
        if scenario.failing_target_calls or scenario.failing_draft_calls:
            continue
        texts: dict[int, list[int]] = {}
        for line in trace[1:-1]:
            for id, tokens, reason in line.get("outputs", ()):
                texts.setdefault(id, []).extend(tokens)
                if reason is not None:
                    expected = plain_text(scenario, scenario.requests[id])
                    assert texts[id] == expected, (scenario.seed, id)
                    checked += 1
    assert checked > 100


@pytest.mark.slow
def test_both_executors_take_the_same_steps(traces: list[Trace], replay: Replay) -> None:
    done = replay(line for trace in traces for line in trace)
    assert done.returncode == 0, done.stdout + done.stderr
    steps = sum(len(trace) - 2 for trace in traces)
    assert done.stdout == f"{len(traces)} scenarios, {steps} steps, 0 different\n"


@pytest.mark.slow
def test_a_difference_is_reported_with_its_step_and_field(
    traces: list[Trace], replay: Replay
) -> None:
    trace = json.loads(json.dumps(traces[0]))
    line = next(line for line in trace if line.get("outputs", [[0, []]])[0][1])
    line["outputs"][0][1][0] += 1
    done = replay(trace)
    assert done.returncode == 1
    where = f"scenario 0, step {line['step']}: outputs: the trace has [["
    assert where in done.stdout and "0 scenarios" not in done.stdout


def _no_compaction(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ToyEngine, "compact", lambda self, src, dst: None)


def _nodes_see_all_rows(patch: pytest.MonkeyPatch) -> None:
    def pack_blind(*arguments: Any) -> RowBatch:
        packed = pack_plan(*arguments)
        masks = torch.full_like(packed.rows.tree_mask, -1)
        return packed._replace(rows=packed.rows._replace(tree_mask=masks))

    patch.setattr(step_plan, "pack_plan", pack_blind)


def text_of(request: Request) -> TokenSequence:
    """The prompt of a request, whose text may be longer by a token."""
    prompt = request.tokens[: request.num_prompt_tokens]
    limits = request.max_output_tokens + 1, request.max_draft_len
    noise = request.params, request.seed, request.sample_index
    return TokenSequence(request.id, prompt, *limits, *noise, request.end_tokens)


def _one_node_more(patch: pytest.MonkeyPatch) -> None:
    add = Scheduler.add

    def add_longer(self: Scheduler, request: Request) -> None:
        request.tokens = text_of(request)
        add(self, request)

    patch.setattr(Scheduler, "add", add_longer)


def _draft_cache_falls_behind(patch: pytest.MonkeyPatch) -> None:
    commit = ResourceManager.commit

    def commit_less(
        self: ResourceManager,
        plan: StepPlan,
        result: StepResult,
        drafts: Sequence[Sequence[int]],
    ) -> None:
        fewer = []
        for item, lengths in zip(plan.items, drafts, strict=True):
            held = [cache.committed(item.request) for cache in self.draft_caches]
            fewer.append([max(pair[0], pair[1] - 1) for pair in zip(held, lengths, strict=True)])
        commit(self, plan, result, fewer)

    patch.setattr(ResourceManager, "commit", commit_less)


def _noise_of_another_index(patch: pytest.MonkeyPatch) -> None:
    """As of a text that is longer by a token."""
    verify = sampling_rows.verify

    def verify_next(plan: StepPlan, *arguments: Any) -> StepResult:
        texts = [text_of(item.request) for item in plan.items]
        table = plan.table.clone()
        for i, (text, item) in enumerate(zip(texts, plan.items, strict=True)):
            text.extend([*item.request.output_tokens, 0])
            table[0, i] = text.address
        return verify(replace(plan, _table=table), *arguments)

    patch.setattr(sampling_rows, "verify", verify_next)


def _the_path_is_not_counted(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Penalties, "_path_counts", lambda self, tree: ([], [], []))


def _no_bad_word_is_seen_to_begin(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(BadWords, "extend", lambda self, tokens: None)


def _responses_are_not_kept(patch: pytest.MonkeyPatch) -> None:
    release = SuffixDrafter.release

    def release_all(self: SuffixDrafter, request_id: int) -> None:
        release(self, request_id)
        self.evict(request_id)

    patch.setattr(SuffixDrafter, "release", release_all)


def _any(scenario: Scenario) -> bool:
    return True


def _changes_logits(scenario: Scenario) -> bool:
    drafts = scenario.draft.kind != "none"
    return drafts and any(r.bad_words or r.frequency_penalty for r in scenario.requests)


def _keeps_responses(scenario: Scenario) -> bool:
    suffix = scenario.draft.suffix
    return suffix is not None and suffix.max_cached_requests != 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("break_it", "asks_for_it"),
    [
        (_no_compaction, _any),
        (_nodes_see_all_rows, _any),
        (_one_node_more, _any),
        (_draft_cache_falls_behind, _any),
        (_noise_of_another_index, _any),
        (_the_path_is_not_counted, _changes_logits),
        pytest.param(_no_bad_word_is_seen_to_begin, _changes_logits, marks=pytest.mark.matrix),
        pytest.param(_responses_are_not_kept, _keeps_responses, marks=pytest.mark.matrix),
    ],
)
def test_a_broken_executor_differs(
    break_it: Callable[[pytest.MonkeyPatch], None],
    asks_for_it: Callable[[Scenario], bool],
    monkeypatch: pytest.MonkeyPatch,
    replay: Replay,
) -> None:
    break_it(monkeypatch)
    lines = []
    for scenario in islice(filter(asks_for_it, map(random_scenario, count())), 40):
        try:
            lines += record(scenario)
        except AssertionError:
            continue  # its own checks notice
    done = replay(lines)
    assert done.returncode == 1, done.stdout
    assert " 0 different" not in done.stdout


def test_the_trace_for_the_cpp_tests_is_what_python_does_now() -> None:
    recorded = [json.loads(line) for line in Path(SMALL_TRACE).read_text().splitlines()]
    assert recorded == json.loads(json.dumps(small_trace())), (
        f"record it again: python -m tests.conformance.recorder, and look at the changes in "
        f"{SMALL_TRACE}"
    )
