"""Requests with adapters: their text is that of the model into which the adapter was merged, token
for token in float32, alone and in batches of several adapters and none, and no draft changes it."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, LoRARequest, SamplingParams
from trtspec.builder.adapters import load_adapter
from trtspec.errors import CheckpointError
from trtspec.executor.engines.adapter_pool import AdapterPool
from trtspec.executor.schedule.adapter_scheduler import AdapterScheduler
from trtspec.executor.step.request import Request
from trtspec.llmapi import lora
from trtspec.models.adapters import Adapter

from .adapter_files import TinyAdapter
from .families import VOCAB, family_model
from .helpers import (
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

ATTENTION = ("q_proj", "k_proj", "v_proj", "qkv_proj", "o_proj")
FEED_FORWARD = ("gate_proj", "up_proj", "gate_up_proj", "down_proj", "mlp.c_fc", "mlp.c_proj")
ADAPTERS = {
    "a": TinyAdapter(1, 3, (*ATTENTION, *FEED_FORWARD)),
    "b": TinyAdapter(2, 20, ("q_proj", "v_proj", "qkv_proj", "down_proj", "c_proj"), rslora=True),
    "c": TinyAdapter(3, 8, FEED_FORWARD),
    "d": TinyAdapter(4, 16, ATTENTION),
}
ROOM = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 24}
PROMPTS = [random_prompt(1, 30, VOCAB), random_prompt(2, 6, VOCAB) * 4, random_prompt(3, 33, VOCAB)]
GREEDY = SamplingParams(max_tokens=16)
SAMPLED = replace(GREEDY, temperature=0.8, seed=5)
RUNS = (GREEDY, SAMPLED)
TIGHT: dict[str, Any] = {
    "max_num_tokens": 16,
    "tokens_per_block": 4,
    "kv_cache_config": {"max_tokens": 84},
}
CASES = ("llama_linear_biases", "qwen2_tied", "phi3", "starcoder2", "gemma3", "cohere", "granite")


class AdaptedModels(TinyModels):
    """Those, and random adapters of theirs."""

    def __init__(self, root: Path) -> None:
        super().__init__(root)
        tiny = self.hf
        self.hf = cache(
            lambda case: tiny(case) if "_" in case or case == "qwen2_tied" else family_model(case)
        )
        self.adapter = cache(self._adapter)
        self.merged = cache(self._merged)

    def _adapter(self, case: str, name: str) -> Path:
        return ADAPTERS[name].save(self.hf(case), self.root / f"{case}-{name}")

    def _merged(self, case: str, name: str) -> Path:
        return self.save(ADAPTERS[name].merged(self.hf(case)), f"{case}-{name}-merged")

    def request(self, case: str, name: str | None) -> LoRARequest | None:
        return None if name is None else LoRARequest(name, 1, str(self.adapter(case, name)))


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> AdaptedModels:
    return AdaptedModels(tmp_path_factory.mktemp("adapters"))


def pool_of(llm: LLM) -> AdapterPool:
    scheduler = llm._executor._scheduler
    assert isinstance(scheduler, AdapterScheduler)
    return scheduler._pool


def assert_unused(llm: LLM) -> None:
    assert_no_leak(llm)
    pool_of(llm).check_invariants()
    assert pool_of(llm).in_use == 0


@cache
def both_texts(models: AdaptedModels, case: str, name: str | None) -> list[list[list[int]]]:
    """Those of the merged model, greedy and sampled."""
    folder = models.folder(case) if name is None else models.merged(case, name)
    with open_llm(folder) as llm:
        return [tokens(llm.generate(PROMPTS, params, use_tqdm=False)) for params in RUNS]


def expected(
    models: AdaptedModels, case: str, name: str | None, params: SamplingParams
) -> list[list[int]]:
    return both_texts(models, case, name)[RUNS.index(params)]


MIX = ("a", None, "b", "a", "b", None, None, "a", "b")
"""Of each prompt three times."""


def mixed(models: AdaptedModels, case: str, llm: LLM, params: SamplingParams) -> list[list[int]]:
    requests = [models.request(case, name) for name in MIX]
    prompts = [prompt for prompt in PROMPTS for _ in range(3)]
    return tokens(llm.generate(prompts, params, use_tqdm=False, lora_request=requests))


def expected_mix(models: AdaptedModels, case: str, params: SamplingParams) -> list[list[int]]:
    return [expected(models, case, name, params)[i // 3] for i, name in enumerate(MIX)]


@pytest.mark.parametrize("case", CASES)
def test_text_is_that_of_the_merged_model(models: AdaptedModels, case: str) -> None:
    """In a batch of two adapters and none, in chunks, with preemption, and on kept prefixes; greedy
    text alone is transformers' too."""
    with open_llm(models.folder(case), **ROOM, **TIGHT) as llm:
        steps = watch(llm)
        for params in (GREEDY, SAMPLED, GREEDY):
            assert mixed(models, case, llm, params) == expected_mix(models, case, params)
        # Where all layers have a window, too few blocks are needed for that.
        assert sum(step.num_preempted for step in steps) or case in ("phi3", "starcoder2")
        assert_unused(llm)
    merged = models.root / f"{case}-a-merged"
    assert merged.is_dir()
    ours = expected(models, case, "a", GREEDY)[0]
    assert ours != expected(models, case, None, GREEDY)[0]
    theirs = TinyModels(models.root)
    theirs.hf = lambda _: ADAPTERS["a"].merged(models.hf(case))  # type: ignore[assignment,return-value]
    assert theirs.greedy(case, PROMPTS[0], 16) == ours


@pytest.mark.parametrize("draft", ["ngram", "tree"])
@pytest.mark.parametrize("case", ["qwen2_tied", "phi3"])
def test_no_draft_changes_it(models: AdaptedModels, case: str, draft: str) -> None:
    """Drafts are those of the base; what of them is accepted is told for each adapter."""
    config = ngram(5) if draft == "ngram" else tree(models.draft(case), 2, 3, 7)
    with open_llm(models.folder(case), config, **ROOM, **TIGHT) as llm:
        for params in RUNS:
            assert mixed(models, case, llm, params) == expected_mix(models, case, params)
        figures = llm.get_metrics()
        of = figures["adapters"]
        assert set(of) == {"a", "b"} and all(each["num_draft_tokens"] for each in of.values())
        assert sum(each["num_steps"] for each in of.values()) < figures["num_steps"]
        assert_unused(llm)


def test_a_draft_model_has_its_own_adapter(models: AdaptedModels) -> None:
    """Merged into the base that drafts for itself, its drafts are right for requests with the same
    one, and seldom for others."""
    case = "qwen2_tied"
    config = {**chain(models.folder(case), 4), "adapter": str(models.adapter(case, "a"))}
    with open_llm(models.folder(case), config, **ROOM) as llm:
        assert mixed(models, case, llm, GREEDY) == expected_mix(models, case, GREEDY)
        figures = llm.get_metrics()["adapters"]
        assert figures["a"]["acceptance_rate"] == 1 > figures["b"]["acceptance_rate"] + 0.5
        assert_unused(llm)
    wrong = {**config, "adapter": str(models.root)}
    with pytest.raises(CheckpointError, match=r"has no adapter_config\.json"):
        open_llm(models.folder(case), wrong, **ROOM)


def test_a_kept_prefix_is_of_one_adapter(models: AdaptedModels) -> None:
    case, found = "qwen2_tied", []
    with open_llm(models.folder(case), **ROOM, tokens_per_block=4) as llm:
        for name in ("a", "b", None, "a", "b", None):
            given = models.request(case, name)
            output = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False, lora_request=given)
            found.append(output.outputs[0].num_cached_tokens)
            assert output.outputs[0].token_ids == expected(models, case, name, GREEDY)[0]
        # Loaded again it is another one, whatever its name: its files may be.
        llm.adapters.unload("a")
        given = models.request(case, "a")
        output = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False, lora_request=given)
        found.append(output.outputs[0].num_cached_tokens)
    assert found == [0, 0, 0, 28, 28, 28, 0]


def test_log_probabilities_of_prompts(models: AdaptedModels) -> None:
    """Those of the merged model, also where the prompt was read before, and with preemption."""
    case, params = "qwen2_tied", replace(GREEDY, prompt_logprobs=1)
    names = ("a", "b", None)
    expected = []
    for name in names:
        folder = models.folder(case) if name is None else models.merged(case, name)
        with open_llm(folder) as llm:
            expected.append(llm.generate(PROMPTS[0], params, use_tqdm=False).prompt_logprobs)
    with open_llm(models.folder(case), ngram(3), **ROOM, **TIGHT) as llm:
        given = [models.request(case, name) for name in names]
        for _ in range(2):
            llm.generate([PROMPTS[0]] * 3, GREEDY, use_tqdm=False, lora_request=given)
            outputs = llm.generate([PROMPTS[0]] * 3, params, use_tqdm=False, lora_request=given)
            for output, wanted in zip(outputs, expected, strict=True):
                found = output.prompt_logprobs
                assert found[0] is wanted[0] is None
                for ours, theirs in zip(found[1:], wanted[1:], strict=True):
                    assert ours.token == theirs.token
                    assert ours.top == pytest.approx(theirs.top, abs=1e-4)
        assert_unused(llm)


def test_more_adapters_than_places(models: AdaptedModels) -> None:
    """They take turns in a batch that has room for two of them; requests without one do not wait
    for any."""
    case, names = "qwen2_tied", ["a", "b", "c", "d", None, "c", "a", "d"]
    with open_llm(models.folder(case), **ROOM) as llm:
        given = [models.request(case, name) for name in names]
        outputs = llm.generate([PROMPTS[0]] * 8, GREEDY, use_tqdm=False, lora_request=given)
        assert tokens(outputs) == [expected(models, case, n, GREEDY)[0] for n in names]
        assert pool_of(llm).num_placed == 6  # c and d again for their second ones
        assert_unused(llm)


def test_a_policy_orders_those_that_have_places(models: AdaptedModels) -> None:
    """It is never asked to put fewer than two in order, however many wait for a place."""
    case = "qwen2_tied"

    def last_first(waiting: Sequence[Request]) -> Sequence[Request]:
        assert len(waiting) > 1
        return waiting[::-1]

    room = {**ROOM, "max_loras": 1, "scheduling_policy": last_first}
    with open_llm(models.folder(case), **room) as llm:
        given = [models.request(case, name) for name in ("a", "b", "c", "b")]
        outputs = llm.generate([PROMPTS[0]] * 4, GREEDY, use_tqdm=False, lora_request=given)
        assert tokens(outputs) == [expected(models, case, n, GREEDY)[0] for n in ("a", *"bcb")]
        assert_unused(llm)


def test_one_that_waits_for_a_place_can_be_aborted(models: AdaptedModels) -> None:
    case = "qwen2_tied"
    with open_llm(models.folder(case), **{**ROOM, "max_loras": 1}) as llm:
        long = replace(GREEDY, max_tokens=64)
        runs = llm.generate_async(PROMPTS[0], long, lora_request=models.request(case, "a"))
        waits = llm.generate_async(PROMPTS[0], long, lora_request=models.request(case, "b"))
        waits.abort()
        assert waits.wait().outputs[0].finish_reason == "abort"
        assert runs.result().outputs[0].finish_reason == "length"
        assert_unused(llm)


def test_a_hundred_loads_and_unloads(models: AdaptedModels) -> None:
    """In random order with requests between, which run on while their adapter is unloaded."""
    case, chance = "qwen2_tied", random.Random(7)
    short = replace(GREEDY, max_tokens=6)
    with open_llm(models.folder(case), ngram(3), **ROOM) as llm:
        running: list[tuple[Any, str | None]] = []
        for _ in range(100):
            name = chance.choice([*ADAPTERS, None])
            match chance.randrange(3):
                case 0 if name in llm.adapters.paths:
                    llm.adapters.unload(name)
                case 1 if name is not None:
                    llm.adapters.load(name, models.adapter(case, name))
                case _:
                    given = models.request(case, name)
                    running.append(
                        (llm.generate_async(PROMPTS[0], short, lora_request=given), name)
                    )
            if len(running) > 4:
                handle, name = running.pop(0)
                assert tokens([handle.result()])[0] == expected(models, case, name, GREEDY)[0][:6]
        for handle, name in running:
            assert tokens([handle.result()])[0] == expected(models, case, name, GREEDY)[0][:6]
        assert_unused(llm)


def test_nobody_waits_for_a_file(models: AdaptedModels, monkeypatch: pytest.MonkeyPatch) -> None:
    """While one adapter is read, others are looked up and unloaded; two threads that ask for one
    get the same."""
    case = "qwen2_tied"

    def slow(*given: Any) -> Adapter:
        """Reads it while another thread does all the rest."""
        reads.append(given[0])
        if len(reads) == 1:
            assert other.submit(lambda: llm.adapters.paths).result(20).keys() == {"b"}
            other.submit(llm.adapters.unload, "b").result(20)
            faster = other.submit(llm.adapters.load, "a", models.adapter(case, "a"))
            found.append(faster.result(20))
        return load_adapter(*given)

    with ThreadPoolExecutor(1) as other, open_llm(models.folder(case), **ROOM) as llm:
        llm.adapters.load("b", models.adapter(case, "b"))
        reads: list[str] = []
        found: list[Adapter] = []
        monkeypatch.setattr(lora, "load_adapter", slow)
        assert llm.adapters.load("a", models.adapter(case, "a")) is found[0]
        assert reads == ["a", "a"] and llm.adapters.paths.keys() == {"a"}


@pytest.mark.matrix
def test_compiled(models: AdaptedModels) -> None:
    """One package for all adapters, in steps that are padded too."""
    case = "qwen2_tied"
    options = {**ROOM, "backend": "aoti", "cuda_graph_config": True}
    with open_llm(models.folder(case), ngram(4), **options) as llm:
        for params in RUNS:
            assert mixed(models, case, llm, params) == expected_mix(models, case, params)
        assert_unused(llm)


def test_text_is_peft_s(models: AdaptedModels, tmp_path: Path) -> None:
    """An adapter that PEFT made and saved, with a pattern and ranks and scales of its own."""
    peft = pytest.importorskip("peft")
    import copy

    import torch

    case = "qwen2_tied"
    config = peft.LoraConfig(
        r=5,
        lora_alpha=9,
        use_rslora=True,
        target_modules=r".*\.(q_proj|v_proj|down_proj)",
        rank_pattern={"down_proj": 9},
        alpha_pattern={r"layers\.1\.self_attn\.q_proj": 3},
        init_lora_weights=False,
    )
    torch.manual_seed(0)
    adapted = peft.get_peft_model(copy.deepcopy(models.hf(case)), config)
    adapted.save_pretrained(tmp_path / "saved")
    ids = torch.tensor([PROMPTS[0]])
    theirs = adapted.generate(
        input_ids=ids, attention_mask=torch.ones_like(ids), max_new_tokens=16, do_sample=False
    )
    given = LoRARequest("saved", 1, str(tmp_path / "saved"))
    with open_llm(models.folder(case), **ROOM) as llm:
        output = llm.generate(PROMPTS[0], GREEDY, use_tqdm=False, lora_request=given)
    assert output.outputs[0].token_ids == theirs[0, len(PROMPTS[0]) :].tolist()
    assert output.outputs[0].token_ids != expected(models, case, None, GREEDY)[0]


@pytest.fixture(autouse=True, scope="module")
def forgets() -> Iterator[None]:
    yield
    both_texts.cache_clear()
