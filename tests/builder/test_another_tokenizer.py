"""Engines of checkpoints with a tokenizer other than their own, which they carry then."""

from __future__ import annotations

import json
import logging
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from transformers import AutoTokenizer

from trtspec import LLM, build
from trtspec.bench.doctor.pair_checks import model_checks
from trtspec.builder.locate import CACHE_VARIABLE
from trtspec.builder.plan import plan_build
from trtspec.builder.token_lists import keep_written
from trtspec.builder.tokenizer import read_tokenizer
from trtspec.commands import build as build_command
from trtspec.config.build_config import BuildConfig
from trtspec.engine.folder import EngineConfig
from trtspec.errors import CheckpointError, ConfigError
from trtspec.log import logger
from trtspec.speculative.options import parse_speculative_config
from trtspec.train.calibration import require_tokenizer
from trtspec.train.data import find_source, mask_token
from trtspec.train.options import TrainOptions
from trtspec.train.own_vocabulary import let_write
from trtspec.train.target import TrainingTarget

from ..e2e.helpers import TinyModels, chain
from ..e2e.tiny_tokenizer import END, save_bytes, save_words

EAGER = BuildConfig("float32", 2, 64, backend="eager")
OPTIONS = {"backend": "eager", "dtype": "float32", "max_batch_size": 2, "max_seq_len": 64}


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    """The program sets up logging."""
    yield
    logger.handlers = []
    logger.setLevel(logging.NOTSET)


@pytest.fixture
def bare(models: TinyModels) -> Path:
    """A checkpoint without a tokenizer."""
    return models.folder("llama")


@pytest.fixture
def spoken(tmp_path: Path) -> Path:
    """A tokenizer of bytes, with an end and a chat template that the checkpoint does not know."""
    folder = tmp_path / "tokenizer"
    folder.mkdir()
    save_bytes(folder, 300)
    return folder


def end_of(folder: Path) -> int:
    return int(AutoTokenizer.from_pretrained(folder).convert_tokens_to_ids(END))


def test_an_engine_carries_it(bare: Path, spoken: Path, tmp_path: Path) -> None:
    """Built by the function and by the program, to the same engine; no LLM needs to be told."""
    folder = build(bare, output_dir=tmp_path / "engine", tokenizer=str(spoken), **OPTIONS)
    flags = ["--checkpoint_dir", str(bare), "--output_dir", str(tmp_path / "again")]
    flags += ["--tokenizer", str(spoken), "--backend", "eager", "--dtype", "float32"]
    assert build_command.main([*flags, "--max_batch_size", "2", "--max_seq_len", "64"]) == 0
    engine = EngineConfig.read(folder)
    assert engine == EngineConfig.read(tmp_path / "again")
    assert end_of(spoken) in engine.target.eos_token_ids
    shutil.rmtree(spoken)
    with LLM(folder) as llm:
        chat = [{"role": "user", "content": "the cat"}]
        assert llm.tokenizer.decode(llm.chat_prompt(chat)["prompt_token_ids"]).startswith("user")


def test_another_one_is_another_engine(bare: Path, spoken: Path, tmp_path: Path) -> None:
    plans = [plan_build(bare, EAGER, tokenizer=given) for given in (None, spoken)]
    (spoken / "chat_template.jinja").write_text("another")
    plans.append(plan_build(bare, EAGER, tokenizer=spoken))
    assert len({plan.fingerprint for plan in plans}) == 3
    assert str(spoken) in plans[1].describe()


def test_what_is_wrong_is_named(bare: Path, spoken: Path, tmp_path: Path) -> None:
    for place in (tmp_path / "missing", bare):
        with pytest.raises(CheckpointError, match=f"tokenizer '{place}' is no folder with"):
            plan_build(bare, EAGER, tokenizer=place)
    folder = build(bare, output_dir=tmp_path / "engine", tokenizer=str(spoken), **OPTIONS)
    assert build(folder, tokenizer=str(spoken)) == folder
    (spoken / "chat_template.jinja").write_text("another")
    with pytest.raises(ConfigError, match="is not the one in the engine folder"):
        build(folder, tokenizer=str(spoken))


def test_drafts_are_compared_with_it(models: TinyModels, spoken: Path, tmp_path: Path) -> None:
    draft = Path(shutil.copytree(models.folder("llama"), tmp_path / "draft"))
    save_words(draft, [f"w{i}" for i in range(300)])
    config = parse_speculative_config(chain(draft, 2))
    with pytest.raises(ConfigError, match="the draft's tokenizer differs"):
        plan_build(models.folder("llama"), EAGER, config, tokenizer=spoken)
    plan_build(models.folder("llama"), EAGER, config)


def test_a_drafts_vocabulary_is_counted_by_it(
    bare: Path, spoken: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a text, and of what the target writes by it."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("zebra" * 40)
    asked = {**chain(bare, 2), "vocabulary": 40, "vocabulary_text": str(tmp_path / "text.txt")}
    config = parse_speculative_config(asked)
    with pytest.raises(ConfigError, match="has no tokenizer to read"):
        plan_build(bare, EAGER, config)
    (draft,) = plan_build(bare, EAGER, config, tokenizer=spoken).drafts
    assert {*read_tokenizer(spoken)("zebra")["input_ids"]} <= {*draft.tensors["token_map"].tolist()}
    keep_written(bare, [[1, 2] * 50], spoken)
    config = parse_speculative_config({**chain(bare, 2), "vocabulary": "auto"})
    let_write(bare, config, spoken)  # was done
    assert plan_build(bare, EAGER, config, tokenizer=spoken).drafts
    with pytest.raises(ConfigError, match="has not written yet"):
        plan_build(bare, EAGER, config)
    with pytest.raises(ConfigError, match="or a tokenizer"):
        let_write(bare, config)


def test_it_stands_in_for_a_damaged_one(bare: Path, spoken: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(bare, tmp_path / "model"))
    (folder / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match=r"give another \(tokenizer\)"):
        plan_build(folder, EAGER)
    assert plan_build(folder, EAGER, tokenizer=spoken).tokenizer_dir == spoken


def test_the_doctor_and_training_take_it(bare: Path, spoken: Path, tmp_path: Path) -> None:
    checks = {check.name: check for check in model_checks(str(bare), EAGER, str(spoken))[0]}
    assert "TokenizersBackend" in checks["tokenizer"].detail or "Fast" in checks["tokenizer"].detail
    target = TrainingTarget.open(bare, str(spoken))
    assert end_of(spoken) in target.config.eos_token_ids
    options = TrainOptions("eagle3", str(bare), tmp_path / "head", tokenizer=str(spoken))
    source = find_source(options, target, (0,))
    (spoken / "special_tokens_map.json").write_text("{}")
    assert find_source(options, target, (0,)).key != source.key
    assert mask_token(target) != end_of(spoken)
    config = json.loads((spoken / "tokenizer_config.json").read_text())
    (spoken / "tokenizer_config.json").write_text(json.dumps(config | {"pad_token": END}))
    assert mask_token(target) == end_of(spoken)
    with pytest.raises(ConfigError, match="--tokenizer"):
        find_source(TrainOptions("eagle3", str(bare), tmp_path / "head"), target, (0,))
    require_tokenizer(target, spoken)
    with pytest.raises(ConfigError, match="--tokenizer"):
        require_tokenizer(target, None)
