"""Drafts in fewer bits than their checkpoints, a copy of the target and a model with a cut head,
compiled, run by Python and by C++."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trtspec.builder.locate import find_model

from ..compiled_engines import LIMITS, build_one
from ..e2e.helpers import open_llm, tokens
from .equality import assert_equal, samples, sampling
from .program import Program

pytestmark = [pytest.mark.slow, pytest.mark.matrix]

FOUR_BITS: dict[str, Any] = {"weight_dtype": "int4", "num_speculative_tokens": 3}
DRAFTS: dict[str, dict[str, Any]] = {
    "copy": {"method": "self", **FOUR_BITS},
    "model": {"model": "trtspec-tiny-draft", "vocabulary": 512, **FOUR_BITS},
}


@pytest.fixture(scope="module", params=DRAFTS)
def engine(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build_one(tmp_path_factory, find_model("trtspec-tiny"), DRAFTS[request.param])


@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
@pytest.mark.parametrize("options", ["plain", "tight"])
def test_python_and_cpp(
    program: Program, engine: Path, tmp_path: Path, options: str, temperature: float
) -> None:
    metrics = assert_equal(program, engine, tmp_path, None, (), options, temperature)
    assert metrics["acceptance_rate"] > 0.3


def test_text_is_the_targets(program: Program, engine: Path, tmp_path: Path) -> None:
    """That of backend eager, without drafts."""
    prompts, params = [list(ids) for ids, _ in samples()], sampling(0.0, samples())
    with open_llm(Path(find_model("trtspec-tiny")), None, **LIMITS) as llm:
        expected = tokens(llm.generate(prompts, params, use_tqdm=False))
    assert program.run(engine, samples(), tmp_path, "--temperature", 0).tokens == expected
