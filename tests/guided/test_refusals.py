"""Grammars that are none, or too much, fail their request alone, and say why."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Event
from typing import Any

import pytest

from trtspec import GuidedDecodingParams, SamplingParams
from trtspec.config.guided_decoding import MAX_GRAMMAR_CHARS, MAX_SCHEMA_NESTING
from trtspec.errors import RequestError
from trtspec.guided import compiler
from trtspec.guided.grammar import grammar_of
from trtspec.llmapi.prompts import load_tokenizer

from ..llmapi.conftest import TextModel, text_model

__all__ = ["text_model"]


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "null"}
    for _ in range(depth // 2):  # two brackets a level
        schema = {"type": "array", "items": schema, "maxItems": 1, "x": [1]}
    return schema


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, "exactly one of"),
        ({"regex": "a", "choice": ["b"]}, "regex and choice"),
        ({"json": "{"}, "is no JSON"),
        ({"json": "3"}, "must be a JSON object"),
        ({"json": 3}, "must be a mapping"),
        ({"json": {"enum": ["x" * MAX_GRAMMAR_CHARS]}}, f"at most {MAX_GRAMMAR_CHARS}"),
        ({"json": '"' + '\\"' * 100_000}, "is no JSON"),  # in linear time
        ({"json": "[" * 10_000}, f"at most {MAX_SCHEMA_NESTING}"),
        ({"json": {"a": nested(400)}}, f"at most {MAX_SCHEMA_NESTING}"),
        ({"choice": []}, "is empty"),
        ({"regex": ""}, "is empty"),
        ({"backend": "xgrammar", "regex": "a"}, "llguidance"),
        ({"regexp": "a"}, "did you mean `regex`"),
    ],
)
def test_options(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        GuidedDecodingParams(**options)


@pytest.mark.parametrize("option", [{"ignore_eos": True}, {"min_tokens": 3}])
def test_what_contradicts_an_end_is_refused(option: dict[str, Any]) -> None:
    with pytest.raises(RequestError, match="says itself where the text may end"):
        SamplingParams(guided_decoding={"regex": "a"}, **option)


def _object(name: str) -> dict[str, Any]:
    return {"type": "object", "properties": {name: {"type": "string"}}}


BAD: list[dict[str, Any]] = [
    {"json": {"type": "objekt"}},
    {"json": {"type": "object", "unevaluatedProperties": False}},
    {"json": {"$ref": "#/$defs/nowhere"}},
    {"json": {"type": "integer", "minimum": 5, "maximum": 3}},
    {"json": {"type": "string", "pattern": "(?=look)x"}},
    {"json": {"const": "\ud800"}},
    {"json": '{"const": "\\ud800"}'},
    {"choice": ["\ud800"]},
    {"regex": "(a"},
    {"regex": "(?<=a)b"},
    {"json": {"allOf": [{"anyOf": [_object(f"{i}{j}") for j in range(6)]} for i in range(8)]}},
    {"grammar": "root ::= undefined"},
    {"grammar": "start: )"},
    {"grammar": "root ::= r\n" + 'r ::= "a"\n' * 1000},
    {"structural_tag": {"structures": [{"begin": "<a>", "schema": {}, "end": ""}]}},
    {"structural_tag": {"structures": [{"schema": {}}], "triggers": ["<"]}},
    {"structural_tag": {"structures": [{"begin": "<a>", "schema": 3}], "triggers": ["<"]}},
    {"structural_tag": {"structures": [{"begin": "<a>", "end": None}], "triggers": ["<"]}},
    {"structural_tag": {"structures": [{"begin": "<a>", "schema": {}}], "triggers": ["b"]}},
    {"structural_tag": {"type": "structural_tag", "format": {"type": "star"}}},
    {"structural_tag": {"type": "structural_tag", "format": {"type": "sequence", "elements": []}}},
    {"structural_tag": {"type": "structural_tag", "format": {"type": "const_string"}}},
    {"structural_tag": {"type": "structural_tag"}},
]


def test_a_bad_grammar_fails_its_request_alone(text_model: TextModel) -> None:
    wishes = [SamplingParams(max_tokens=4)]
    wishes += [SamplingParams(max_tokens=4, guided_decoding=bad) for bad in BAD]
    with text_model.open("ngram") as llm:
        fine, *refused = llm.generate(["the cat"] * len(wishes), wishes, use_tqdm=False)
        expected = llm.generate("the cat", wishes[0])
    assert fine.outputs[0].token_ids == expected.outputs[0].token_ids
    for bad, output in zip(BAD, refused, strict=True):
        assert isinstance(output.error, RequestError), (bad, output.outputs[0].text)


def test_a_grammar_that_blows_up_ends_its_text_alone(text_model: TextModel) -> None:
    """It is compiled as the text needs it; a budget of work ends it, on every machine alike."""
    blows_up = {"regex": "((a{1,100}){1,100}){1,100}"}
    wishes = [SamplingParams(max_tokens=40, guided_decoding=blows_up), SamplingParams(max_tokens=5)]
    with text_model.open("ngram") as llm:
        failed, fine = llm.generate(["the cat", "the mat"], wishes, use_tqdm=False)
    assert isinstance(failed.error, RequestError) and "cannot go on" in str(failed.error)
    assert set(failed.outputs[0].text) <= {"a"} and len(fine.outputs[0].token_ids) == 5


@pytest.mark.parametrize("wrap", ["allOf", "items"])
def test_a_chain_of_references_as_long_as_the_limit_is_compiled(
    text_model: TextModel, wrap: str
) -> None:
    """The library recurses along it: on a usual stack this ended the process."""
    names = [f"d{i}" for i in range(3000)]
    chain = {
        name: {wrap: [link] if wrap == "allOf" else link}
        for name, link in zip(
            names, [{"$ref": f"#/$defs/{name}"} for name in names[1:]], strict=False
        )
    }
    schema = {"$defs": {**chain, names[-1]: {"type": "null"}}, "$ref": "#/$defs/d0"}
    params = SamplingParams(max_tokens=3, guided_decoding={"json": schema})
    with text_model.open() as llm:
        (one,) = llm.generate("the cat", params).outputs
    assert one.text


def test_schemas_as_deep_as_the_limit_are_compiled(text_model: TextModel) -> None:
    schema = nested(MAX_SCHEMA_NESTING - 2)
    params = SamplingParams(max_tokens=3, guided_decoding={"json": schema})
    with text_model.open() as llm:
        assert llm.generate("the cat", params).outputs[0].text.startswith("[")


def test_options_that_exclude_all_that_a_grammar_allows_are_the_requests_error(
    text_model: TextModel,
) -> None:
    form = {"regex": "[ab]x"}
    wishes = [
        SamplingParams(max_tokens=9, guided_decoding=form, bad_words=["x"]),
        SamplingParams(max_tokens=9, guided_decoding=form, bad_words=[[0]]),  # the end
        SamplingParams(max_tokens=9, guided_decoding={"grammar": 'start: x\nx: x "c"'}),
        SamplingParams(max_tokens=9, guided_decoding=form),
    ]
    with text_model.open("ngram") as llm:
        outputs = llm.generate(["the cat"] * len(wishes), wishes, use_tqdm=False)
    *refused, fine = outputs
    words = ("excluded at output token 1", "excluded at output token 2", "no token of the vocab")
    for output, said in zip(refused, words, strict=True):
        assert isinstance(output.error, RequestError) and said in str(output.error)
    assert fine.error is None


def test_equal_grammars_that_come_at_once_are_compiled_once(
    text_model: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, going_on = [], Event()

    def slow(*args: Any) -> str:
        asked.append(args)
        assert going_on.wait(30)
        return grammar_of(*args)

    monkeypatch.setattr(compiler, "grammar_of", slow)
    tokenizer = load_tokenizer(text_model.folder)
    grammars = compiler.GrammarCompiler(tokenizer, len(tokenizer), [0])
    forms = [GuidedDecodingParams(regex="[ab]c")] * 4 + [GuidedDecodingParams(regex="(a")] * 4
    with ThreadPoolExecutor(len(forms)) as threads:
        found = [threads.submit(grammars.matcher, form) for form in forms]
        going_on.set()
    assert [params for params, *_ in asked].count(forms[0]) == 1
    assert len({id(each.result()) for each in found[:4]}) == 4
    errors = [each.exception() for each in found[4:]]
    assert all(isinstance(error, RequestError) for error in errors)
    assert len(set(map(id, errors))) == 4
    monkeypatch.setattr(compiler, "grammar_of", grammar_of)
    with pytest.raises(RequestError, match="refused"):
        grammars.matcher(forms[-1])
