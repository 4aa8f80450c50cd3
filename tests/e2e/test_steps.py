"""The shape of a step (engine calls), a draft that equals its target, and the figures reported."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import pytest

from trtspec import LLM, SamplingParams
from trtspec.executor.metrics import SpeculativeMetrics

from .. import inside
from .helpers import (
    PARAMS_40,
    TinyModels,
    assert_no_leak,
    chain,
    ngram,
    open_llm,
    random_prompt,
    tokens,
    tree,
    watch,
)
from .tiny_tokenizer import save_words

PROMPTS = [random_prompt(40, 30), random_prompt(41, 7) * 3, [12], random_prompt(42, 18)]
SAMPLED = [SamplingParams(max_tokens=40, temperature=0.8, seed=seed) for seed in range(4)]
REQUIRED = {
    "acceptance_length", "acceptance_rate", "num_steps", "num_draft_tokens", "num_accepted_tokens",
    "num_accepted_tokens_per_pos", "num_engine_calls",
}  # fmt: skip


@pytest.mark.parametrize("length", [1, 2, 4, 8])
@pytest.mark.parametrize("topk", [1, 3])
@pytest.mark.parametrize("by_pass", [True, False])
def test_engine_calls_of_a_step(
    models: TinyModels, monkeypatch: pytest.MonkeyPatch, length: int, topk: int, by_pass: bool
) -> None:
    """One verification, and one rollout, or its passes, whatever the batch."""
    if not by_pass:
        inside.draft_in_one_call(monkeypatch)
    most = length if by_pass else 1
    config = tree(models.draft("llama"), topk, length, topk * length + 1)
    with open_llm(models.folder("llama"), config) as llm:
        steps = watch(llm)
        llm.generate(PROMPTS, PARAMS_40, use_tqdm=False)
    pure = [step for step in steps if step.only_generates]
    assert len(pure) >= 40 // (length + 1) - 1
    for step in pure:
        drafts = any(item.max_nodes for item in step.items)
        assert step.target_calls == 1
        assert 1 <= step.draft_calls <= most if drafts else step.draft_calls == 0
    assert max(step.draft_calls for step in pure) == most
    # Only a step in which every request may emit one token more has no use for drafts.
    assert sum(step.draft_calls == 0 for step in pure) <= len(PROMPTS)
    # A step that feeds a prompt feeds it to both models.
    mixed = [step for step in steps if not step.only_generates]
    assert mixed
    assert all(step.target_calls == 1 and 1 <= step.draft_calls <= most + 1 for step in mixed)


@pytest.mark.parametrize("config", [None, ngram(4)], ids=["none", "ngram"])
def test_one_engine_call_a_step(models: TinyModels, config: Any) -> None:
    with open_llm(models.folder("llama"), config, max_num_tokens=40) as llm:
        llm.generate(PROMPTS, PARAMS_40, use_tqdm=False)
        metrics = llm.get_metrics()
    assert metrics["num_engine_calls"] == metrics["num_target_calls"] == metrics["num_engine_steps"]
    assert metrics["num_draft_calls"] == 0


@pytest.mark.parametrize("params", [[PARAMS_40] * 4, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("length", [1, 2, 3, 4])
def test_a_draft_that_is_the_target(models: TinyModels, length: int, params: Any) -> None:
    """Every drafted token is accepted: by both rollouts and noise, at every depth."""
    with open_llm(models.folder("qwen3"), chain(models.folder("qwen3"), length)) as llm:
        for _ in range(2):  # the second time over cached prefixes
            llm.generate(PROMPTS, params, use_tqdm=False)
        metrics = llm.get_metrics()
        assert metrics["acceptance_rate"] == 1.0
        assert metrics["num_accepted_tokens"] == metrics["num_draft_tokens"] > 140
        # Only the last step of a text is shorter.
        assert sum(metrics["histogram"][:-1]) <= 2 * len(PROMPTS)
        assert len(metrics["histogram"]) == length + 1


@pytest.mark.parametrize("reuse", [True, False])
def test_a_draft_that_is_the_target_under_preemption(models: TinyModels, reuse: bool) -> None:
    kv = {"max_tokens": 140, "enable_block_reuse": reuse}
    config = chain(models.folder("llama"), 3)
    options = {"kv_cache_config": kv, "tokens_per_block": 4, "max_num_tokens": 40}
    with open_llm(models.folder("llama"), config, **options) as llm:
        steps = watch(llm)
        for params in ([PARAMS_40] * 4, SAMPLED):
            llm.generate(PROMPTS, params, use_tqdm=False)
        assert sum(step.num_preempted for step in steps) > 0
        starts = [i.start for s in steps for i in s.items if i.start and not i.is_generation]
        assert starts, "no prefix was found again and no prompt was cut"
        assert llm.get_metrics()["acceptance_rate"] == 1.0
        assert_no_leak(llm)


def check_definitions(metrics: dict[str, Any]) -> None:
    """The glossary's definitions, from the histogram of accepted drafts per step."""
    histogram = metrics["histogram"]
    steps = sum(histogram)
    accepted = sum(n * count for n, count in enumerate(histogram))
    assert metrics["num_steps"] == steps
    assert metrics["num_accepted_tokens"] == accepted
    assert metrics["num_emitted_tokens"] == accepted + steps
    assert metrics["acceptance_length"] == (accepted + steps) / steps
    assert metrics["acceptance_rate"] == accepted / metrics["num_draft_tokens"]
    per_position = metrics["num_accepted_tokens_per_pos"]
    assert sum(per_position) == accepted
    assert per_position == sorted(per_position, reverse=True)
    assert per_position == [sum(histogram[i + 1 :]) for i in range(len(per_position))]


@pytest.mark.parametrize("method", ["ngram", "chain", "tree"])
def test_figures_add_up(models: TinyModels, method: str) -> None:
    draft = models.draft("llama")
    config = {"ngram": ngram(5), "chain": chain(draft, 4), "tree": tree(draft, 3, 3, 9)}[method]
    with open_llm(models.folder("llama"), config) as llm:
        outputs = llm.generate(PROMPTS, PARAMS_40, use_tqdm=False)
        sampled = SamplingParams(max_tokens=20, temperature=0.8, seed=1, n=2)
        outputs += llm.generate([random_prompt(43, 8)], sampled, use_tqdm=False)
        metrics = llm.get_metrics()
    assert metrics.keys() >= REQUIRED
    check_definitions(metrics)
    total = SpeculativeMetrics.merged(output.metrics for output in outputs)
    for name, value in total.to_dict().items():
        assert metrics[name] == value, name
    for output in outputs:
        check_definitions(output.metrics.to_dict())
        for completion in output.outputs:
            # A prompt of one token has no prefill: all its text comes from verify steps.
            sampled_by_prefill = len(output.prompt_token_ids) > 1
            emitted = completion.metrics.num_emitted_tokens
            assert emitted == len(completion.token_ids) - sampled_by_prefill
    width = {"ngram": 5, "chain": 4, "tree": 3}[method]
    assert len(metrics["num_accepted_tokens_per_pos"]) == width
    assert metrics["num_engine_calls"] == metrics["num_target_calls"] + metrics["num_draft_calls"]
    for part in ("step_ms", "target_ms", "host_ms"):
        assert metrics[part] > 0
    assert (metrics["draft_ms"] > 0) == (method != "ngram")


def test_figures_without_speculation(models: TinyModels) -> None:
    with open_llm(models.folder("llama")) as llm:
        assert llm.get_metrics()["acceptance_length"] == 0.0
        llm.generate(PROMPTS, PARAMS_40, use_tqdm=False)
        metrics = llm.get_metrics()
    assert (metrics["acceptance_length"], metrics["acceptance_rate"]) == (1.0, 0.0)
    assert metrics["num_draft_tokens"] == metrics["num_accepted_tokens"] == 0
    assert metrics["num_accepted_tokens_per_pos"] == []


def drafted(llm: LLM, prompt: list[int], params: SamplingParams) -> tuple[int, int]:
    output = llm.generate(prompt, params).outputs[0]
    return len(output.token_ids), output.metrics.num_draft_tokens


def test_nothing_is_drafted_beyond_the_text(models: TinyModels) -> None:
    """With a draft that is always right, drafts end where max_tokens and the end token do."""
    with open_llm(models.folder("llama"), chain(models.folder("llama"), 8)) as llm:
        prompt = PROMPTS[0]
        text = llm.generate(prompt, SAMPLED[0]).outputs[0].token_ids
        for limit in (1, 2, 3, 9, 11):
            # The prefill emits one token, then each step its drafts and one more.
            length, drafts = drafted(llm, prompt, replace(SAMPLED[0], max_tokens=limit))
            steps = -(-(limit - 1) // 9)
            assert (length, drafts) == (limit, limit - 1 - steps)
        end = max(i for i in range(9) if text[i] not in text[:i])
        assert end > 4
        params = replace(SAMPLED[0], stop_token_ids=(text[end],))
        # Token 0 from the prefill, the end token as the bonus of the first step.
        assert drafted(llm, prompt, params) == (end + 1, end - 1)


def test_no_tree_is_deeper_than_the_text(models: TinyModels) -> None:
    """A wide tree keeps its width where few tokens are left, and loses its depth."""
    with open_llm(models.folder("llama"), tree(models.folder("llama"), 2, 4, 12)) as llm:
        for limit, depth, nodes in ((2, 0, 0), (3, 1, 2), (4, 2, 6)):
            metrics = llm.generate(PROMPTS[0], replace(SAMPLED[0], max_tokens=limit)).metrics
            assert len(metrics.num_accepted_tokens_per_pos) == depth
            assert nodes == 0 or 2 <= metrics.num_draft_tokens <= nodes


def test_a_draft_with_a_smaller_padded_vocabulary(models: TinyModels) -> None:
    """Ids that only the target's embedding has are no business of the draft, and no failure."""
    prompts = [[*random_prompt(44, 10, 190), 200, 201, 5], [202], random_prompt(45, 9)]
    hf = copy.deepcopy(models.hf("llama"))
    target = models.save(hf, "wide")
    hf.resize_token_embeddings(192)
    draft = models.save(hf, "narrow")
    for folder in (target, draft):
        save_words(folder, [f"w{i}" for i in range(190)])
    with open_llm(target) as llm:
        expected = tokens(llm.generate(prompts, PARAMS_40, use_tqdm=False))
    with open_llm(target, chain(draft, 3)) as llm:
        assert llm.config.drafts[0].network.vocab_size == 192
        assert tokens(llm.generate(prompts, PARAMS_40, use_tqdm=False)) == expected
        assert llm.get_metrics()["num_accepted_tokens"] > 0
