"""Spellings, ends, reasoning before a grammar, and forms that random cases do not have."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from pydantic import BaseModel

from trtspec import LLM, GuidedDecodingParams, SamplingParams, StructuredOutputsParams
from trtspec.guided.compiler import GrammarCompiler
from trtspec.llmapi.prompts import load_tokenizer

from ..e2e.helpers import TinyModels, assert_no_leak, ngram, open_llm
from ..llmapi.conftest import TextModel, text_model

__all__ = ["text_model"]


class Person(BaseModel):
    name: str
    age: int


def text(llm: LLM, guided: Any, prompt: str = "the cat", **options: Any) -> str:
    wishes = {"max_tokens": 120, "temperature": 1.0, "seed": 1, **options}
    output = llm.generate(prompt, SamplingParams(guided_decoding=guided, **wishes))
    assert_no_leak(llm)
    return str(output.outputs[0].text)


def test_peers_spellings() -> None:
    assert StructuredOutputsParams is GuidedDecodingParams
    form = GuidedDecodingParams(regex="a+")
    for name in ("guided_decoding", "structured_outputs", "guided_decoding_params"):
        assert SamplingParams(**{name: form}).guided_decoding == form
        assert SamplingParams(**{name: {"guided_regex": "a+"}}).guided_decoding == form
    schema = GuidedDecodingParams(json=Person)
    assert schema.json is not None and set(json.loads(schema.json)["properties"]) == {"name", "age"}
    assert SamplingParams(thinking_token_budget=4).thinking_budget == 4


@pytest.mark.parametrize("spaced", [False, True])
def test_white_space_between_tokens_of_json(text_model: TextModel, spaced: bool) -> None:
    form = {"json": {"const": ["a", "b"]}, "disable_any_whitespace": not spaced}
    with text_model.open("ngram") as llm:
        found = {text(llm, form, seed=seed) for seed in range(6)}
    assert all(json.loads(each) == ["a", "b"] for each in found)
    assert (len(found) > 1) == spaced


def test_white_space_within_tags(text_model: TextModel) -> None:
    tokenizer = load_tokenizer(text_model.folder)
    compiler = GrammarCompiler(tokenizer, len(tokenizer), [0])
    structure = {"begin": "<f>", "schema": {"const": ["a", "b"]}, "end": "</f>"}

    def takes(spaces: int, **options: Any) -> bool:
        tags = {"structures": [structure], "triggers": ["<f"]}
        matcher = compiler.matcher(GuidedDecodingParams(structural_tag=tags, **options))
        ids = tokenizer.encode(f'<f>["a",{" " * spaces}"b"]</f>', add_special_tokens=False)
        return bool(matcher.try_consume_tokens(ids) == len(ids))

    assert takes(0) and takes(20) and not takes(21)
    assert takes(0, disable_any_whitespace=True) and not takes(1, disable_any_whitespace=True)
    assert takes(1, whitespace_pattern="[ ]?") and not takes(2, whitespace_pattern="[ ]?")


def test_lark_and_tags(text_model: TextModel) -> None:
    lark = 'start: WORD (" " WORD)*\\nWORD: /[a-z]{2}/'.replace("\\n", "\n")
    tags = {
        "structures": [{"begin": "<f>", "schema": {"enum": [1, 2]}, "end": "</f>"}],
        "triggers": ["<f"],
    }
    with text_model.open("ngram") as llm:
        assert re.fullmatch("[a-z]{2}( [a-z]{2})*", text(llm, {"grammar": lark}))
        # Once the trigger has come the rest of the structure must.
        begun = {"logit_bias": {str(load_tokenizer(text_model.folder).get_vocab()["<"]): 60.0}}
        found = text(llm, {"structural_tag": tags}, temperature=0.0, max_tokens=40, **begun)
    assert set(re.findall("<f>.*?</f>", found)) <= {"<f>1</f>", "<f>2</f>"}
    assert not re.search("<f(?!>[12]($|<))", found), found


def test_any_end_of_the_request_may_end_it(text_model: TextModel) -> None:
    """The grammar knows the model's end alone; a stop token is one too where the text may end."""
    stop = 40
    options = {"stop_token_ids": [stop], "logit_bias": {"0": -100.0, str(stop): 60.0}}
    with text_model.open("ngram") as llm:
        params = SamplingParams(guided_decoding={"regex": "[c-f]{3}"}, max_tokens=9, **options)
        (one,) = llm.generate("the cat", params).outputs
    assert re.fullmatch("[c-f]{3}", one.text) and one.token_ids[-1] == stop
    assert one.finish_reason == "stop" and one.stop_reason == stop


@pytest.fixture(scope="module")
def thinker(text_model: TextModel, models: TinyModels) -> Any:
    """The text model, whose last tokens are marks of reasoning."""
    folder = models.save(text_model.hf, "text-thinks")
    tokenizer = load_tokenizer(text_model.folder)
    tokenizer.add_special_tokens({"extra_special_tokens": ["<think>", "</think>"]})
    assert len(tokenizer) <= text_model.hf.config.vocab_size
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("speculation", [None, ngram(4)])
def test_reasoning_ends_in_time_and_then_the_grammar_begins(thinker: Any, speculation: Any) -> None:
    options = {"max_tokens": 40, "temperature": 1.0, "skip_special_tokens": False}
    form = {"choice": ["yes", "no"]}
    with open_llm(thinker, speculation, skip_tokenizer_init=False) as llm:
        end = llm.tokenizer.get_vocab()["</think>"]
        for budget in (0, 1, 9):
            params = [
                SamplingParams(thinking_budget=budget, guided_decoding=form, seed=seed, **options)
                for seed in range(8)
            ]
            for output in llm.generate(["the cat<think>"] * 8, params, use_tqdm=False):
                (one,) = output.outputs
                thought = one.token_ids.index(end)
                assert thought <= budget
                assert one.text.split("</think>")[1].removesuffix("<|end|>") in ("yes", "no")
        (one,) = llm.generate("the cat", params[0]).outputs
        assert one.text.removesuffix("<|end|>") in ("yes", "no"), "nothing was to be thought of"
        assert_no_leak(llm)
