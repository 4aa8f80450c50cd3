"""One engine folder run by Python and by the C++ runtime: the same tokens, steps and figures."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams
from trtspec.engine.folder import EngineConfig

from ..e2e.helpers import ngram, tokens
from .equality import assert_equal, cycling_samples, deep_samples, samples
from .program import Program

pytestmark = pytest.mark.slow

NGRAM_FLAGS = ("--speculative", "ngram", "--max_draft_len", 6, "--prompt_lookup_min", 1)
SHALLOW = {
    "method": "eagle3", "model": "draft", "num_speculative_tokens": 2, "topk": 3,
    "num_draft_tokens": 12,
}  # fmt: skip


@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("speculation", "flags", "options"),
    [
        (None, (), "plain"),
        (None, (), "tight"),
        (SHALLOW, ("--max_draft_len", 2), "without_reuse"),
    ],
    ids=["eagle3", "eagle3_tight", "eagle3_shallow"],
)
def test_eagle3(
    program: Program,
    eagle_engine: Path,
    tmp_path: Path,
    speculation: Any,
    flags: tuple[Any, ...],
    options: str,
    temperature: float,
) -> None:
    metrics = assert_equal(
        program, eagle_engine, tmp_path, speculation, flags, options, temperature
    )
    assert metrics["acceptance_length"] > 1.2


def test_rounded_weights(program: Program, rounded_engine: Path, tmp_path: Path) -> None:
    cases = cycling_samples()
    metrics = assert_equal(program, rounded_engine, tmp_path, None, (), "plain", 0.8, cases)
    assert metrics["acceptance_length"] > 1.2
    report = program.run(rounded_engine, cases[:1], tmp_path).report
    engine = EngineConfig.read(rounded_engine)
    assert report["engine"]["target_weight_bytes"] == engine.pass_bytes().expected(1)


# Here and below, what is under the mark `matrix` runs in test_onnx.py for every change: the loop is
# the same, and the compiled graphs are compared with eager ones in tests/e2e/test_compiled.py.
@pytest.mark.matrix
@pytest.mark.parametrize("method", ["pard", "p_eagle"])
@pytest.mark.parametrize("options", ["plain", "tight", "shallow"])
def test_parallel_drafts(
    program: Program,
    parallel_engine: Callable[[str], Path],
    tmp_path: Path,
    method: str,
    options: str,
) -> None:
    engine, cases = parallel_engine(method), cycling_samples()
    speculation, flags = None, ()
    if options == "shallow":
        tree = {"topk": 4, "num_draft_tokens": 10} if method == "pard" else {}
        speculation = {"method": method, "model": "draft", "num_speculative_tokens": 2, **tree}
        flags, options = ("--max_draft_len", 2), "without_reuse"
    metrics = assert_equal(program, engine, tmp_path, speculation, flags, options, 0.8, cases)
    assert metrics["acceptance_length"] > 1.2


@pytest.mark.matrix
@pytest.mark.parametrize("options", ["plain", "tight"])
def test_static_tree(program: Program, static_engine: Path, tmp_path: Path, options: str) -> None:
    """EAGLE-1."""
    cases = cycling_samples()
    metrics = assert_equal(program, static_engine, tmp_path, None, (), options, 0.8, cases)
    assert metrics["acceptance_length"] > 1.2


CUT = {"method": "mtp", "num_speculative_tokens": 2}


@pytest.mark.matrix
@pytest.mark.parametrize(
    ("speculation", "flags", "options"),
    [(None, (), "plain"), (None, (), "tight"), (CUT, ("--max_draft_len", 2), "without_reuse")],
    ids=["plain", "tight", "cut"],
)
def test_mtp_modules(
    program: Program,
    modules_engine: Path,
    tmp_path: Path,
    speculation: Any,
    flags: tuple[Any, ...],
    options: str,
) -> None:
    """Each drafts at its own depth."""
    cases = deep_samples()
    temperature = 0.8 if options == "tight" else 0.0
    metrics = assert_equal(
        program, modules_engine, tmp_path, speculation, flags, options, temperature, cases
    )
    assert metrics["acceptance_length"] > 1.8


# Behind the others, since another file begins with this engine: the two compile side by side.
@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
@pytest.mark.parametrize(
    ("speculation", "flags", "options"),
    [
        (None, (), "plain"),
        (None, (), "tight"),
        (False, ("--speculative", "none"), "without_reuse"),
        (ngram(6), NGRAM_FLAGS, "plain"),
    ],
    ids=["draft_model", "draft_model_tight", "none", "ngram"],
)  # fmt: skip
def test_draft_model(
    program: Program,
    chain_engine: Path,
    tmp_path: Path,
    speculation: Any,
    flags: tuple[Any, ...],
    options: str,
    temperature: float,
) -> None:
    metrics = assert_equal(
        program, chain_engine, tmp_path, speculation, flags, options, temperature
    )
    if speculation is not False:
        assert metrics["acceptance_length"] > 1.2


def test_end_tokens(program: Program, chain_engine: Path, tmp_path: Path) -> None:
    """A text ends at --eos_id as Python's does at a stop token; without it, at its length."""
    prompts = [list(ids) for ids, _ in samples()]
    whole = program.run(chain_engine, samples(), tmp_path).tokens
    end = whole[0][5]
    params = [
        SamplingParams(n, ignore_eos=True, stop_token_ids=[end], seed=0) for _, n in samples()
    ]
    with LLM(chain_engine, skip_tokenizer_init=True) as llm:
        expected = tokens(llm.generate(prompts, params, use_tqdm=False))
    result = program.run(chain_engine, samples(), tmp_path, "--eos_id", f"1000,{end}")
    assert result.tokens == expected
    assert len(result.tokens[0]) <= 6 and result.responses[0]["finish_reason"] == "stop"
    assert [len(text) for text in whole] == [n for _, n in samples()]
