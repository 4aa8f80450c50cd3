"""A draft whose network was made for shorter texts than its target stops drafting for a text that
becomes longer, and says so; the text goes on."""

from __future__ import annotations

import json
import logging
import shutil
from pathlib import Path

import pytest

from trtspec import SamplingParams
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.speculative.options import parse_speculative_config

from .every_method import METHODS, PROMPTS, Made
from .helpers import TinyModels, assert_no_leak, open_llm, tokens, watch

LONGEST = 36
SHORT, LONG = PROMPTS[4][:10], PROMPTS[6]
"""Of 10 and of 40 tokens."""
PARAMS = [SamplingParams(40, ignore_eos=True, temperature=t, seed=3) for t in (0.0, 0.8)]


@pytest.fixture(params=["chain", "eagle3", "pard2", "dflash"])
def made(request: pytest.FixtureRequest, models: TinyModels, tmp_path: Path) -> Made:
    """A target, and a draft for texts of at most `LONGEST` tokens."""
    folder, speculation = METHODS[request.param](models, tmp_path)
    assert speculation is not None
    draft = shutil.copytree(speculation["model"], tmp_path / "short")
    config = json.loads((draft / "config.json").read_text())
    config["max_position_embeddings"] = LONGEST
    (draft / "config.json").write_text(json.dumps(config))
    return folder, {**speculation, "model": str(draft)}


def test_texts_outgrow_a_draft(made: Made, caplog: pytest.LogCaptureFixture) -> None:
    folder, speculation = made
    with open_llm(folder, max_num_tokens=32) as llm:
        expected = [tokens(llm.generate([SHORT, LONG], p, use_tqdm=False)) for p in PARAMS]
    with open_llm(folder, speculation, max_num_tokens=32) as llm:
        steps = watch(llm)
        with caplog.at_level(logging.WARNING, logger="trtspec"):
            found = [tokens(llm.generate([SHORT, LONG], p, use_tqdm=False)) for p in PARAMS]
        assert found == expected
        assert_no_leak(llm)
        assert llm.get_metrics()["num_texts_over_draft"] == 4
    said = [r.message for r in caplog.records if "goes on without drafts" in r.message]
    assert len(said) == 1 and f"is for {LONGEST}" in said[0] and "max_model_len" in said[0]
    for step in steps:
        lengths = [item.start + item.num_rows for item in step.items]
        if all(length >= LONGEST for length in lengths):
            assert step.draft_calls == 0
        elif step.only_generates and min(lengths) < LONGEST - 1:
            assert step.draft_calls > 0


@pytest.mark.parametrize("made", ["eagle3", "pard2"], indirect=True)
def test_texts_that_outgrow_a_draft_are_counted_with_steps_ahead(
    made: Made, caplog: pytest.LogCaptureFixture
) -> None:
    folder, speculation = made
    params = [*PARAMS, SamplingParams(1)]  # a text that ends with its first token needs no drafts
    counts, said = [], []
    for ahead in (0, 2):
        caplog.clear()
        with (
            open_llm(folder, speculation, max_num_tokens=32, steps_ahead=ahead) as llm,
            caplog.at_level(logging.WARNING, logger="trtspec"),
        ):
            for each in params:
                llm.generate([SHORT, LONG], each, use_tqdm=False)
            assert_no_leak(llm)
            counts.append(llm.get_metrics()["num_texts_over_draft"])
        said.append(["goes on without drafts" in r.message for r in caplog.records].count(True))
    assert counts == [4, 4]
    assert said == [1, 1]


def test_another_length_can_be_asked_for(made: Made) -> None:
    folder, speculation = made
    counts = []
    for limit in (None, 512, 20):
        with open_llm(folder, {**(speculation or {}), "max_model_len": limit}) as llm:
            llm.generate([SHORT, LONG], PARAMS[0], use_tqdm=False)
            counts.append([llm.get_metrics()[k] for k in ("num_texts_over_draft", "num_drafts")])
    assert [over for over, _ in counts] == [2, 0, 2]
    assert counts[1][1] > counts[0][1] > counts[2][1] > 0


def test_a_plan_says_it(made: Made) -> None:
    folder, speculation = made
    build = BuildConfig("float32", backend="eager")
    for limit, said in ((None, "its max_position_embeddings"), (20, "max_model_len")):
        config = parse_speculative_config({**(speculation or {}), "max_model_len": limit})
        plan = plan_build(folder, build, config, True)
        longest = limit or LONGEST
        assert f"the draft drafts in texts of up to {longest} tokens: {said}" in plan.describe()
