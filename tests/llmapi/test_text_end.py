"""Where texts end, and log probabilities: the same with and without speculation."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from trtspec import LLM, SamplingParams
from trtspec.llmapi.outputs import CompletionOutput

from ..e2e.helpers import TinyModels, ngram, open_llm, tokens
from .conftest import TextModel

TEXT = "the cat sat"


@pytest.fixture(scope="module")
def ascii_bias(llm: LLM) -> dict[int, float]:
    """Keeps to tokens of letters, so that there are words to stop at."""
    decoded = {i: llm.tokenizer.decode([i]) for i in range(300)}
    return {i: -1000.0 for i, text in decoded.items() if not text.strip().isalpha()}


@pytest.fixture(scope="module")
def params(ascii_bias: dict[int, float]) -> SamplingParams:
    return SamplingParams(max_tokens=40, temperature=0.8, seed=3, logit_bias=ascii_bias)


def test_stop_strings(llm: LLM, any_llm: LLM, params: SamplingParams) -> None:
    full = llm.generate(TEXT, params).outputs[0]
    assert (full.finish_reason, len(full.text) > 40) == ("length", True)
    pieces = [llm.tokenizer.decode([token]) for token in full.token_ids]
    for first in (3, 9, 17, 30):
        # From inside one token to inside a later one.
        begin = len("".join(pieces[: first + 1])) - 1
        stop = full.text[begin : begin + len(pieces[first + 1]) + 2]
        at = full.text.index(stop)
        for keep in (False, True):
            asked = replace(params, stop=(stop, "never"), include_stop_str_in_output=keep)
            output = any_llm.generate(TEXT, asked).outputs[0]
            assert output.text == full.text[: at + len(stop) * keep]
            assert (output.finish_reason, output.stop_reason) == ("stop", stop)
            assert output.token_ids == full.token_ids[: len(output.token_ids)]
            last = "".join(pieces[: len(output.token_ids)])
            assert stop in last and stop not in last[: -len(pieces[len(output.token_ids) - 1])]


def test_stop_strings_and_min_tokens(any_llm: LLM, params: SamplingParams) -> None:
    full = any_llm.generate(TEXT, params).outputs[0]
    late = any_llm.generate(TEXT, replace(params, stop=full.text[0], min_tokens=10)).outputs[0]
    assert len(late.token_ids) > 10 or late.finish_reason == "length"
    assert late.token_ids == full.token_ids[: len(late.token_ids)]


def test_stop_token_ids(any_llm: LLM, params: SamplingParams) -> None:
    full = any_llm.generate(TEXT, params).outputs[0]
    stop = full.token_ids[8]
    first = full.token_ids.index(stop)
    for keep in (False, True):
        asked = replace(params, stop_token_ids=(299, stop), include_stop_str_in_output=keep)
        output = any_llm.generate(TEXT, asked).outputs[0]
        assert output.token_ids == full.token_ids[: first + 1]
        assert (output.finish_reason, output.stop_reason) == ("stop", stop)
        assert output.text == any_llm.tokenizer.decode(output.token_ids[: first + keep])


def test_end_token_and_ignoring_it(any_llm: LLM) -> None:
    params = SamplingParams(max_tokens=30, temperature=0.8, seed=1, logit_bias={0: 3.0})
    ended = any_llm.generate(TEXT, params).outputs[0]
    assert ended.token_ids[-1] == 0 and 0 not in ended.token_ids[:-1]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", None)
    beyond = any_llm.generate(TEXT, replace(params, ignore_eos=True)).outputs[0]
    assert len(beyond.token_ids) == 30
    assert beyond.token_ids[: len(ended.token_ids)] == ended.token_ids
    assert beyond.text.startswith(ended.text)
    shown = replace(params, skip_special_tokens=False, include_stop_str_in_output=True)
    assert any_llm.generate(TEXT, shown).outputs[0].text == ended.text + "<|end|>"
    late = any_llm.generate(TEXT, replace(params, min_tokens=20)).outputs[0]
    assert 0 not in late.token_ids[:20]
    check_stop_strings_with(any_llm, params, ended, late)


def check_stop_strings_with(
    llm: LLM, params: SamplingParams, ended: CompletionOutput, late: CompletionOutput
) -> None:
    """A stop string may be or hold the end token, which is not shown."""
    named = replace(params, ignore_eos=True, stop="<|end|>")
    by_string = llm.generate(TEXT, named).outputs[0]
    assert (by_string.token_ids, by_string.text) == (ended.token_ids, ended.text)
    assert (by_string.finish_reason, by_string.stop_reason) == ("stop", "<|end|>")
    kept = llm.generate(TEXT, replace(named, include_stop_str_in_output=True)).outputs[0]
    assert kept.text == ended.text + "<|end|>"
    waited = llm.generate(TEXT, replace(named, min_tokens=20)).outputs[0]
    assert waited.token_ids == late.token_ids
    longer = replace(named, stop=ended.text[-2:] + "<|end|>")
    part = llm.generate(TEXT, longer).outputs[0]
    assert (part.text, part.stop_reason) == (ended.text[:-2], longer.stop[0])
    assert part.token_ids == ended.token_ids


def test_without_detokenizing(any_llm: LLM, params: SamplingParams) -> None:
    full = any_llm.generate(TEXT, params).outputs[0]
    output = any_llm.generate(TEXT, replace(params, detokenize=False)).outputs[0]
    assert (output.token_ids, output.text) == (full.token_ids, "")


def test_bad_words_of_text(any_llm: LLM, params: SamplingParams) -> None:
    full = any_llm.generate(TEXT, params).outputs[0]
    word = any_llm.tokenizer.decode(full.token_ids[5:6]).strip()
    output = any_llm.generate(TEXT, replace(params, bad_words=word)).outputs[0]
    assert output.token_ids != full.token_ids
    banned = any_llm.tokenizer(word)["input_ids"]
    assert banned[0] not in output.token_ids or len(banned) > 1


@pytest.mark.parametrize("temperature", [0.0, 0.8])
def test_logprobs(text_model: TextModel, llm: LLM, any_llm: LLM, temperature: float) -> None:
    """Those of the raw model, whatever the sampling options do, bit for bit without speculation."""
    more: dict[str, Any] = {"repetition_penalty": 1.2, "top_k": 50, "logit_bias": {5: 2.0}}
    params = SamplingParams(max_tokens=24, temperature=temperature, seed=2, logprobs=3, **more)
    prompt = llm.tokenizer(TEXT)["input_ids"]
    output = any_llm.generate(prompt, params).outputs[0]
    assert output.logprobs == llm.generate(prompt, params).outputs[0].logprobs
    assert output.logprobs is not None and len(output.logprobs) == len(output.token_ids)
    with torch.no_grad():
        logits = text_model.hf(torch.tensor([prompt + output.token_ids])).logits[0]
    expected = torch.log_softmax(logits[len(prompt) - 1 : -1], dim=-1)
    for entry, token, row in zip(output.logprobs, output.token_ids, expected, strict=True):
        assert entry.token == token
        assert entry.logprob == pytest.approx(float(row[token]), abs=1e-4)
        best = row.topk(3)
        assert list(entry.top) == best.indices.tolist()
        assert list(entry.top.values()) == pytest.approx(best.values.tolist(), abs=1e-4)
    assert output.cumulative_logprob == sum(entry.logprob for entry in output.logprobs)
    none = any_llm.generate(prompt, replace(params, logprobs=0)).outputs[0]
    assert [entry.logprob for entry in none.logprobs] == [e.logprob for e in output.logprobs]
    assert not any(entry.top for entry in none.logprobs)
    assert any_llm.generate(prompt, replace(params, logprobs=None)).outputs[0].logprobs is None


def test_an_end_outside_the_vocabulary(models: TinyModels, tmp_path: Path) -> None:
    """Whether config.json says it or its family's default is meant."""
    folder = tmp_path / "model"
    shutil.copytree(models.folder("llama"), folder)
    (folder / "generation_config.json").unlink()  # which would say it first
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": [999]}))
    with open_llm(folder, ngram(3)) as llm:
        (output,) = llm.generate([[5, 6, 7] * 3], SamplingParams(max_tokens=6, min_tokens=4))
    assert len(tokens([output])[0]) == 6
