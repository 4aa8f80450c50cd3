"""Every way to write prompts and sampling options, and conversations."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trtspec import LLM, SamplingParams
from trtspec.errors import CheckpointError, RequestError
from trtspec.llmapi.prompts import load_tokenizer

from ..e2e.tiny_tokenizer import save_bytes
from .conftest import TextModel

TEXT = "the cat sat"
PARAMS = SamplingParams(max_tokens=12)


def test_all_spellings_of_a_prompt(llm: LLM) -> None:
    ids = llm.tokenizer(TEXT)["input_ids"]
    spellings: list[Any] = [
        TEXT,
        ids,
        tuple(ids),
        {"prompt": TEXT},
        {"prompt_token_ids": ids},
        {"prompt": ids},
        np.array(ids),
        {"prompt_token_ids": torch.tensor(ids)},
        [np.int64(token) for token in ids],
        {"prompt": "theirs", "prompt_token_ids": ids},
    ]
    outputs = llm.generate(spellings, PARAMS)
    alone = [llm.generate(prompt, PARAMS) for prompt in spellings]
    for output in (*outputs, *alone):
        assert output.outputs[0].token_ids == alone[0].outputs[0].token_ids
        assert output.outputs[0].text == alone[0].outputs[0].text != ""
        assert output.prompt_token_ids == ids
    assert [output.prompt for output in alone] == [TEXT, None, None, TEXT, *[None] * 5, "theirs"]
    assert len({output.request_id for output in (*outputs, *alone)}) == 20


def test_text_is_the_decoded_tokens(llm: LLM) -> None:
    for seed in range(6):
        params = SamplingParams(max_tokens=40, temperature=1.0, seed=seed)
        output = llm.generate(TEXT, params).outputs[0]
        kept = output.token_ids[:-1] if output.finish_reason == "stop" else output.token_ids
        assert output.text == llm.tokenizer.decode(kept, skip_special_tokens=True)


def test_one_or_many_sampling_params(llm: LLM) -> None:
    prompts = [TEXT, "a rat", "that hat"]
    many = [SamplingParams(max_tokens=n) for n in (3, 5, 7)]
    outputs = llm.generate(prompts, many, use_tqdm=False)
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 5, 7]
    assert [output.outputs[0].finish_reason for output in outputs] == ["length"] * 3
    outputs = llm.generate(prompts, many[0])
    assert [len(output.outputs[0].token_ids) for output in outputs] == [3, 3, 3]
    assert len(llm.generate(TEXT).outputs[0].token_ids) == SamplingParams().max_tokens
    assert len(llm.generate(TEXT, [many[2]]).outputs[0].token_ids) == 7
    with pytest.raises(RequestError, match="3 prompts came with 2 SamplingParams"):
        llm.generate(prompts, many[:2])
    for wrong in ({"max_tokens": 3}, [many[0], None, None], 3):
        with pytest.raises(RequestError, match="must be SamplingParams or a list of them"):
            llm.generate(prompts, wrong)
    with pytest.raises(RequestError, match="got dict"):
        llm.generate_async(TEXT, {"max_tokens": 3})


@pytest.mark.parametrize(
    "prompt", [3, 2.5, None, b"bytes", {1, 2}, [True], object(), np.ones((2, 2), int), np.array(3)]
)
def test_what_is_no_prompt(llm: LLM, prompt: Any) -> None:
    with pytest.raises(RequestError):
        llm.generate(prompt, PARAMS)
    (output,) = llm.generate([{"prompt": prompt}], PARAMS)
    assert isinstance(output.error, RequestError)
    for mapping in ({}, {"prompt": 3, "prompt_token_ids": [1]}, {"prompt": TEXT, "tokens": [1]}):
        with pytest.raises(RequestError, match="prompt"):
            llm.generate(mapping, PARAMS)


def test_empty_and_too_long_texts(llm: LLM) -> None:
    with pytest.raises(RequestError, match="at least 1 token"):
        llm.generate("")
    with pytest.raises(RequestError, match=r"\d{3} tokens, but max_seq_len=256"):
        llm.generate("xyz " * 200)


def test_progress_bar_only_for_lists(llm: LLM, capsys: pytest.CaptureFixture[str]) -> None:
    llm.generate([TEXT], PARAMS, use_tqdm=False)
    llm.generate(TEXT, PARAMS)
    assert capsys.readouterr().err == ""
    llm.generate([TEXT, TEXT], PARAMS)
    assert "0/2" in capsys.readouterr().err


def test_chat(any_llm: LLM) -> None:
    first = [{"role": "system", "content": "be a cat"}, {"role": "user", "content": "mat?"}]
    second = [{"role": "user", "content": "hat?"}]
    written = "system: be a cat\nuser: mat?\nassistant:", "user: hat?\nassistant:"
    expected = any_llm.generate(list(written), PARAMS, use_tqdm=False)
    many = any_llm.chat([first, second], PARAMS, use_tqdm=False)
    assert [o.outputs[0].token_ids for o in many] == [o.outputs[0].token_ids for o in expected]
    assert [o.prompt_token_ids for o in many] == [o.prompt_token_ids for o in expected]
    alone = any_llm.chat(first, PARAMS)
    assert alone.outputs[0].text == expected[0].outputs[0].text
    cut = any_llm.chat(second, PARAMS, add_generation_prompt=False)
    assert cut.prompt_token_ids == any_llm.tokenizer("user: hat?\n")["input_ids"]


def test_developer_messages(any_llm: LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """OpenAI's newer word for system messages, unless the template has it too."""
    turns = [{"role": "developer", "content": "be a cat"}, {"role": "user", "content": "mat?"}]

    def text() -> str:
        prompt: Any = any_llm.chat_prompt(turns)
        return str(any_llm.tokenizer.decode(prompt["prompt_token_ids"]))

    assert text() == "system: be a cat\nuser: mat?\nassistant:"
    template = "{% for m in messages %}{{ m['role'] }};{% endfor %}{# developer, too #}"
    monkeypatch.setattr(any_llm.tokenizer, "chat_template", template)
    assert text() == "developer;user;"


def test_no_code_of_a_tokenizer_runs(text_model: TextModel, tmp_path: Path) -> None:
    """Nor is anybody asked whether it should: a config.json of a kind that transformers does not
    know may come with code of its own."""
    folder = tmp_path / "foreign"
    shutil.copytree(text_model.folder, folder)
    config = json.loads((folder / "config.json").read_text())
    config |= {"model_type": "foreign", "auto_map": {"AutoConfig": "foreign.ForeignConfig"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "foreign.py").write_text("raise SystemExit('this ran')")
    assert len(load_tokenizer(folder)) == len(load_tokenizer(text_model.folder))


def test_chat_refusals(llm: LLM, text_model: TextModel, tmp_path: Path) -> None:
    with pytest.raises(RequestError, match="refused the conversation: no robots"):
        llm.chat([{"role": "robot", "content": "x"}], PARAMS)
    for wrong in ("hello", b"hello", 3, None, {"role": "user", "content": "x"}):
        with pytest.raises(RequestError, match="a conversation is a list of messages"):
            llm.chat(wrong, PARAMS)
    assert llm.chat([], PARAMS) == []
    bare = tmp_path / "bare"
    shutil.copytree(text_model.folder, bare)
    (bare / "chat_template.jinja").unlink(missing_ok=True)
    save_bytes(bare, 300, chat=False)
    with (
        LLM(bare, backend="eager") as without,
        pytest.raises(RequestError, match="no chat template"),
    ):
        without.chat([{"role": "user", "content": "x"}], PARAMS)


def test_a_changed_tokenizer_is_not_served_from_the_cache(
    text_model: TextModel, tmp_path: Path
) -> None:
    """The engine of a checkpoint is found again by its weights AND its tokenizer."""
    folder = tmp_path / "model"
    shutil.copytree(text_model.folder, folder)
    for path in folder.glob("tokenizer*"):
        path.unlink()
    with pytest.raises(CheckpointError, match=r"holds no tokenizer .* skip_tokenizer_init"):
        LLM(folder, backend="eager")
    with LLM(folder, backend="eager", skip_tokenizer_init=True) as llm:
        assert llm.tokenizer is None
        output = llm.generate([1, 2, 3], PARAMS).outputs[0]
        assert (len(output.token_ids), output.text) == (12, "")
    with LLM(folder, backend="eager", tokenizer=str(text_model.folder)) as llm:
        assert llm.generate(TEXT, PARAMS).outputs[0].text != ""
    for size in (270, 275):
        save_bytes(folder, size)
        with LLM(folder, backend="eager") as llm:
            assert len(llm.tokenizer) == size
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="cannot be read"):
        LLM(folder, backend="eager")
