"""A weight format that another package adds builds and runs engines, with nothing of trtspec
changed."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from trtspec import LLM, SamplingParams
from trtspec.errors import ConfigError
from trtspec.formats.registry import ENTRY_POINTS, format_kinds

from ..e2e.helpers import TinyModels, ngram, random_prompt, tokens
from ..other_package import installer

PROMPTS = [random_prompt(870 + i, 4 + 5 * i) for i in range(3)]
PARAMS = [SamplingParams(12), *(SamplingParams(12, temperature=0.8, seed=i) for i in range(2))]
OPTIONS: dict[str, Any] = {"dtype": "float32", "skip_tokenizer_init": True}


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], None]]:
    yield installer(tmp_path / "site", monkeypatch, ENTRY_POINTS, format_kinds.cache_clear)
    monkeypatch.undo()
    format_kinds.cache_clear()


@pytest.fixture(scope="module")
def rounded(models: TinyModels) -> Path:
    """The target with the weights of its linear layers rounded as the format rounds them."""
    hf = copy.deepcopy(models.hf("llama"))
    with torch.no_grad():
        for module in hf.modules():
            if isinstance(module, nn.Linear):
                module.weight.copy_(module.weight.half())
    return models.save(hf, "llama-of-halves")


# The compiler's processes find what other packages add in one way, which a method's test runs too.
@pytest.mark.parametrize("backend", ["eager", pytest.param("aoti", marks=pytest.mark.matrix)])
def test_it_builds_and_runs(
    models: TinyModels, rounded: Path, install: Callable[[str], None], backend: str
) -> None:
    """Where graphs are compiled, in processes of their own, it is known as well."""
    with pytest.raises(ConfigError, match="weight_dtype 'toy' is not supported"):
        LLM(models.folder("llama"), weight_dtype="toy", **OPTIONS)
    install("tests.formats.toy_format:TOY")
    with LLM(rounded, backend="eager", **OPTIONS) as llm:
        expected = tokens(llm.generate(PROMPTS, PARAMS, use_tqdm=False))
    with LLM(
        models.folder("llama"), ngram(3), weight_dtype="toy", backend=backend, **OPTIONS
    ) as llm:
        assert llm.config.build.weight_dtype == "toy"
        assert tokens(llm.generate(PROMPTS, PARAMS, use_tqdm=False)) == expected


def test_a_name_that_is_taken(install: Callable[[str], None]) -> None:
    install("tests.formats.toy_format:INT8_AGAIN")
    with pytest.raises(ConfigError, match="adds a weight format 'int8', a name that is taken"):
        format_kinds()
