"""What a program shows of an LLM and its outputs."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from trtspec import LLM, SamplingParams
from trtspec.builder.tokenizer import read_tokenizer
from trtspec.log import logger
from trtspec.train.self_writer import _duration

from .conftest import TextModel


def test_an_output_is_readable(text_model: TextModel) -> None:
    with text_model.open("ngram") as llm:
        params = SamplingParams(max_tokens=24, temperature=0, ignore_eos=True, seed=7)
        output = llm.generate("the cat sat on the mat, the cat sat", params)
    said, completion = repr(output), output.outputs[0]
    assert str(output) == said and repr(completion) in said
    assert "prompt='the cat sat on the mat, the cat sat'" in said
    assert f"text={completion.text!r}" in said and "finish_reason='length'" in said
    beginning = str(completion.token_ids[:8]).rstrip("]")
    assert f"token_ids={beginning}, ... 16 more]" in said
    assert f"num_steps={output.metrics.num_steps}" in said and "acceptance_length=" in said
    assert " at 0x" not in said and "None" not in said and "time" not in said
    assert len(said) < 900


def test_a_long_text_brings_no_warning_of_others(
    text_model: TextModel,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tokenizer = read_tokenizer(text_model.folder)
    tokenizer.model_max_length = 4
    peer = logging.getLogger("transformers")
    monkeypatch.setattr(peer, "propagate", True)
    assert len(tokenizer("the cat sat on the mat")["input_ids"]) > 4
    assert not caplog.records and capfd.readouterr().err == ""


@pytest.mark.usefixtures("no_logging")
def test_a_build_is_told_unless_it_is_silenced(
    text_model: TextModel, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trtspec.log.SHOWN_AFTER", {True: 0.0, False: 0.0})
    for number, verbose in enumerate((True, False)):
        with LLM(text_model.folder, backend="eager", max_seq_len=70 + number, verbose=verbose):
            pass
        said = capsys.readouterr().err
        assert ("build an engine of text ... (once: it is kept in " in said) == verbose
        assert verbose or said == ""


@pytest.fixture
def no_logging() -> Iterator[None]:
    """As in a script that sets up none."""
    before, level = logger.handlers, logger.level
    logger.handlers = []
    logger.setLevel(logging.NOTSET)
    yield
    logger.handlers = before
    logger.setLevel(level)


@pytest.mark.parametrize(
    ("tokens", "speed", "said"), [(6000, 50.0, "2 min"), (10**6, 0.0, "unknown time")]
)
def test_how_long_it_takes(tokens: int, speed: float, said: str) -> None:
    assert _duration(tokens, speed) == said
