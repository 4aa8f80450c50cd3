"""/v1/completions with the official client: whole, streamed, and the same as the LLM itself."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest

from trtspec import LLM, SamplingParams

from ..e2e.helpers import ngram, open_llm, tree
from ..llmapi.conftest import TextModel
from .conftest import Serve, Server, run_server

PROMPTS = ["the cat sat", "a rat ate", "mat?"]


@pytest.fixture(params=["none", "tree"], scope="module")
def any_server(request: pytest.FixtureRequest, text_model: TextModel) -> Iterator[Server]:
    with run_server(lambda: text_model.open(request.param)) as running:
        yield running


@pytest.fixture(scope="module")
def reference(text_model: TextModel) -> Iterator[LLM]:
    with text_model.open() as llm:
        yield llm


def streamed(stream: Any) -> tuple[dict[int, str], dict[int, Any], list[Any]]:
    """Text and last choice by index, and all chunks."""
    texts: dict[int, str] = {}
    ends: dict[int, Any] = {}
    chunks = list(stream)
    for chunk in chunks:
        for choice in chunk.choices:
            assert choice.index not in ends, "something came after the end"
            texts[choice.index] = texts.get(choice.index, "") + choice.text
            if choice.finish_reason is not None:
                ends[choice.index] = choice
    return texts, ends, chunks


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_the_text_is_that_of_the_llm(
    any_server: Server, reference: LLM, temperature: float
) -> None:
    """With speculation and without, whole and streamed, several samples of several prompts."""
    expected = [
        completion
        for output in reference.generate(
            PROMPTS, SamplingParams(max_tokens=24, temperature=temperature, seed=7, n=2), False
        )
        for completion in output.outputs
    ]
    options = {"prompt": PROMPTS, "max_tokens": 24, "temperature": temperature, "seed": 7, "n": 2}
    client = any_server.client()
    whole = client.completions.create(model="tiny", **options)
    assert [c.index for c in whole.choices] == list(range(6))
    assert [c.text for c in whole.choices] == [c.text for c in expected]
    assert [c.finish_reason for c in whole.choices] == [c.finish_reason for c in expected]
    assert whole.usage.completion_tokens == sum(len(c.token_ids) for c in expected)
    texts, ends, chunks = streamed(client.completions.create(model="tiny", stream=True, **options))
    assert [texts[i] for i in range(6)] == [c.text for c in expected]
    assert [ends[i].finish_reason for i in range(6)] == [c.finish_reason for c in expected]
    assert len(chunks) > 6
    assert all(len(chunk.choices) == 1 for chunk in chunks)
    assert {chunk.id for chunk in chunks} != {whole.id}


def test_the_usage_says_what_came_out_of_the_prefix_cache(any_server: Server) -> None:
    client = any_server.client()
    chat = "the rat and the cat and the mat sat on a hat " * 4
    usages = [
        client.completions.create(model="tiny", prompt=text, max_tokens=4, temperature=0).usage
        for text in (chat, chat + "ate", "no " + chat)
    ]
    first, grown, other = (usage.prompt_tokens_details.cached_tokens for usage in usages)
    assert first == other == 0
    assert usages[0].prompt_tokens - 33 <= grown < usages[0].prompt_tokens


def test_token_prompts(server: Server, reference: LLM) -> None:
    ids = [reference.tokenizer(p)["input_ids"] for p in PROMPTS[:2]]
    client = server.client()
    text = client.completions.create(model="tiny", prompt=PROMPTS[:2], temperature=0)
    assert text.usage.prompt_tokens == sum(map(len, ids))
    for prompt in (ids, ids[0]):
        answer = client.completions.create(model="tiny", prompt=prompt, temperature=0)
        assert [c.text for c in answer.choices] == [
            c.text for c in text.choices[: len(answer.choices)]
        ]


def test_defaults_are_those_of_openai(server: Server) -> None:
    """16 tokens, temperature 1; the seed that was drawn is reported and repeats the text."""
    client = server.client()
    first = client.completions.create(
        model="tiny", prompt="the cat", extra_body={"ignore_eos": True}
    )
    assert first.usage.completion_tokens == 16
    seeds = {
        client.completions.create(model="tiny", prompt="the cat").choices[0].seed for _ in range(3)
    }
    assert len(seeds) == 3
    again = client.completions.create(
        model="tiny", prompt="the cat", seed=first.choices[0].seed, extra_body={"ignore_eos": True}
    )
    assert again.choices[0].text == first.choices[0].text


def test_usage_in_a_stream(server: Server) -> None:
    options = {"model": "tiny", "prompt": "the cat", "max_tokens": 9, "temperature": 0.5, "seed": 1}
    client = server.client()
    whole = client.completions.create(**options)
    assert all(c.usage is None for c in client.completions.create(stream=True, **options))
    *chunks, last = client.completions.create(
        stream=True, stream_options={"include_usage": True}, **options
    )
    assert all(chunk.usage is None for chunk in chunks)
    assert last.choices == [] and last.usage == whole.usage
    wished = {"include_usage": True, "continuous_usage_stats": True}
    *chunks, last = client.completions.create(stream=True, stream_options=wished, **options)
    counts = [chunk.usage.completion_tokens for chunk in chunks]
    assert counts == sorted(counts) and counts[-1] == last.usage.completion_tokens


def test_stop_strings_across_tokens(any_server: Server) -> None:
    """A stop string is cut out wherever the borders of tokens and steps lie."""
    options = {
        "model": "tiny",
        "prompt": "the cat",
        "max_tokens": 24,
        "temperature": 0.8,
        "seed": 3,
    }
    client = any_server.client()
    full = client.completions.create(**options).choices[0].text
    stop = full[11:16]
    whole = client.completions.create(stop=["never seen", stop], **options).choices[0]
    assert whole.text == full[: full.index(stop)]
    assert (whole.finish_reason, whole.stop_reason) == ("stop", stop)
    texts, ends, _ = streamed(client.completions.create(stop=stop, stream=True, **options))
    assert texts[0] == whole.text and ends[0].stop_reason == stop


def test_a_stop_string_that_is_a_special_token(server: Server) -> None:
    options = {"model": "tiny", "prompt": "the cat", "max_tokens": 30, "temperature": 0.8}
    options |= {"seed": 1, "logit_bias": {"0": 3.0}}
    client = server.client()
    ended = client.completions.create(**options).choices[0]
    assert (ended.finish_reason, ended.stop_reason) == ("stop", None)
    for stop, text in (("<|end|>", ended.text), (ended.text[-1] + "<|end|>", ended.text[:-1])):
        more = {"ignore_eos": True}
        choice = client.completions.create(stop=stop, extra_body=more, **options).choices[0]
        assert (choice.text, choice.finish_reason, choice.stop_reason) == (text, "stop", stop)
        stream = client.completions.create(stop=stop, stream=True, extra_body=more, **options)
        texts, ends, _ = streamed(stream)
        assert (texts[0], ends[0].stop_reason) == (text, stop)


def test_no_half_characters_in_a_stream(any_server: Server) -> None:
    """Euro signs, each three tokens of one byte: no chunk shows a part of one."""
    tokens = any_server.llm.tokenizer("€")["input_ids"]
    assert len(tokens) == 3
    bias = {str(token): 60.0 for token in tokens}
    stream = any_server.client().completions.create(
        model="tiny", prompt="€€€€", max_tokens=24, temperature=1, seed=5, logit_bias=bias,
        stream=True,
    )  # fmt: skip
    chunks = [chunk.choices[0].text for chunk in stream]
    whole = any_server.client().completions.create(
        model="tiny", prompt="€€€€", max_tokens=24, temperature=1, seed=5, logit_bias=bias
    )
    assert "".join(chunks) == whole.choices[0].text
    assert "€" in "".join(chunks)
    marks = "".join(chunks).count("\ufffd")
    assert marks == whole.choices[0].text.count("\ufffd")


def test_logprobs(any_server: Server, reference: LLM) -> None:
    params = SamplingParams(max_tokens=12, temperature=0.7, seed=2, logprobs=3)
    expected = reference.generate("the cat", params).outputs[0]
    options = {
        "model": "tiny", "prompt": "the cat", "max_tokens": 12, "temperature": 0.7, "seed": 2,
        "logprobs": 3,
    }  # fmt: skip
    client = any_server.client()
    whole = client.completions.create(**options).choices[0].logprobs
    assert whole.token_logprobs == pytest.approx([e.logprob for e in expected.logprobs], abs=1e-4)
    assert [len(top) for top in whole.top_logprobs] == [
        len(e.top.keys() | {e.token}) for e in expected.logprobs
    ]
    for token, value, top in zip(
        whole.tokens, whole.token_logprobs, whole.top_logprobs, strict=True
    ):
        assert top[token] == value
    assert any(len(top) == 4 for top in whole.top_logprobs)
    assert whole.text_offset[0] == 0 and len(whole.tokens) == len(expected.token_ids)
    parts = [c.choices[0].logprobs for c in client.completions.create(stream=True, **options)]
    for name in ("tokens", "token_logprobs", "top_logprobs", "text_offset"):
        assert [v for part in parts for v in getattr(part, name)] == getattr(whole, name)
    assert client.completions.create(model="tiny", prompt="a").choices[0].logprobs is None


@pytest.mark.parametrize("method", ["none", "tree"])
def test_speculative_figures_on_request(serve: Serve, method: str) -> None:
    """Asked for in the request, or for all of them by the server's flag."""
    options = {"model": "tiny", "prompt": "the cat", "max_tokens": 20, "temperature": 0}
    with serve(method) as server:
        client = server.client()
        assert not hasattr(client.completions.create(**options), "metrics")
        wished = {"return_spec_tokens_details": True}
        answer = client.completions.create(extra_body=wished, **options)
        figures = answer.metrics["speculative_decoding"]
        assert figures["num_emitted_tokens"] == answer.usage.completion_tokens - 1
        assert (figures["acceptance_length"] > 1) == (method == "tree")
        *_, last = client.completions.create(stream=True, extra_body=wished, **options)
        assert last.metrics["speculative_decoding"] == figures
    with serve(method, request_metrics=True) as server:
        answer = server.client().completions.create(**options)
        assert answer.metrics["speculative_decoding"] == figures


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
def test_a_request_says_how_it_is_drafted_for(serve: Serve, path: str) -> None:
    asked = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a"}
    body = {**asked, "max_tokens": 20, "temperature": 0, "return_spec_tokens_details": True}

    def answer(server: Server, wish: Any) -> tuple[Any, list[int]]:
        response = server.post(f"/v1/{path}", json={**body, "speculative": wish})
        assert response.status_code == 200, response.text
        figures = response.json()["metrics"]["speculative_decoding"]
        return response.json()["choices"], figures["num_drafts_per_pos"]

    with serve("tree") as server:
        text, deepest = answer(server, None)
        for depth in (None, 0, 1, 2):
            same, positions = answer(server, {"num_speculative_tokens": depth})
            assert same[0] | {"seed": 0} == text[0] | {"seed": 0}
            assert len(positions) == min(depth or 0, len(deepest))
        for wish, said in (
            ({"num_speculative_tokens": 99}, "at most 3 deep"),
            ({"num_speculative_tokens": -1}, "must be at least 0"),
            ({}, "it is missing"),
            (False, "speculative"),
        ):
            response = server.post(f"/v1/{path}", json={**body, "speculative": wish})
            assert response.status_code == 400 and said in response.text


@pytest.mark.parametrize("path", ["completions", "chat/completions"])
@pytest.mark.parametrize("rates", [None, [0.5, 0.5]])
def test_answers_whose_acceptance_is_simulated_say_so(
    text_model: TextModel, path: str, rates: list[float] | None
) -> None:
    """The whole answer, and every chunk of a stream; others say nothing."""
    config = ngram(2) if rates is None else ngram(2, simulate_acceptance=rates)
    asked = {"messages": [{"role": "user", "content": "a"}]} if "chat" in path else {"prompt": "a"}
    body = {**asked, "max_tokens": 8, "stream_options": {"include_usage": True}, "stream": True}

    def open_one() -> LLM:
        return open_llm(text_model.folder, config, skip_tokenizer_init=False)

    with run_server(open_one) as server:
        whole = server.post(f"/v1/{path}", json={**asked, "max_tokens": 8}).json()
        *events, done, _ = server.post(f"/v1/{path}", json=body).text.split("\n\n")
    chunks = [json.loads(event.removeprefix("data: ")) for event in events]
    assert done == "data: [DONE]" and len(chunks) > 2 and whole["choices"]
    wanted = None if rates is None else "simulated"
    assert {answer.get("acceptance") for answer in (whole, *chunks)} == {wanted}


def test_the_stream_on_the_wire(server: Server) -> None:
    body = {"prompt": "the cat", "max_tokens": 3, "stream": True, "temperature": 0}
    response = server.post(json=body, headers={"X-Request-Id": "abc-1"})
    assert response.headers["content-type"].startswith("text/event-stream")
    assert response.headers["x-request-id"] == "abc-1"
    events = response.text.split("\n\n")
    assert events[-2:] == ["data: [DONE]", ""]
    first = json.loads(events[0].removeprefix("data: "))
    assert first["id"] == "cmpl-abc-1" and first["object"] == "text_completion"


def test_what_the_client_reports(server: Server) -> None:
    """Errors arrive as the client's own classes, with the text and the field at fault."""
    client = server.client()
    with pytest.raises(openai.BadRequestError, match="top_p") as bad:
        client.completions.create(model="tiny", prompt="a", top_p=2.0)
    assert bad.value.param == "top_p"
    with pytest.raises(openai.NotFoundError, match="other"):
        client.completions.create(model="other", prompt="a")
    listed = client.models.list().data
    assert [m.id for m in listed] == ["tiny"] and listed[0].max_model_len == 256
    assert client.models.retrieve("tiny").id == "tiny"


@pytest.mark.parametrize("prompt", ["the cat", "é€ cat", [40, 41, 42]])
def test_echo(server: Server, prompt: Any) -> None:
    """The prompt comes first, with what its tokens were worth; the answer stays."""
    options = {"model": "tiny", "prompt": prompt, "max_tokens": 5, "seed": 1}
    plain = server.client().completions.create(**options, logprobs=2).choices[0]
    answer = server.client().completions.create(**options, logprobs=2, echo=True).choices[0]
    output = server.llm.generate(prompt, SamplingParams(max_tokens=1, prompt_logprobs=2))
    ids = output.prompt_token_ids
    assert answer.text == server.llm.detokenize(ids) + plain.text
    told = answer.logprobs
    assert len(told.tokens) == len(ids) + 5
    assert told.token_logprobs[0] is None and told.top_logprobs[0] is None
    own = [entry.logprob for entry in output.prompt_logprobs[1:]]
    assert told.token_logprobs[1 : len(ids)] == pytest.approx(own)
    assert told.token_logprobs[len(ids) :] == plain.logprobs.token_logprobs
    assert told.text_offset[len(ids)] == len(server.llm.detokenize(ids))
    for token, offset in zip(told.tokens, told.text_offset, strict=True):
        assert token.startswith("bytes:") or answer.text.startswith(token, offset)
    bare = server.client().completions.create(**options, echo=True).choices[0]
    assert bare.text == answer.text and bare.logprobs is None
    refused = server.post(json={**options, "echo": True, "stream": True})
    assert refused.status_code == 400 and "`echo`" in refused.json()["error"]["message"]


def test_steps(text_model: TextModel) -> None:
    """`return_spec_steps` gives each step's tree, whose accepted path is what was emitted; streams
    and whole answers have the same steps."""
    asked: dict[str, Any] = {"model": "tiny", "prompt": "the cat sat", "max_tokens": 60}
    asked["temperature"] = 0.0
    extra = {"return_spec_steps": True, "return_spec_tokens_details": True}
    members = [ngram(4), tree(text_model.draft, 3, 3, 9)]
    config = {"method": "hybrid", "drafters": members, "num_draft_tokens": 12}
    options = {"skip_tokenizer_init": False}
    with run_server(lambda: open_llm(text_model.folder, config, **options)) as server:
        client = server.client()
        plain = client.completions.create(**asked)
        whole: Any = client.completions.create(**asked, extra_body=extra)
        stream = client.completions.create(**asked, stream=True, extra_body=extra)
        chunks: list[Any] = [choice for chunk in stream for choice in chunk.choices]
        card: Any = client.models.list().data[0]
    assert "spec_steps" not in plain.choices[0].to_dict()
    steps = whole.choices[0].spec_steps
    assert [step for chunk in chunks for step in chunk.spec_steps] == steps
    assert sum(len(step["emitted"]) for step in steps) == whole.usage.completion_tokens
    for step in steps:
        accepted = step["accepted"]
        assert [step["tokens"][node] for node in accepted] == step["emitted"][:-1]
        assert [step["parents"][node] for node in accepted] == [-1, *accepted][:-1]
    figures = whole.metrics["speculative_decoding"]
    assert card.draft_sources == ["ngram", "draft_model"]
    for source in (0, 1):
        found = [[s == source for s in step["sources"]] for step in steps]
        assert sum(map(sum, found)) == figures["num_draft_tokens_per_source"][source] > 0
        kept = sum(
            own[node] for step, own in zip(steps, found, strict=True) for node in step["accepted"]
        )
        assert kept == figures["num_accepted_tokens_per_source"][source] > 0
