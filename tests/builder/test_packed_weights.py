"""Engines of one target share what was packed for the first, and what was measured of it."""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path

import pytest

import trtspec.builder.build_engine as build_module
from trtspec.backends.shape import TARGET, WEIGHTS_NAME
from trtspec.builder.build_engine import build_engine
from trtspec.builder.locate import CACHE_VARIABLE
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.engine.folder import EngineConfig
from trtspec.models.causal_lm import CausalLM
from trtspec.speculative.options import parse_speculative_config

from ..e2e.helpers import TinyModels, chain

INT8 = BuildConfig("float32", 2, 64, backend="eager", weight_dtype="int8")


@pytest.fixture
def work(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[str]:
    """What was packed and compared, in an empty cache folder."""
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    done: list[str] = []
    pack, compare = build_module.target_module, build_module.text_report
    compare_draft = build_module.draft_report

    def packed(engine: EngineConfig) -> CausalLM:
        done.append("pack")
        return pack(engine)

    def compared(*args: object) -> str:
        done.append("compare")
        return compare(*args)  # type: ignore[arg-type]

    def compared_draft(*args: object) -> str:
        done.append("compare draft")
        return compare_draft(*args)  # type: ignore[arg-type]

    monkeypatch.setattr(build_module, "target_module", packed)
    monkeypatch.setattr(build_module, "text_report", compared)
    monkeypatch.setattr(build_module, "draft_report", compared_draft)
    return done


def test_another_draft_batch_or_length(
    models: TinyModels, tmp_path: Path, work: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """The same bytes and the same lines, without the work."""
    target, said = models.folder("llama"), []
    caplog.set_level(logging.INFO, logger="trtspec")
    drafting = {**chain(models.draft("llama"), 3), "weight_dtype": "int8"}
    configs = [None, drafting, {**drafting, "num_speculative_tokens": 2}]
    files = []
    for i, spec in enumerate(configs):
        caplog.clear()
        build = replace(INT8, max_batch_size=1 + i, max_seq_len=64 + 16 * i)
        plan = plan_build(target, build, parse_speculative_config(spec) if spec else None)
        engine = build_engine(plan, tmp_path / f"engine{i}")
        files.append((engine / TARGET / WEIGHTS_NAME).read_bytes())
        said.append([m for m in caplog.messages if "weights of the target: " in m and "int8" in m])
    assert work == ["pack", "compare", "compare draft"]
    assert files[0] == files[1] == files[2]
    assert len(said[0]) == 2 and said[0] == said[1] == said[2]


def test_other_weights_are_packed(models: TinyModels, tmp_path: Path, work: list[str]) -> None:
    """Of another format; and where the file that was packed has changed or gone."""
    target = models.folder("llama")
    build_engine(plan_build(target, INT8), tmp_path / "a")
    build_engine(plan_build(target, replace(INT8, weight_dtype="int4")), tmp_path / "b")
    assert work == ["pack", "compare"] * 2
    file = tmp_path / "a" / TARGET / WEIGHTS_NAME
    packed = file.read_bytes()
    file.write_bytes(bytes(len(packed)))
    again = build_engine(plan_build(target, replace(INT8, max_batch_size=3)), tmp_path / "c")
    assert work[4:] == ["pack"]
    assert (again / TARGET / WEIGHTS_NAME).read_bytes() == packed
