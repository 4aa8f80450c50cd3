"""What `LLM.chat` takes beside the messages: templates by name, their variables, tools."""

from __future__ import annotations

import logging
import shutil
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams
from trtspec.builder.build_engine import build_engine
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.errors import RequestError
from trtspec.llmapi.prompts import PromptReader

from .conftest import TextModel
from .test_chat import EACH, NEXT, tokenizer

USER = [{"role": "user", "content": "a"}]
PLAIN = EACH + "{{ m.role }}:{{ m.content }}" + NEXT
SWITCHED = PLAIN + "{% if enable_thinking %}think{% endif %}"
TOOLS = PLAIN + "{% for tool in tools or [] %}{{ tool.name }}{% endfor %}"
RAG = "{% for d in documents %}{{ d.text }}{% endfor %}" + PLAIN


def prompt(template: Any, messages: Any = USER, **options: Any) -> str:
    reader = PromptReader(tokenizer(), 256)
    reader.tokenizer.chat_template = template
    ids: Any = reader.chat(messages, options)
    return str(reader.tokenizer.decode(ids["prompt_token_ids"]))


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"temperature": 0.5}, "`temperature`.*SamplingParams"),
        ({"max_tokens": 5}, "`max_tokens`.*SamplingParams"),
        ({"max_new_tokens": None}, "`max_new_tokens`.*SamplingParams"),
        ({"max_model_len": 5}, r"`max_model_len`.*LLM\(model"),
        ({"add_generation_promt": False}, "did you mean `add_generation_prompt`"),
        ({"enable_thinkng": True}, "`enable_thinkng`; did you mean `enable_thinking`"),
        ({"sampling_param": None}, "did you mean `sampling_params`"),
        ({"max_token": 5}, "did you mean `max_tokens`"),
        ({"think": True}, "unknown option `think`.*template reads enable_thinking"),
        ({"return_tensors": "pt"}, "`return_tensors`"),
        ({"tokenize": False}, "`tokenize`"),
        ({"chat_template_content_format": "openai"}, "`chat_template_content_format`"),
        ({"add_generation_prompt": "no"}, "`add_generation_prompt` must be bool"),
        ({"chat_template_kwargs": [1]}, "`chat_template_kwargs` must be"),
        ({"chat_template_kwargs": {3: 1}}, "`chat_template_kwargs` key must be str"),
        ({"chat_template_kwargs": {"enable_thinkng": 1}}, "did you mean `enable_thinking`"),
        ({"chat_template_kwargs": {"when": {"at": Path()}}}, r"when\.at is PosixPath"),
        ({"enable_thinking": 1, "chat_template_kwargs": {"enable_thinking": 2}}, "given twice"),
        ({"tools": ["f"]}, r"tools\[0\] is str"),
        ({"tools": {"name": "f"}}, "`tools` must be"),
        ({"tools": [{"name": "f"}]}, "tools: the chat template reads none"),
        ({"documents": [{"text": "t"}]}, "documents: the chat template reads none"),
        ({"documents": ["t"]}, r"`documents`\[0\] must be"),
    ],
)
def test_what_is_unknown_is_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(RequestError, match=named):
        prompt(SWITCHED, **options)


@pytest.mark.parametrize(
    "name",
    ["messages", "self", "tools", "conversation", "conversations", "add_generation_prompt",
     "tokenize", "chat_template", "chat_template_kwargs", "range", "raise_exception", "padding",
     "documents", "continue_final_message", "return_assistant_tokens_mask", "a-b", ""],
)  # fmt: skip
def test_names_that_no_variable_may_have(name: str) -> None:
    with pytest.raises(RequestError, match=rf"chat_template_kwargs names '{name}'.* no variable"):
        prompt(PLAIN, chat_template_kwargs={name: []})


def test_variables_of_the_template(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In vLLM's way and by keyword; one that it never reads has no effect, as over HTTP, and the
    log says so once."""
    assert prompt(SWITCHED, chat_template_kwargs={"enable_thinking": True}) == "user:a\nthink"
    assert prompt(SWITCHED, enable_thinking=True) == "user:a\nthink"
    assert prompt(SWITCHED, chat_template_kwargs={"enable_thinking": False}) == "user:a\n"
    monkeypatch.setattr(logging.getLogger("trtspec"), "propagate", True)
    for _ in range(2):
        assert prompt(SWITCHED, chat_template_kwargs={"quietly": 1}) == "user:a\n"
    (line,) = [r.getMessage() for r in caplog.records]
    assert "reads no quietly" in line and "it reads enable_thinking" in line


def test_what_asks_for_nothing_is_accepted() -> None:
    nothing = {"tools": None, "documents": [], "chat_template": None}
    more = {"chat_template_content_format": "auto", "mm_processor_kwargs": None}
    assert prompt(PLAIN, **nothing, **more, chat_template_kwargs=None) == "user:a\n"


def test_tools_and_documents() -> None:
    named = {"default": PLAIN, "tool_use": TOOLS, "rag": RAG}
    tools = [{"name": "f"}]
    assert prompt(named, tools=tools) == "user:a\nf"
    assert prompt(TOOLS, tools=tools) == "user:a\nf"
    assert prompt(named, chat_template="rag", documents=[{"text": "t"}]) == "tuser:a\n"
    with pytest.raises(RequestError, match="tools: the chat template reads none"):
        prompt(named, chat_template="rag", tools=tools)
    defaults = "{% if not tools is defined %}{% set tools = none %}{% endif %}" + TOOLS
    assert prompt(defaults, tools=tools) == "user:a\nf"


@pytest.mark.parametrize("own", [PLAIN, {"default": PLAIN, "tool_use": TOOLS}, None])
@pytest.mark.parametrize("asked", ["rag", "", "no/such/file.jinja", "x" * 5000, "a\0b", "\ud800"])
def test_a_template_of_an_unknown_name(own: Any, asked: str) -> None:
    """It used to be the text of the prompt."""
    names = "the tokenizer has none"
    if own:
        names = "has: default, tool_use" if isinstance(own, dict) else "has: default"
    with pytest.raises(RequestError, match=f"no name of a template.*{names}") as refused:
        prompt(own, chat_template=asked)
    assert len(str(refused.value)) < 500


def test_templates_by_name_file_and_text(tmp_path: Path) -> None:
    assert prompt(PLAIN, chat_template="default") == "user:a\n"
    file = tmp_path / "template.jinja"
    file.write_text(PLAIN + "é", encoding="utf-8")
    for given in (str(file), file, PLAIN + "é"):
        assert prompt(None, chat_template=given) == "user:a\né"
    file.write_text("no template")
    with pytest.raises(RequestError, match=r"template.jinja' holds no template"):
        prompt(PLAIN, chat_template=file)
    file.write_bytes(b"\xff{{ x }}")
    with pytest.raises(RequestError, match=r"template.jinja' cannot be read"):
        prompt(PLAIN, chat_template=file)


def test_checked_without_a_conversation(llm: LLM) -> None:
    """And in each of several, whose places are told apart."""
    with pytest.raises(RequestError, match="SamplingParams"):
        llm.chat([], temperature=0.5)
    with pytest.raises(RequestError, match=r"^messages\[1\]\[0\].role is 'bot'"):
        llm.chat([USER, [{"role": "bot", "content": "a"}]])
    with pytest.raises(RequestError, match=r"^messages\[1\] is empty"):
        llm.chat([USER, []])
    with pytest.raises(RequestError, match=r"^messages is empty"):
        llm.chat_prompt([])


def test_an_engine_keeps_the_templates(text_model: TextModel, tmp_path: Path) -> None:
    """In every place that a checkpoint may have them; and a changed one makes another engine."""
    folder = Path(shutil.copytree(text_model.folder, tmp_path / "model"))
    (folder / "additional_chat_templates").mkdir()
    rag = folder / "additional_chat_templates" / "rag.jinja"
    fingerprints = set()
    for text in ("{{ messages[0].content }}!", "{{ messages[0].content }}?"):
        rag.write_text(text)
        plan = plan_build(folder, BuildConfig(backend="eager"))
        fingerprints.add(plan.fingerprint)
    engine = build_engine(plan, tmp_path / "engine")
    assert len(fingerprints) == 2
    for model in (folder, engine):
        with LLM(model, **({"backend": "eager"} if model is folder else {})) as llm:
            output = llm.chat(USER, SamplingParams(max_tokens=1), chat_template="rag")
            assert llm.tokenizer.decode(output.prompt_token_ids) == "a?"
            usual: Any = llm.chat_prompt(USER)
            assert llm.tokenizer.decode(usual["prompt_token_ids"]) == "user: a\nassistant:"
            with pytest.raises(RequestError, match=r"'rga'.*the tokenizer has: default, rag"):
                llm.chat(USER, chat_template="rga")
