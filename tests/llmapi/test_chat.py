"""Contents as text and in parts, for templates that read the one or the other."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from trtspec.errors import RequestError
from trtspec.llmapi.chat import content_form, in_form
from trtspec.llmapi.prompts import PromptReader

EACH, NEXT = "{% for m in messages %}", r"{{ '\n' }}{% endfor %}"
PARTS = "{{ part['text'] }}{% endfor %}"  # what a loop over them does
READ_PARTS = {
    "a loop": EACH + "{% for part in m['content'] %}" + PARTS + NEXT,
    "an attribute": EACH + "{% for part in m.content %}" + PARTS + NEXT,
    "a filter": EACH + "{% for part in m.content | selectattr('type', 'equalto', 'text') %}"
    + PARTS + NEXT,
    "a name": EACH + "{% set said = m['content'] %}{% set it = said %}{% for part in it %}"
    + PARTS + NEXT,
    "a slice": EACH + "{% for part in m['content'][:] %}" + PARTS + NEXT,
    "a macro": "{% macro write(said, role='x') %}{% for part in said %}" + PARTS
    + "{% endmacro %}" + EACH + "{{ write(m.content) }}" + NEXT,
    "a macro by name": "{% macro write(role, said) %}{% for part in said %}" + PARTS
    + "{% endmacro %}" + EACH + "{{ write(1, said=m.content) }}" + NEXT,
    "either": EACH + "{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for part in m.content %}" + PARTS + "{% endif %}" + NEXT,
    "a marked block": EACH + "{% generation %}{% for part in m['content'] %}" + PARTS
    + "{% endgeneration %}" + NEXT,
    "a list of others": "{% set rest = messages[0:] %}{% for m in rest %}"
    "{% for part in m['content'] %}{% if loop.first %}{% endif %}" + PARTS + NEXT,
}  # fmt: skip
READ_TEXT = {
    "plain": EACH + "{{ m['content'] }}" + NEXT,
    "joined": r"{{ messages | map(attribute='content') | join('\n') }}{{ '\n' }}",
    "lines": EACH + r"{% for line in m['content'].split('\n') %}{{ line }}{% endfor %}" + NEXT,
    "calls": EACH + "{% for call in m.tool_calls or [] %}{{ call }}{% endfor %}"
    "{{ m['content'] | trim }}" + NEXT,
    "a macro": "{% macro write(said) %}{{ said }}{% endmacro %}" + EACH
    + "{% set content = write(m.content) %}{{ content }}" + NEXT,
    "a marked block": EACH + "{% generation %}{{ m['content'] }}{% endgeneration %}" + NEXT,
    "loop controls": EACH + "{% if not m['content'] %}{% continue %}{% endif %}{{ m['content'] }}"
    + NEXT,
}  # fmt: skip
ALL = [*READ_PARTS.values(), *READ_TEXT.values()]


def tokenizer() -> Any:
    """A token for each byte."""
    letters = pre_tokenizers.ByteLevel.alphabet()
    backend = Tokenizer(models.BPE({letter: i for i, letter in enumerate(sorted(letters))}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


READER = PromptReader(tokenizer(), 256)


def prompt(template: Any, messages: Any, **options: Any) -> str:
    READER.tokenizer.chat_template = template
    ids: Any = READER.chat(messages, options)
    return str(READER.tokenizer.decode(ids["prompt_token_ids"]))


def part(text: Any, **more: Any) -> dict[str, Any]:
    return {"type": "text", "text": text, **more}


@pytest.mark.parametrize("name", READ_PARTS)
def test_templates_that_loop_over_parts(name: str) -> None:
    assert content_form(READ_PARTS[name]) == "parts"


@pytest.mark.parametrize("name", READ_TEXT)
def test_templates_that_read_text(name: str) -> None:
    assert content_form(READ_TEXT[name]) == "text"


@pytest.mark.parametrize("template", ALL)
def test_both_ways_of_writing_reach_every_template(template: str) -> None:
    """No text is lost, and no list is written out, in whichever mixture they come."""
    turns = "that is", "the cat?"
    ways = [[t if way == "text" else [part(t)] for way in ("text", "parts")] for t in turns]
    for first, second in itertools.product(*ways):
        messages = [{"role": "user", "content": first}, {"role": "assistant", "content": second}]
        assert prompt(template, messages) == "that is\nthe cat?\n"


def test_several_parts() -> None:
    messages = [{"role": "user", "content": [part("a"), part(""), part("b")]}]
    assert prompt(READ_TEXT["plain"], messages) == "a\n\nb\n"
    assert prompt(READ_PARTS["a loop"], messages) == "ab\n"
    assert prompt(READ_TEXT["plain"], [{"role": "user", "content": []}]) == "\n"


@pytest.mark.parametrize("template", [READ_TEXT["plain"], READ_PARTS["a loop"]])
@pytest.mark.parametrize(
    ("content", "named"),
    [
        ([{"type": "image_url", "image_url": {"url": "x"}}], r"content\[0\].*'image_url'"),
        ([part("a"), {"type": "input_audio"}], r"content\[1\].*'input_audio'"),
        (["a"], r"content\[0\] is 'a'"),
        ([{"text": "a"}], r"content\[0\] is \{'text': 'a'\}"),
        ([{"type": "text"}], r"content\[0\]"),
        ([part(3)], r"content\[0\]"),
        ([part("a", cache_control={})], r"content\[0\]"),
        ([{"type": 3, "text": "a"}], r"content\[0\]"),
        ([None], r"content\[0\] is None"),
        (part("a"), "content is dict"),
        (None, "content is NoneType"),
        (7, "content is int 7"),
        (b"a", "content is bytes"),
    ],
)
def test_what_is_no_text_is_refused_by_name(template: str, content: Any, named: str) -> None:
    messages = [{"role": "user", "content": "a"}, {"role": "user", "content": content}]
    with pytest.raises(RequestError, match=r"^messages\[1\]\.?" + named):
        prompt(template, messages)


@pytest.mark.parametrize("messages", ["hello", {"role": "user"}, 3, ["hello"], [None], [["a"]]])
def test_what_is_no_conversation(messages: Any) -> None:
    with pytest.raises(RequestError, match="message"):
        prompt(READ_TEXT["plain"], messages)


def test_a_call_without_text() -> None:
    """Its template writes it."""
    template = EACH + "{{ m.tool_calls[0] if m.tool_calls else m.content }}" + NEXT
    messages = [
        {"role": "user", "content": "a"},
        {"role": "assistant", "content": None, "tool_calls": ["b()"]},
    ]
    assert prompt(template, messages) == "a\nb()\n"


def test_a_template_that_loops_for_one_role_only() -> None:
    """It would write a list of Python's into the prompt, or lose the text of the other role."""
    template = (
        EACH
        + "{% if m.role == 'user' %}{% for part in m.content %}"
        + PARTS
        + "{% else %}{{ m.content }}{% endif %}"
        + NEXT
    )
    messages = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
    assert prompt(template, messages[:1]) == "a\n"
    with pytest.raises(RequestError, match="of role 'assistant' as a list"):
        prompt(template, messages)


def test_the_template_that_is_applied_decides() -> None:
    """Of several by name, and one given with the call."""
    both = {"default": READ_TEXT["plain"], "vision": READ_PARTS["a loop"]}
    messages = [{"role": "user", "content": [part("a"), part("b")]}]
    assert prompt(both, messages) == "a\nb\n"
    assert prompt(both, messages, chat_template="vision") == "ab\n"
    assert prompt(None, messages, chat_template=READ_PARTS["a name"]) == "ab\n"
    with pytest.raises(RequestError, match="no chat template"):
        prompt(None, messages)
    with pytest.raises(RequestError, match="no default"):
        prompt({"a": READ_TEXT["plain"], "b": READ_TEXT["plain"]}, messages)


def test_a_template_that_cannot_be_parsed() -> None:
    with pytest.raises(RequestError, match="refused the conversation"):
        prompt("{% for %}", [{"role": "user", "content": "a"}])


@pytest.mark.parametrize("content", ["a mat", [part("a mat")]])
@pytest.mark.parametrize("form", [READ_TEXT["plain"], READ_PARTS["a loop"]])
def test_going_on_with_the_last_message(content: Any, form: str) -> None:
    """There is no header of a new one then, unless it is asked for, which is refused."""
    template = form + "{% if add_generation_prompt %}assistant:{% endif %}"
    messages = [{"role": "user", "content": "b"}, {"role": "assistant", "content": content}]
    assert prompt(template, messages) == "b\na mat\nassistant:"
    assert prompt(template, messages, continue_final_message=True) == "b\na mat"
    assert prompt(template, messages, continue_final_message=False).endswith("assistant:")
    assert prompt(template, messages, add_generation_prompt=False) == "b\na mat\n"
    both = {"continue_final_message": True, "add_generation_prompt": True}
    with pytest.raises(RequestError, match="refused the conversation"):
        prompt(template, messages, **both)


def test_nothing_of_the_caller_is_changed() -> None:
    messages = [{"role": "developer", "content": "a", "name": "n"}]
    (turn,) = in_form(messages, "parts")
    assert turn == {"role": "developer", "content": [part("a")], "name": "n"}
    assert messages == [{"role": "developer", "content": "a", "name": "n"}]
