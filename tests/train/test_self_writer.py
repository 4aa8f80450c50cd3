"""What the target is asked to write, what is kept of it, and that a kill changes none of it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from jinja2 import TemplateError

from trtspec.config.sampling import SamplingParams
from trtspec.errors import ConfigError, TrainingError
from trtspec.llmapi.llm import LLM
from trtspec.train.openings import (
    BaseOpenings,
    ChatOpenings,
    GivenPrompts,
    Openings,
    question_head,
)
from trtspec.train.seeds import SEEDS, SYSTEMS, Seed
from trtspec.train.self_writer import ROUND, TEMPERATURES, SelfWriter
from trtspec.train.text_store import TextStore

from .scripted_llm import END, ScriptedLLM, WordTokenizer, own_words

SMALL = 16
"""Texts of a round where hardly any token is missing."""
Write = Callable[[Sequence[int], SamplingParams], list[int]]


def writer(
    folder: Path,
    openings: Callable[[LLM], Openings] = ChatOpenings,
    write: Write = own_words,
    fails_at: int | None = None,
) -> tuple[SelfWriter, TextStore, ScriptedLLM]:
    store = TextStore(folder)
    store.begin()
    llm = ScriptedLLM(folder, write, fails_at)
    made = openings(cast(LLM, llm))
    return SelfWriter(cast(LLM, llm), made, store, seed=7, max_tokens=64), store, llm


def files(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_questions_then_answers(tmp_path: Path) -> None:
    write, store, llm = writer(tmp_path)
    write.write(1)
    questions, answers = llm.requests[:SMALL], llm.requests[SMALL:]
    assert len(answers) == SMALL == len(store.texts)
    assert {tuple(prompt) for prompt, _ in questions} == {(2,)}, (
        "the template up to the user's turn"
    )
    assert all(params.temperature == 1.0 for _, params in questions)
    assert len({params.seed for _, params in llm.requests}) == 2 * SMALL
    assert [params.temperature for _, params in answers] == list(TEMPERATURES) * (SMALL // 4)
    for (prompt, params), (asked, drawn), text in zip(answers, questions, store.texts, strict=True):
        assert prompt == [2, *own_words(asked, drawn)[:-1], 3]
        assert params.max_tokens == 64 - len(prompt)
        assert text.prompt == len(prompt)
        assert text.tokens == len(prompt) + len(own_words(prompt, params)) - 1
    names = {text.file for text in store.texts}
    assert {path.name for path in tmp_path.iterdir()} == names | {"rounds.jsonl"}


class Recorded(WordTokenizer):
    """Keeps the texts that it is given, as their own ids."""

    def __init__(self, system: bool = True) -> None:
        self.texts: list[str] = []
        self.system = system

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        self.texts.append(text)
        return {"input_ids": [2 + len(self.texts)]}

    def apply_chat_template(self, messages: Sequence[Any], **options: Any) -> str:
        if messages[0]["role"] == "system" and not self.system:
            raise TemplateError("no system's turn here")
        return super().apply_chat_template(messages, **options)


@pytest.mark.parametrize("system", [True, False])
def test_questions_begin_in_many_ways(tmp_path: Path, system: bool) -> None:
    """Each first words with each system's turn and each temperature of answers; the question that
    is answered has both. A template without a system's turn goes without."""
    assert math.gcd(len(SEEDS), len(SYSTEMS)) == 1
    assert math.gcd(len(TEMPERATURES), len(SEEDS) * len(SYSTEMS)) == 1
    llm = ScriptedLLM(tmp_path)
    llm.tokenizer = tokenizer = Recorded(system)
    made = ChatOpenings(cast(LLM, llm))
    for index in (0, 1, 2, 7, 3 * len(SEEDS) + 2):
        seed, words = SEEDS[index % len(SEEDS)], SYSTEMS[index % len(SYSTEMS)]
        head = f"<system>{words}<user>" if words and system else "<user>"
        begun = made.beginning(index)
        assert begun is not None and tokenizer.texts[-1] == head + seed.words
        assert begun.prompt == [2 + len(tokenizer.texts)]
        assert begun.must_end is not seed.pastes
        opening = made.prompt(index, [9], " w9\N{REPLACEMENT CHARACTER}")
        assert (
            opening is not None and opening[1] == tokenizer.texts[-1] == f"{seed.words} w9".strip()
        )


def test_killed_between_rounds_or_within(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Goes on with the same texts as one that was never cut short."""
    monkeypatch.setattr("trtspec.train.self_writer.ROUND", 32)
    write, whole, _ = writer(tmp_path / "whole")
    write.write(3000)
    assert whole.num_begun == 32 + 32 + SMALL, "no more than are needed in the last round"
    for fails_at in (35, 64, 103):
        folder = tmp_path / f"cut-{fails_at}"
        write, store, _ = writer(folder, fails_at=fails_at)
        with pytest.raises(TrainingError, match=r"no space left.*tokens are kept in.*same command"):
            write.write(3000)
        assert store.num_begun == 32 * (fails_at // 64)
        (folder / "random-99.safetensors").write_text("of a process that was killed")
        again, store, _ = writer(folder)
        again.write(3000)
        assert files(folder) == files(tmp_path / "whole")
    write, more, _ = writer(tmp_path / "whole")
    write.write(5000)
    assert more.texts[: len(whole.texts)] == whole.texts, "more tokens are added to those there"
    assert more.num_tokens >= 5000


def test_dropped_texts_leave_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Duplicates, questions without an end and loops; each is counted under its rule."""

    def write(prompt: Sequence[int], params: SamplingParams) -> list[int]:
        index = (params.seed or 0) % 2**40 // 2
        if len(prompt) > 1:
            return [9] * 50 if index % 8 == 0 else own_words(prompt, params)
        if index % 4 == 1:
            return own_words(prompt, params)[:-1]
        return [40, 41, 42, 43, 44, END] if index % 4 == 2 else own_words(prompt, params)

    monkeypatch.setattr("trtspec.train.openings.SEEDS", (Seed(""),))
    made, store, _ = writer(tmp_path, write=write)
    made.write(1)
    quarter = SMALL // 4
    assert store.dropped == {
        "unfinished": quarter, "duplicate": quarter - 1, "loop": SMALL // 8,
    }  # fmt: skip
    assert len(store.texts) == SMALL - sum(store.dropped.values())
    assert len(list(tmp_path.iterdir())) == len(store.texts) + 1


def test_a_target_that_writes_nothing_worth_keeping(tmp_path: Path) -> None:
    made, store, _ = writer(tmp_path, write=lambda prompt, params: [9] * 50)
    with pytest.raises(TrainingError, match=r"in each of 3 rounds.*unfinished.*--from_base"):
        made.write(1000)
    assert not store.texts and store.num_begun > 3 * SMALL


def test_base_model(tmp_path: Path) -> None:
    """From the beginning of a text: 32 sampled tokens, then on from there."""
    made, store, llm = writer(
        tmp_path, BaseOpenings, lambda p, s: (own_words(p, s)[:-1] * 2)[: s.max_tokens]
    )
    made.write(1)
    assert all(prompt == [0] and params.max_tokens == 32 for prompt, params in llm.requests[:SMALL])
    assert llm.requests[SMALL][0] == [0, *(own_words([0], llm.requests[0][1])[:-1] * 2)[:32]]
    assert store.texts[0].prompt == 33


@pytest.mark.parametrize("chat", [False, True])
def test_given_prompts(tmp_path: Path, chat: bool) -> None:
    """Each once; the writer stops when they are used up, however many tokens are wanted."""
    prompts = [f"w{i} w{i + 1}" for i in range(2, 2 + ROUND + 10)]
    prompts[5] = prompts[4]
    made, store, llm = writer(tmp_path, lambda llm: GivenPrompts(llm, prompts, chat))
    made.write(10**9)
    assert len(store.texts) == len(prompts) - 1 == len(llm.requests)
    assert llm.requests[0][0] == ([2, 2, 3, 3] if chat else [2, 3])
    assert store.dropped == {"duplicate": 1}


def test_templates_that_will_not_do() -> None:
    assert question_head(WordTokenizer()) == "<user>"
    without, hides = WordTokenizer(), WordTokenizer()
    without.chat_template = None
    with pytest.raises(ConfigError, match="no chat template; let the target write on"):
        question_head(without)

    def nothing(messages: Any, **_: Any) -> str:
        return "<user>"

    hides.apply_chat_template = nothing  # type: ignore[method-assign]
    with pytest.raises(ConfigError, match="does not say where a user's turn begins"):
        question_head(hides)
