"""/v1/chat/completions with the official client: templates, streams, logprobs, contents."""

from __future__ import annotations

from typing import Any

import openai
import pytest

from trtspec import SamplingParams
from trtspec.errors import RequestError

from .conftest import Server

MESSAGES = [{"role": "system", "content": "that is"}, {"role": "user", "content": "the cat?"}]
OPTIONS: dict[str, Any] = {"model": "tiny", "max_tokens": 20, "temperature": 0.8, "seed": 4}


def test_the_answer_is_that_of_the_llm(server: Server) -> None:
    params = SamplingParams(max_tokens=20, temperature=0.8, seed=4)
    expected = server.llm.chat(MESSAGES, params).outputs[0]
    answer = server.client().chat.completions.create(messages=MESSAGES, **OPTIONS)
    (choice,) = answer.choices
    assert (choice.message.role, choice.message.content) == ("assistant", expected.text)
    assert choice.finish_reason == expected.finish_reason
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.usage.completion_tokens == len(expected.token_ids)
    assert answer._request_id == answer.id.removeprefix("chatcmpl-")


def test_streaming(server: Server) -> None:
    client = server.client()
    whole = client.chat.completions.create(messages=MESSAGES, n=2, **OPTIONS)
    chunks = list(
        client.chat.completions.create(
            messages=MESSAGES, n=2, stream=True, stream_options={"include_usage": True}, **OPTIONS
        )
    )
    assert [c.choices[0].delta.role for c in chunks[:2]] == ["assistant"] * 2
    assert not any(c.choices[0].delta.role for c in chunks[2:-1])
    for index in range(2):
        mine = [c.choices[0] for c in chunks[:-1] if c.choices[0].index == index]
        text = "".join(choice.delta.content or "" for choice in mine)
        assert text == whole.choices[index].message.content
        assert [c.finish_reason for c in mine[:-1]] == [None] * (len(mine) - 1)
        assert mine[-1].finish_reason == whole.choices[index].finish_reason
    assert chunks[-1].usage == whole.usage


def test_answers_are_sent_back_as_clients_have_them(server: Server) -> None:
    chat = server.client().chat.completions
    part = {"type": "output_text", "text": "a", "annotations": []}
    plain = [{"role": "assistant", "content": c} for c in ("", "a")]
    other = [{"role": "assistant", "content": c} for c in (None, [part])]
    texts = [
        chat.create(messages=[*turns, MESSAGES[1]], **OPTIONS).choices[0].message.content
        for turns in (plain, other)
    ]
    assert texts[0] == texts[1]


def test_no_best_tokens_need_no_logprobs(server: Server) -> None:
    answer = server.client().chat.completions.create(messages=MESSAGES, top_logprobs=0, **OPTIONS)
    assert answer.choices[0].logprobs is None


def test_logprobs(server: Server) -> None:
    client = server.client()
    options = {**OPTIONS, "messages": MESSAGES, "logprobs": True, "top_logprobs": 2}
    whole = client.chat.completions.create(**options)
    entries = whole.choices[0].logprobs.content
    assert len(entries) == whole.usage.completion_tokens
    assert all(len(entry.top_logprobs) == 2 for entry in entries)
    said = b"".join(bytes(e.bytes) for e in entries if e.token != "<|end|>")
    assert said.decode(errors="replace") == whole.choices[0].message.content
    stream = client.chat.completions.create(stream=True, **options)
    parts = [c.choices[0].logprobs for c in stream]
    assert [entry for part in parts if part for entry in part.content] == entries
    without = client.chat.completions.create(**{**options, "top_logprobs": None})
    assert [e.logprob for e in without.choices[0].logprobs.content] == [e.logprob for e in entries]


def test_contents_and_limits(server: Server) -> None:
    """Parts of text count as lines; both names of the limit work; without one it is the model's."""
    client = server.client()
    parts = [{"type": "text", "text": "the"}, {"type": "text", "text": "cat"}]
    options = {**OPTIONS, "max_tokens": openai.omit, "max_completion_tokens": 5}
    one = client.chat.completions.create(messages=[{"role": "user", "content": parts}], **options)
    two = client.chat.completions.create(
        messages=[{"role": "user", "content": "the\ncat"}], **options
    )
    assert one.choices == two.choices and one.usage.completion_tokens <= 5
    full = client.chat.completions.create(
        messages=MESSAGES, model="tiny", seed=1, extra_body={"ignore_eos": True}
    )
    assert full.usage.total_tokens == 256
    # What clients send back of an earlier answer, with its empty fields, is a message again.
    turn = full.choices[0].message.model_dump()
    turn["content"] = "mat"
    client.chat.completions.create(messages=[*MESSAGES, turn, MESSAGES[1]], **options)


def test_template_options(server: Server) -> None:
    client = server.client()

    def length(**extra: Any) -> int:
        answer = client.chat.completions.create(
            messages=[*MESSAGES, {"role": "assistant", "content": "a mat"}],
            extra_body=extra,
            **OPTIONS,
        )
        return int(answer.usage.prompt_tokens)

    assert length(add_generation_prompt=False) < length()
    assert length(continue_final_message=True) < length(add_generation_prompt=False)
    assert length(chat_template_kwargs={"enable_thinking": False}) == length()


@pytest.mark.parametrize(
    "name",
    ["chat_template", "tokenize", "tools", "return_dict", "messages", "self", "conversation",
     "conversations", "add_generation_prompt", "chat_template_kwargs", "range"],
)  # fmt: skip
def test_a_request_never_changes_the_template(server: Server, name: str) -> None:
    with pytest.raises(openai.BadRequestError, match=f"{name}.*no variable"):
        server.client().chat.completions.create(
            messages=MESSAGES, extra_body={"chat_template_kwargs": {name: "{{ 7 * 7 }}"}}, **OPTIONS
        )


def test_a_switch_of_the_template(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    """Read as `LLM.chat` reads it, and a misspelt one refused as there."""
    template = server.llm.tokenizer.chat_template + "{% if terse %}terse{% endif %}"
    monkeypatch.setattr(server.llm.tokenizer, "chat_template", template)

    def ask(**variables: Any) -> int:
        extra = {"chat_template_kwargs": variables}
        client = server.client().chat.completions
        return int(
            client.create(messages=MESSAGES, extra_body=extra, **OPTIONS).usage.prompt_tokens
        )

    offline: Any = server.llm.chat_prompt(MESSAGES, chat_template_kwargs={"terse": True})
    assert ask(terse=True) == len(offline["prompt_token_ids"]) > ask(terse=False)
    for name, value, words in (
        ("tersee", True, "did you mean `terse`"),
        ("terse", deep(100), "nested more than 32 deep"),
    ):
        with pytest.raises(openai.BadRequestError, match=words) as refused:
            ask(**{name: value})
        assert refused.value.param.startswith("chat_template_kwargs")
        with pytest.raises(RequestError, match=words):
            server.llm.chat(MESSAGES, chat_template_kwargs={name: value})


def deep(depth: int) -> list[Any]:
    value: list[Any] = []
    for _ in range(depth):
        value = [value]
    return value


LOOP = "{% for m in messages %}{% for p in m['content'] %}{{ p['text'] }}{% endfor %};{% endfor %}"


@pytest.mark.parametrize("content", ["the cat", [{"type": "text", "text": "the cat"}]])
def test_a_template_that_loops_over_parts(
    server: Server, monkeypatch: pytest.MonkeyPatch, content: Any
) -> None:
    """It gets the text that was sent, whichever way, and makes the prompt that `LLM.chat` has."""
    monkeypatch.setattr(server.llm.tokenizer, "chat_template", LOOP)
    messages = [{"role": "user", "content": content}, MESSAGES[0]]
    prompts, submit = [], server.llm.submit

    def seen(asked: Any, *args: Any, **options: Any) -> Any:
        prompts.extend(asked)
        return submit(asked, *args, **options)

    monkeypatch.setattr(server.llm, "submit", seen)
    answer = server.client().chat.completions.create(messages=messages, **OPTIONS)
    expected = server.llm.tokenizer("the cat;that is;")["input_ids"]
    assert prompts == [{"prompt_token_ids": expected}]
    assert answer.usage.prompt_tokens == len(expected)
    params = SamplingParams(max_tokens=20, temperature=0.8, seed=4)
    offline = server.llm.chat(messages, params)
    assert offline.prompt_token_ids == expected
    assert offline.outputs[0].text == answer.choices[0].message.content


def test_a_part_that_is_no_text(server: Server) -> None:
    image = {"type": "image_url", "image_url": {"url": "x"}}
    with pytest.raises(openai.BadRequestError, match="'image_url' is refused: only text"):
        server.client().chat.completions.create(
            messages=[{"role": "user", "content": [image]}], **OPTIONS
        )
