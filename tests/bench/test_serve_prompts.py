"""Prompts of a load: reproducible, spread over a file, and new at every point where possible."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from trtspec.bench.corpus import standard_library
from trtspec.bench.serving.prompts import RANDOM, choose_prompts, fingerprint
from trtspec.errors import ConfigError


@pytest.fixture
def questions(tmp_path: Path) -> str:
    """Two categories of four questions."""
    entries = [{"category": "ab"[i // 4], "turns": [f"{'ab'[i // 4]}{i}", "x"]} for i in range(8)]
    (tmp_path / "question.jsonl").write_text("\n".join(map(json.dumps, entries)))
    return str(tmp_path / "question.jsonl")


def test_random_words_are_those_of_their_seed() -> None:
    chosen = choose_prompts(RANDOM, 5, 2, 100, seed=1)
    assert chosen == choose_prompts(RANDOM, 5, 2, 100, seed=1) and not chosen.notes
    texts = [text for each in chosen.sets for text in each]
    assert [len(text) for text in texts] == [100] * 10 and len(set(texts)) == 10
    assert not set(texts) & set(choose_prompts(RANDOM, 10, 1, 100, seed=2).sets[0])
    assert all(set(text) <= set("abcdefghijklmnopqrstuvwxyz ") for text in texts)


@pytest.mark.slow
def test_code_is_held_out_and_every_piece_is_new() -> None:
    texts = choose_prompts("stdlib", 150, 1, 300, seed=0).sets[0]
    assert [len(text) for text in texts] == [300] * 150 and len(set(texts)) == 150
    whole = "\0".join(standard_library()[1])
    assert all(text in whole for text in texts)
    with pytest.raises(ConfigError, match="no file of stdlib has 100000000 characters"):
        choose_prompts("stdlib", 1, 1, 10**8, seed=0)


def test_every_point_of_a_sweep_gets_new_prompts_of_all_categories(questions: str) -> None:
    chosen = choose_prompts(questions, 4, 2, 100, seed=0)
    assert not chosen.notes and len({text for each in chosen.sets for text in each}) == 8
    assert [sorted(text[0] for text in each) for each in chosen.sets] == [list("aabb")] * 2


def test_too_few_prompts_are_said_to_be_repeated(questions: str) -> None:
    both = choose_prompts(questions, 6, 2, 100, seed=0)
    assert both.sets[0] == both.sets[1] and len(set(both.sets[0])) == 6
    assert "every point asks the same prompts" in both.notes[0] and "repeated" not in both.notes[0]
    many = choose_prompts(questions, 20, 1, 100, seed=0)
    assert len(many.sets[0]) == 20 and many.sets[0][:8] == many.sets[0][8:16]
    assert "has 8 prompts for 20 requests: they are repeated" in many.notes[0]
    with pytest.raises(ConfigError, match="cannot be read"):
        choose_prompts(questions + "x", 1, 1, 100, seed=0)


def test_fingerprints_tell_texts_and_their_order_apart() -> None:
    assert fingerprint(["a", "b"]) == fingerprint(["a", "b"])
    assert len({fingerprint(p) for p in (["a", "b"], ["b", "a"], ["ab"], ["a", "b", ""], [])}) == 5
