"""A backend that another package adds builds and runs engines, with nothing of trtspec changed."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from trtspec import LLM, SamplingParams
from trtspec.backends.registry import ENTRY_POINTS, backend_named, backends
from trtspec.builder.plan import plan_build
from trtspec.commands import build as command
from trtspec.config.build_config import BuildConfig
from trtspec.errors import ConfigError, EngineError
from trtspec.llmapi.engines import build

from ..e2e.helpers import TinyModels, chain, random_prompt, tokens
from ..other_package import installer

PROMPTS = [random_prompt(830 + i, 4 + 5 * i) for i in range(3)]
PARAMS = [SamplingParams(12), *(SamplingParams(12, temperature=0.8, seed=i) for i in range(2))]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    yield installer(tmp_path / "site", monkeypatch, ENTRY_POINTS, backends.cache_clear)
    monkeypatch.undo()
    backends.cache_clear()


@pytest.mark.slow
def test_it_builds_and_runs(
    models: TinyModels, tmp_path: Path, install: Callable[[str], None]
) -> None:
    with pytest.raises(ConfigError, match="backend 'toy' is unknown"):
        backend_named("toy")
    install("tests.backends.toy_backend:TOY")
    speculation = chain(models.draft("llama"), 3)
    options = {"dtype": "float32", "skip_tokenizer_init": True}
    with LLM(models.folder("llama"), speculation, backend="eager", **options) as llm:
        expected = tokens(llm.generate(PROMPTS, PARAMS, use_tqdm=False))
    folder = build(
        models.folder("llama"),
        speculation,
        tmp_path / "engine",
        backend="toy",
        backend_options={"stamp": "mine"},
        **options,
    )
    files = ["draft/pass.pt2", "target/model.pt2"]
    assert (folder / "toy.txt").read_text() == f"mine: {' '.join(files)}"
    makers = {int((folder / file).read_text().split()[0]) for file in files}
    assert os.getpid() not in makers, "graphs are compiled in processes of their own"
    with LLM(folder, backend="toy", backend_options={"stamp": "mine"}, **options) as llm:
        assert tokens(llm.generate(PROMPTS, PARAMS, use_tqdm=False)) == expected
        assert llm.get_metrics()["num_draft_calls"] > 0
    with pytest.raises(ConfigError, match=r"stamp='yours'\) were asked .* built with .*'mine'"):
        LLM(folder, backend_options={"stamp": "yours"}, **options)

    config = json.loads((folder / "config.json").read_text())
    assert config["build"]["backend_options"] == {"stamp": "mine"}
    config["environment"] |= {"toy": "2", "torch": "1.0"}
    (folder / "config.json").write_text(json.dumps(config))
    with pytest.raises(EngineError, match=r"was compiled for toy 2 \(here 1\); rebuild"):
        LLM(folder, **options)


def test_what_it_says_counts(models: TinyModels, install: Callable[[str], None]) -> None:
    """Its options, dtypes and flags are those of any backend."""
    install("tests.backends.toy_backend:TOY")
    folder = models.folder("llama")
    with pytest.raises(ConfigError, match="'toy': toys have no halves; use float32, or backend"):
        plan_build(folder, BuildConfig("bf16", backend="toy"))
    with pytest.raises(ConfigError, match="ToyOptions: unknown option `stamps`; did you mean"):
        plan_build(folder, BuildConfig(backend="toy", backend_options={"stamps": "a"}))
    with pytest.raises(ConfigError, match=r"of the toy were given .*; they need backend 'toy'"):
        plan_build(folder, BuildConfig(backend="eager", backend_options={"stamp": "a"}))
    assert "tensorrt, eager or toy" in command.make_parser().format_help()
    keys = [
        plan_build(folder, BuildConfig(backend=name, backend_options=options)).fingerprint
        for name, options in (("toy", {}), ("toy", {"stamp": "a"}), ("eager", {}))
    ]
    assert len(set(keys)) == 3


def test_a_name_that_is_taken(install: Callable[[str], None]) -> None:
    install("tests.backends.toy_backend:EAGER_AGAIN")
    with pytest.raises(ConfigError, match="adds a backend 'eager', a name that is taken"):
        backends()
