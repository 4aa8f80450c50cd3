"""Data sets as they come: Spec-Bench's and MT-Bench's questions, prompts, text; bad lines named."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from trtspec.bench.data.dataset import (
    Question,
    encode_questions,
    held_out_prompts,
    read_questions,
    spread,
)
from trtspec.errors import ConfigError

from ..e2e.tiny_tokenizer import save_bytes


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("tokenizer")
    save_bytes(folder, 300)
    return AutoTokenizer.from_pretrained(folder)


def test_questions_of_spec_bench(tmp_path: Path) -> None:
    file = tmp_path / "question.jsonl"
    entries = [
        {"question_id": 81, "category": "writing", "turns": ["Compose\na post.", "Rewrite it."]},
        {"prompt": "def f("},
        {"kind": "edit", "prompt": "Rename f."},
    ]
    file.write_text("\n\n".join(map(json.dumps, entries)) + "\n")
    assert read_questions(file) == [
        Question("81", "Compose\na post.", "writing", is_chat=True),
        Question("3", "def f("),
        Question("5", "Rename f.", "edit", is_chat=True),
    ]


def test_plain_text_has_a_prompt_a_line(tmp_path: Path) -> None:
    file = tmp_path / "prompts.txt"
    file.write_text("one two\n\n  three\n")
    assert read_questions(file) == [Question("1", "one two"), Question("3", "  three")]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"turns": ["a"', r"set\.jsonl, line 2 is not JSON"),
        ('["a"]', r"line 2 holds a list; an entry is a JSON object"),
        ('{"turns": []}', r"line 2: turns must be a list of at least one text, got \[\]"),
        ('{"turns": "a"}', r"line 2: turns must be a list"),
        ('{"turns": [3]}', r"line 2 has no text"),
        ('{"question": "a", "id": 4}', r"line 2 has no text; .*its keys are question, id"),
        ('{"prompt": ""}', r"line 2 has no text"),
    ],
)
def test_a_bad_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    file = tmp_path / "set.jsonl"
    file.write_text(f'{{"prompt": "a"}}\n{line}\n')
    with pytest.raises(ConfigError, match=message):
        read_questions(file)


def test_missing_and_empty_files(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.jsonl cannot be read"):
        read_questions(tmp_path / "none.jsonl")
    (tmp_path / "empty.txt").write_text("\n \n")
    with pytest.raises(ConfigError, match="holds no prompt"):
        read_questions(tmp_path / "empty.txt")
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigError, match="cannot be read"):
        read_questions(tmp_path / "binary.txt")


def test_a_part_of_a_sorted_file_meets_every_category() -> None:
    questions = [Question(str(i), "x", category=str(i // 10)) for i in range(60)]
    assert [q.category for q in spread(questions, 6)] == list("012345")
    assert spread(questions, 100) == spread(questions, None) == questions


def test_conversations_go_through_the_chat_template(tokenizer: Any) -> None:
    questions = [Question("1", "the cat sat", is_chat=True), Question("2", "the cat sat")]
    chat, plain = encode_questions(questions, tokenizer)
    assert tokenizer.decode(chat.token_ids) == "user: the cat sat\nassistant:"
    assert tokenizer.decode(plain.token_ids) == "the cat sat"
    bare, _ = encode_questions(questions, tokenizer, chat=False)
    assert bare.token_ids == plain.token_ids


def test_long_texts_are_cut_and_the_template_is_not(tokenizer: Any) -> None:
    questions = [Question("1", "the cat sat " * 9, is_chat=True), Question("2", "the cat " * 9)]
    chat, plain = encode_questions(questions, tokenizer, max_tokens=5)
    assert len(plain.token_ids) == 5
    text = tokenizer.decode(chat.token_ids)
    assert text.startswith("user: the cat") and text.endswith("\nassistant:") and len(text) < 60


def test_held_out_code(tokenizer: Any) -> None:
    prompts = held_out_prompts(tokenizer, 3, 20)
    assert [len(prompt.token_ids) for prompt in prompts] == [20, 20, 20]
    assert all(p.question.text.startswith(tokenizer.decode(p.token_ids)) for p in prompts)
