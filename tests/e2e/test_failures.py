"""What goes wrong for one request, or in one step, stays there."""

from __future__ import annotations

import copy
import operator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from trtspec import SamplingParams
from trtspec.errors import EngineError, RequestError

from .. import inside
from .helpers import (
    PARAMS_40,
    PLAIN_METHODS,
    TinyModels,
    assert_no_leak,
    chain,
    open_llm,
    plain_methods,
    tokens,
)
from .poison import GOOD, POISON, save_poisoned

BAD = [[1, 2, POISON, 3], [*GOOD[0], POISON], [POISON]]


@pytest.fixture(scope="module")
def poisoned(models: TinyModels) -> Path:
    return save_poisoned(models)


def test_the_good_texts_avoid_the_poison(models: TinyModels) -> None:
    assert all(POISON not in models.greedy("llama", prompt) for prompt in GOOD)


@pytest.mark.parametrize("method", PLAIN_METHODS)
def test_nan_logits_fail_their_request_alone(
    models: TinyModels, poisoned: Path, method: str
) -> None:
    """In the same batch, and after it in the blocks that the failed requests leave full of NaN."""
    config = plain_methods(models.draft("llama"))[method]
    expected = [models.greedy("llama", prompt) for prompt in GOOD]
    prompts = [GOOD[0], BAD[0], GOOD[1], BAD[1], GOOD[2], BAD[2]]
    kv = {"max_tokens": 320, "enable_block_reuse": False}
    with open_llm(poisoned, config, kv_cache_config=kv) as llm:
        for _ in range(2):
            outputs = llm.generate(prompts, PARAMS_40, use_tqdm=False)
            assert tokens(outputs[::2]) == expected
            for output in outputs[1::2]:
                assert isinstance(output.error, EngineError)
                assert "at output token 0" in str(output.error) and "NaN" in str(output.error)
                assert output.outputs[0].finish_reason == "error"
                assert output.outputs[0].token_ids == []
        assert tokens(llm.generate(GOOD, PARAMS_40, use_tqdm=False)) == expected
        with pytest.raises(EngineError, match="no usable logits"):
            llm.generate(BAD[0], PARAMS_40)
        assert_no_leak(llm)


def test_nan_in_mid_text(models: TinyModels, poisoned: Path) -> None:
    """The request that emits the poisoned token fails at the next one, and keeps what it had."""
    params = SamplingParams(max_tokens=10, logit_bias={POISON: 1000.0})
    with open_llm(poisoned, chain(models.draft("llama"), 4)) as llm:
        outputs = llm.generate(GOOD, [PARAMS_40, params, PARAMS_40], use_tqdm=False)
        assert "at output token 1" in str(outputs[1].error)
        assert outputs[1].outputs[0].token_ids == [POISON]
        assert tokens(outputs[::2]) == [models.greedy("llama", prompt) for prompt in GOOD[::2]]


def test_every_token_excluded(models: TinyModels) -> None:
    """Bans that leave nothing to sample are an error of that request."""
    everything = SamplingParams(max_tokens=10, bad_words=[[token] for token in range(203)])
    with open_llm(models.folder("llama")) as llm:
        outputs = llm.generate(GOOD, [PARAMS_40, everything, PARAMS_40], use_tqdm=False)
        assert isinstance(outputs[1].error, RequestError)
        assert "every token excluded" in str(outputs[1].error)
        assert tokens(outputs[::2]) == [models.greedy("llama", prompt) for prompt in GOOD[::2]]


def test_a_draft_of_nan_drafts_nothing(models: TinyModels) -> None:
    """Its weights are numbers, which is checked, but what it computes of them is none."""
    model = copy.deepcopy(models.hf("llama"))
    with torch.no_grad():
        head = model.get_output_embeddings().weight
        head.copy_(head / head.abs().max() * 3e38)
        model.model.norm.weight.fill_(1e30)
    with open_llm(models.folder("llama"), chain(models.save(model, "nan-draft"), 3)) as llm:
        outputs = llm.generate(GOOD, PARAMS_40, use_tqdm=False)
        assert tokens(outputs) == [models.greedy("llama", prompt) for prompt in GOOD]
        assert llm.get_metrics()["num_draft_tokens"] == 0


class Failing:
    """A session that fails from its nth run on, as often as told."""

    def __init__(self, session: Any, first: int, times: int) -> None:
        self.session = session
        self.range = range(first, first + times)
        self.runs = -1

    def run(self, inputs: Any) -> Any:
        self.runs += 1
        if self.runs in self.range:
            raise RuntimeError("out of luck")
        return self.session.run(inputs)


@pytest.mark.parametrize(
    ("engine", "session", "first"),
    [
        ("target", "model", 0),
        ("target", "model", 3),
        ("draft", "passes", 0),
        ("draft", "passes", 3),
        ("draft in one call", "step", 0),
        ("draft in one call", "rollout", 0),
        ("draft in one call", "rollout", 3),
    ],
)
def test_an_engine_that_raises(
    models: TinyModels, monkeypatch: pytest.MonkeyPatch, engine: str, session: str, first: int
) -> None:
    """All requests of that step end with the error; the next ones run as if nothing had been."""
    if engine == "draft in one call":
        inside.draft_in_one_call(monkeypatch)
    with open_llm(models.folder("llama"), chain(models.draft("llama"), 3)) as llm:
        owner = inside.target(llm) if engine == "target" else inside.drafts(llm)[0]
        if session == "passes":
            passes = owner._sessions.passes
            passes.session = Failing(passes.session, first, 1)
        else:
            inside.replace_session(owner, session, lambda own: Failing(own, first, 1))
        outputs = llm.generate(GOOD, PARAMS_40, use_tqdm=False)
        for output in outputs:
            assert isinstance(output.error, EngineError)
            assert "out of luck" in str(output.error)
        assert_no_leak(llm)
        expected = [models.greedy("llama", prompt) for prompt in GOOD]
        assert tokens(llm.generate(GOOD, PARAMS_40, use_tqdm=False)) == expected


@pytest.mark.parametrize("place", ["_executor._scheduler.schedule", "_worker._deliver"])
def test_a_bug_of_ours(models: TinyModels, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
    """Not even that may leave callers waiting."""
    with open_llm(models.folder("llama")) as llm:
        owner = operator.attrgetter(place.rpartition(".")[0])(llm)
        with monkeypatch.context() as patch:
            patch.setattr(owner, place.rpartition(".")[2], lambda *arguments: 1 // 0)
            for output in llm.generate(GOOD, PARAMS_40, use_tqdm=False):
                assert "executor failed" in str(output.error)
        assert tokens(llm.generate(GOOD[:1], PARAMS_40, use_tqdm=False)) == [
            models.greedy("llama", GOOD[0])
        ]
        assert_no_leak(llm)


def test_bad_prompts_in_a_batch(models: TinyModels) -> None:
    """Each names its value and its limit, and the others get their tokens."""
    bad: dict[str, Any] = {
        "empty": [],
        "203": [5, 203],
        "-1": {"prompt_token_ids": [-1]},
        "64 tokens, but max_seq_len=64": [1] * 64,
        "prompt_token_ids[1] is 2.5": [1, 2.5],
        "got NoneType": None,
        "needs a tokenizer": "text",
        "['tokens']": {"tokens": [1]},
    }
    prompts = [GOOD[0], *bad.values(), GOOD[1]]
    params = SamplingParams(max_tokens=20)
    with open_llm(models.folder("llama"), chain(models.draft("llama"), 3), max_seq_len=64) as llm:
        outputs = llm.generate(prompts, params, use_tqdm=False)
        good = tokens([outputs[0], outputs[-1]])
        assert good == [models.greedy("llama", prompt)[:20] for prompt in GOOD[:2]]
        for words, output, prompt in zip(bad, outputs[1:-1], bad.values(), strict=True):
            assert isinstance(output.error, RequestError)
            assert words in str(output.error)
            assert (output.finished, output.outputs[0].finish_reason) == (True, "error")
            if prompt != []:  # an empty list by itself is no prompts at all
                with pytest.raises(RequestError) as error:
                    llm.generate(prompt, params)
                assert words in str(error.value)
            with pytest.raises(RequestError) as error:
                llm.generate_async(prompt, params)
            assert words in str(error.value)
        assert llm.generate([]) == []
        # The vocabulary of the range: both ends are valid.
        assert len(llm.generate([[0], [202]], params, use_tqdm=False)) == 2


def test_options_outside_the_vocabulary_in_a_batch(models: TinyModels) -> None:
    bad = [
        SamplingParams(logit_bias={203: 1.0}),
        SamplingParams(stop_token_ids=[500]),
        SamplingParams(bad_words=[[1, 203]]),
        SamplingParams(stop="x"),
        SamplingParams(bad_words=["x"]),
    ]
    with open_llm(models.folder("llama")) as llm:
        outputs = llm.generate([GOOD[1]] * 6, [PARAMS_40, *bad], use_tqdm=False)
        assert tokens(outputs[:1]) == [models.greedy("llama", GOOD[1])]
        for output, words in zip(
            outputs[1:],
            ("203 ids", "token id 500", "token id 203", "tokenizer", "tokenizer"),
            strict=True,
        ):
            assert isinstance(output.error, RequestError)
            assert words in str(output.error)


def test_more_logprobs_than_tokens(models: TinyModels) -> None:
    """A vocabulary smaller than what `logprobs` asks for is no reason to fail a batch."""
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    heads = {"num_attention_heads": 2, "max_position_embeddings": 64, "initializer_range": 0.5}
    folder = models.save(LlamaForCausalLM(LlamaConfig(vocab_size=16, **sizes, **heads)), "sixteen")
    params = SamplingParams(max_tokens=3, logprobs=20, ignore_eos=True)
    with open_llm(folder) as llm:
        output = llm.generate([1, 2], params).outputs[0]
    assert [len(entry.top) for entry in output.logprobs] == [16] * 3


def test_larger_than_the_cache(models: TinyModels) -> None:
    """A request that could never run is refused; one that fits runs."""
    with open_llm(models.folder("llama"), kv_cache_config={"max_tokens": 48}) as llm:
        outputs = llm.generate([GOOD[0], GOOD[1]], PARAMS_40, use_tqdm=False)
        prompt = len(GOOD[0])
        words = rf"{prompt} prompt tokens \+ 40 output tokens .* = {prompt + 40} tokens.* holds 48"
        with pytest.raises(RequestError, match=words):
            tokens(outputs[:1])
        assert tokens(outputs[1:]) == [models.greedy("llama", GOOD[1])]
    with pytest.raises(EngineError, match=r"would hold 15 tokens, less than one block of 16"):
        open_llm(models.folder("llama"), kv_cache_config={"max_tokens": 15})
