"""A speculative method that another package adds drafts, is built and is named like any other, with
nothing of trtspec changed."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams
from trtspec.bench.runs.forward import ROLLOUT, CallShape, ForwardBench
from trtspec.bench.runs.methods import fitting_methods
from trtspec.builder.available_drafts import available_drafts
from trtspec.builder.checkpoints import describe_draft
from trtspec.builder.plan import plan_build
from trtspec.commands.build import make_parser
from trtspec.config.build_config import BuildConfig
from trtspec.errors import CheckpointError, ConfigError
from trtspec.llmapi.engines import build
from trtspec.speculative import registry
from trtspec.speculative.options import parse_speculative_config

from ..e2e.eagle_heads import V, known_text
from ..e2e.helpers import TinyModels, assert_no_leak, ngram, open_llm, random_prompt, tokens
from ..other_package import installer
from .toy_heads import save_pair, toy

METHOD = "tests.speculative.toy_method.method:TOY"
BODIES = [random_prompt(940 + i, n, V - 2) for i, n in enumerate((20, 3, 9))]
RIGHT, WRONG = ([[mode, *(t + 2 for t in body)] for body in BODIES] for mode in (0, 1))
PROMPTS = [*RIGHT, *WRONG]
PARAMS = [SamplingParams(33, temperature=0.8 * (i % 2), seed=i) for i in range(len(PROMPTS))]
KNOWN = [known_text(prompt, 33) for prompt in PROMPTS]
OPTIONS: dict[str, Any] = {"dtype": "float32", "skip_tokenizer_init": True}


def forget() -> None:
    registry.methods.cache_clear()
    registry.draft_kinds.cache_clear()


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    yield installer(tmp_path / "site", monkeypatch, registry.ENTRY_POINTS, forget)
    monkeypatch.undo()
    forget()


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Target and toy."""
    return save_pair(tmp_path_factory.mktemp("pair"))


@pytest.mark.parametrize(
    "backend",
    [
        "eager",
        pytest.param("onnx", marks=pytest.mark.slow),
        pytest.param("aoti", marks=[pytest.mark.slow, pytest.mark.matrix]),
    ],
)
def test_it_drafts(
    pair: tuple[Path, Path], tmp_path: Path, install: Callable[[str], None], backend: str
) -> None:
    """Where it is right all it guesses is accepted, and the text is always the target's own."""
    if backend == "onnx":
        pytest.importorskip("onnxruntime")
    target, draft = pair
    with pytest.raises(ConfigError, match="unknown speculative method 'Toy'"):
        LLM(target, toy(draft), backend=backend, **OPTIONS)
    install(METHOD)
    config = toy(draft, 4, patience=2)
    with LLM(target, config, backend=backend, **OPTIONS) as llm:
        outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
        assert tokens(outputs) == KNOWN
        for output in outputs[: len(RIGHT)]:
            assert output.metrics.num_accepted_tokens == output.metrics.num_draft_tokens > 24
        for output in outputs[len(RIGHT) :]:
            assert output.metrics.num_accepted_tokens == 0
            assert output.metrics.num_draft_tokens == 2 * 4, "then its patience is at an end"
        assert_no_leak(llm)
    folder = build(target, config, tmp_path / "engine", backend=backend, **OPTIONS)
    with LLM(folder, False, **OPTIONS) as llm:
        assert tokens(llm.generate(PROMPTS, PARAMS, use_tqdm=False)) == KNOWN
    with LLM(folder, **OPTIONS) as llm:  # what it was built for
        assert tokens(llm.generate(PROMPTS, PARAMS, use_tqdm=False)) == KNOWN
        assert llm.get_metrics()["acceptance_length"] > 1.5


def test_beside_another_method(pair: tuple[Path, Path], install: Callable[[str], None]) -> None:
    install(METHOD)
    target, draft = pair
    for config in (
        {"method": "hybrid", "drafters": [ngram(3), toy(draft)]},
        {"method": "auto", "model": str(draft)},
        toy(draft, adaptive=True),
    ):
        with open_llm(target, config) as llm:
            assert tokens(llm.generate(PROMPTS, PARAMS, use_tqdm=False)) == KNOWN
            assert llm.get_metrics()["num_draft_calls"] > 0
            assert_no_leak(llm)


def test_its_calls_are_timed(
    pair: tuple[Path, Path], tmp_path: Path, install: Callable[[str], None]
) -> None:
    install(METHOD)
    folder = build(pair[0], toy(pair[1]), tmp_path / "engine", backend="eager", **OPTIONS)
    shape = CallShape(ROLLOUT, batch=2, rows=1, context=8)
    bench = ForwardBench(folder, parse_speculative_config(toy(pair[1])), [shape])
    (call,) = bench.measure(shape, 0.0)
    assert (call.engine, call.shape) == ("draft", shape) and call.weight_bytes > 0


def test_an_engine_folder_without_its_package(
    pair: tuple[Path, Path], tmp_path: Path, install: Callable[[str], None]
) -> None:
    install(METHOD)
    folder = build(pair[0], toy(pair[1]), tmp_path / "engine", backend="eager", **OPTIONS)
    shutil.rmtree(tmp_path / "site")
    forget()
    with pytest.raises(ConfigError, match=r"kind 'toy' \(known: .*\); install the package that"):
        LLM(folder, **OPTIONS)


def test_it_is_named(install: Callable[[str], None], pair: tuple[Path, Path]) -> None:
    target, draft = pair
    assert "toy" not in registry.method_names()
    install(METHOD)
    assert "toy" in registry.method_names()
    assert {registry.method_name(name) for name in ("TOY", "toy", "Toy_Town")} == {"toy"}
    assert "toy" in registry.methods_taking("patience")
    assert " toy " in make_parser().format_help().replace(",", " ")
    for unknown in ("tooy", "no_such"):
        with pytest.raises(ConfigError, match=r"unknown speculative method .*available: .*, toy,"):
            parse_speculative_config({"method": unknown})
    with pytest.raises(ConfigError, match="ToyDecodingConfig: unknown option `patienc`; did you"):
        parse_speculative_config(toy(draft, patienc=1))
    with pytest.raises(ConfigError, match=r"toy_patience=-1 must be 0 or more"):
        parse_speculative_config(toy(draft, patience=-1))
    assert describe_draft(draft) == "draft: a toy"
    drafts = available_drafts(str(target), [str(draft)])
    assert "toy:4" in [method.name for method in fitting_methods(drafts)]


def test_its_checkpoints_are_told_from_others(
    pair: tuple[Path, Path], models: TinyModels, tmp_path: Path, install: Callable[[str], None]
) -> None:
    install(METHOD)
    target, draft = pair

    def plan(config: dict[str, Any]) -> str:
        parsed = parse_speculative_config(config)
        return plan_build(target, BuildConfig("float32", backend="eager"), parsed).describe()

    text = plan(toy(draft))
    assert f"draft    {draft} (toy, hidden 64, reads layer 1)" in text
    assert "drafts   toy: top-k 1, 3 steps, 4 rows verified" in text
    with pytest.raises(ConfigError, match="not a draft for method 'draft_model': draft: a toy tha"):
        plan({"method": "draft_model", "model": str(draft), "num_speculative_tokens": 3})
    with pytest.raises(
        ConfigError, match=r"not a draft for method 'toy'.*; a toy's config.json sa"
    ):
        plan(toy(target))
    other = shutil.copytree(draft, tmp_path / "other")
    (other / "config.json").write_text(json.dumps({"toy_reads": 2}))
    with pytest.raises(CheckpointError, match="toy_reads is 2, the target has 2 layers"):
        plan(toy(other))
    (other / "config.json").write_text(json.dumps({"speculators_model_type": "toys"}))
    with pytest.raises(CheckpointError, match=r"this version does not run it yet; it runs .*toys"):
        plan(toy(other))


def test_a_name_that_is_taken(install: Callable[[str], None]) -> None:
    install("tests.speculative.toy_method.method:TAKEN")
    with pytest.raises(ConfigError, match="method 'toy' that is spelled 'ngram', which is taken"):
        registry.methods()
