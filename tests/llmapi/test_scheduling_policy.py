"""Scheduling policies: who begins first, that texts stay the same, and what a wrong policy ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import pytest

from trtspec import LLM, RequestOutput, SamplingParams
from trtspec.errors import ConfigError, RequestError, TrtspecError
from trtspec.executor.schedule.scheduler import OrderError
from trtspec.executor.step.request import Request
from trtspec.llmapi.options import LLMConfig

from .conftest import TextModel

PROMPTS = ["the cat sat", "on", "the mat and then", "it slept"]
PARAMS = SamplingParams(max_tokens=8, temperature=0.8, seed=3, ignore_eos=True)
LONG = SamplingParams(max_tokens=150, ignore_eos=True)
ONE = {"max_batch_size": 1}


def texts(outputs: Sequence[RequestOutput]) -> list[str]:
    return [completion.text for output in outputs for completion in output.outputs]


def order_of(outputs: Sequence[RequestOutput]) -> list[tuple[int, int]]:
    """Prompt and sample of each sequence, the first to begin first."""
    begun = {(i, c.index): c.first_token_time for i, o in enumerate(outputs) for c in o.outputs}
    return sorted(begun, key=lambda place: begun[place] or 0.0)


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("method", ["none", "chain"])
def test_lower_priorities_begin_earlier(text_model: TextModel, method: str, overlaps: bool) -> None:
    """Those of equal ones in order of arrival, samples too; without any, it is "fcfs"."""
    params = [PARAMS, SamplingParams(max_tokens=8, n=2, temperature=0.8, seed=5), PARAMS, PARAMS]
    options = {**ONE, "async_scheduling": overlaps}
    with text_model.open(method, **options) as llm:
        expected = llm.generate(PROMPTS, params, use_tqdm=False)
    assert order_of(expected) == [(0, 0), (1, 0), (1, 1), (2, 0), (3, 0)]
    with text_model.open(method, scheduling_policy="priority", **options) as llm:
        outputs = llm.generate(PROMPTS, params, use_tqdm=False, priority=[7, 0, -2, 0])
        assert order_of(outputs) == [(2, 0), (1, 0), (1, 1), (3, 0), (0, 0)]
        assert texts(outputs) == texts(expected)
        for priority in (None, 5):
            outputs = llm.generate(PROMPTS, params, use_tqdm=False, priority=priority)
            assert order_of(outputs) == order_of(expected)
            assert texts(outputs) == texts(expected)


def test_a_late_request_passes_those_that_wait_but_not_one_that_runs(text_model: TextModel) -> None:
    with text_model.open(scheduling_policy="priority", **ONE) as llm:
        running = llm.generate_async(PROMPTS[0], LONG, streaming=True, priority=3)
        next(iter(running))
        waiting = llm.generate_async(PROMPTS[1], PARAMS)
        late = llm.submit(PROMPTS[2:], PARAMS, priority=[4, -1])
        assert not running.output.finished
        outputs = [handle.result(timeout=60) for handle in (running, waiting, *late)]
    assert [prompt for prompt, _ in order_of(outputs)] == [0, 3, 1, 2]


def test_conversations_have_priorities(text_model: TextModel) -> None:
    conversations = [[{"role": "user", "content": text}] for text in PROMPTS[:3]]
    with text_model.open(scheduling_policy="priority", **ONE) as llm:
        llm.tokenizer.chat_template = "{{ messages[0]['content'] }}"
        outputs = llm.chat(conversations, PARAMS, use_tqdm=False, priority=[1, 2, 0])
    assert [prompt for prompt, _ in order_of(outputs)] == [2, 0, 1]


def test_a_function_is_a_policy(text_model: TextModel) -> None:
    """It sees what callers wrote; priorities mean what it makes of them."""
    seen: list[tuple[int, int, int | None]] = []

    def highest_first(waiting: Sequence[Request]) -> list[Request]:
        seen.extend((r.priority, r.num_prompt_tokens, r.params.max_tokens) for r in waiting)
        return sorted(waiting, key=lambda request: -request.priority)

    with text_model.open(scheduling_policy=highest_first, **ONE) as llm:
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False, priority=[0, 3, 1, 2])
    assert [prompt for prompt, _ in order_of(outputs)] == [1, 3, 2, 0]
    lengths = [len(output.prompt_token_ids) for output in outputs]
    assert seen[:4] == [(p, n, 8) for p, n in zip([0, 3, 1, 2], lengths, strict=True)]


class Wrong:
    """A policy that fails on demand."""

    def __init__(self, answer: Callable[[Sequence[Request]], Any]) -> None:
        self.answer = answer
        self.fails = False

    def __call__(self, waiting: Sequence[Request]) -> Any:
        return self.answer(waiting) if self.fails else waiting


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("answer", [lambda w: 1 // 0, lambda w: w[:1], lambda w: None])
def test_a_policy_that_fails_ends_only_those_that_wait(
    text_model: TextModel, answer: Callable[[Sequence[Request]], Any], overlaps: bool
) -> None:
    """Those that run lose nothing, and the LLM serves on."""
    policy = Wrong(answer)
    options = {"max_batch_size": 2, "async_scheduling": overlaps, "scheduling_policy": policy}
    with text_model.open(**options) as llm:
        alone, short = llm.generate(PROMPTS[0], LONG), llm.generate(PROMPTS[1], PARAMS)
        policy.fails = True
        running = llm.generate_async(PROMPTS[0], LONG, streaming=True)
        next(iter(running))
        first, second = llm.generate(PROMPTS[1:3], PARAMS, use_tqdm=False)
        assert not running.output.finished
        for output in (first, second):
            assert isinstance(output.error, OrderError) and isinstance(output.error, ConfigError)
            assert "over 2 requests" in str(output.error)
            assert [c.finish_reason for c in output.outputs] == ["error"]
        with pytest.raises(OrderError):  # of a single prompt it is raised
            llm.generate(PROMPTS[3], SamplingParams(n=3))
        ended = running.result(timeout=60)
        assert texts([ended]) == texts([alone])
        assert ended.outputs[0].token_ids == alone.outputs[0].token_ids  # no step went undelivered
        load = llm.load()
        assert (load.num_running, load.num_waiting, load.num_failed_steps_in_a_row) == (0, 0, 0)
        policy.fails = False
        assert texts(llm.generate([PROMPTS[1]] * 4, PARAMS, use_tqdm=False)) == texts([short] * 4)
        assert llm.fault is None


@pytest.mark.parametrize("policy", ["lifo", "Priority", 1, ["fcfs"], True])
def test_an_unknown_policy_is_refused(policy: Any) -> None:
    with pytest.raises(ConfigError, match=r"scheduling_policy=.*'fcfs'.*'priority'.*a function"):
        LLMConfig(scheduling_policy=policy)


@pytest.mark.parametrize("policy", [None, "fcfs", sorted])
def test_a_longest_wait_is_of_priorities(policy: Any) -> None:
    with pytest.raises(ConfigError, match="has no effect without scheduling_policy='priority'"):
        LLMConfig(scheduling_policy=policy, priority_max_wait=5.0)
    assert LLMConfig(scheduling_policy="priority", priority_max_wait=5.0).priority_max_wait == 5.0


def test_none_is_first_come_first_served() -> None:
    assert LLMConfig(scheduling_policy=None).scheduling_policy == "fcfs"


@pytest.mark.parametrize(
    ("priority", "message"),
    [
        ([0, 1.0], r"priority\[1\] is float 1.0; a priority is an integer"),
        ([True, 0], r"priority\[0\] is bool True"),
        ([None, 0], r"priority\[0\] is NoneType None"),
        ("low", "priority is str 'low'"),
        ([1, 2, 3], "2 prompts came with 3 priorities; give one for all, or one for each"),
        ([], "2 prompts came with 0 priorities"),
    ],
)
def test_wrong_priorities_are_refused(text_model: TextModel, priority: Any, message: str) -> None:
    with text_model.open(scheduling_policy="priority") as llm:
        for start in (llm.generate, llm.submit):
            with pytest.raises(RequestError, match=message):
                start(PROMPTS[:2], PARAMS, priority=priority)
        assert llm.get_metrics()["num_engine_steps"] == 0


def test_a_priority_needs_a_policy(llm: LLM) -> None:
    refused = "has no effect.*'fcfs'.*set scheduling_policy='priority', or leave `priority` out"
    calls: list[Callable[[], Any]] = [
        lambda: llm.generate(PROMPTS[0], PARAMS, priority=-1),
        lambda: llm.generate(PROMPTS[:2], PARAMS, priority=[0, 1]),
        lambda: llm.generate_async(PROMPTS[0], PARAMS, priority=1),
        lambda: llm.submit(PROMPTS[:2], PARAMS, priority=1),
    ]
    for call in calls:
        with pytest.raises(TrtspecError, match=refused) as error:
            call()
        assert isinstance(error.value, RequestError)
    plain = texts(llm.generate(PROMPTS[:2], PARAMS, use_tqdm=False))
    assert texts(llm.generate(PROMPTS[:2], PARAMS, use_tqdm=False, priority=[0, 0])) == plain
