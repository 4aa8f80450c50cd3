"""One engine folder run by Python and by the C++ runtime: the same tokens, steps and figures."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams
from trtspec.engine.folder import EngineConfig

from ..e2e.helpers import ngram, tokens
from .equality import (
    assert_equal,
    changes_of_logits,
    cycling_samples,
    deep_samples,
    samples,
)
from .program import Program

pytestmark = pytest.mark.slow

NGRAM_FLAGS = ("--speculative", "ngram", "--max_draft_len", 6, "--prompt_lookup_min", 1)
SHALLOW = {
    "method": "eagle3", "model": "draft", "num_speculative_tokens": 2, "topk": 3,
    "num_draft_tokens": 12,
}  # fmt: skip


@pytest.mark.ci
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


@pytest.mark.ci
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


SUFFIX = {"method": "suffix", "num_speculative_tokens": 8}
SUFFIX_FLAGS = ("--speculative", "suffix", "--max_draft_len", 8)
MORE_SUFFIX = {
    "suffix_decoding_max_tree_depth": 12, "suffix_decoding_max_cached_requests": 2,
    "suffix_decoding_max_cached_tokens": 90, "suffix_decoding_max_spec_factor": 1.5,
    "suffix_decoding_max_spec_offset": 1.0, "suffix_decoding_min_token_prob": 0.2,
    "suffix_decoding_tree": False,
}  # fmt: skip


def test_suffix(program: Program, chain_engine: Path, tmp_path: Path) -> None:
    metrics = assert_equal(program, chain_engine, tmp_path, SUFFIX, SUFFIX_FLAGS, "plain", 0.8)
    assert metrics["acceptance_length"] > 1.1


@pytest.mark.matrix
@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
@pytest.mark.parametrize("options", ["plain", "tight", "without_reuse"])
@pytest.mark.parametrize("more", [{}, MORE_SUFFIX], ids=["usual", "options"])
def test_suffix_and_its_options(
    program: Program,
    chain_engine: Path,
    tmp_path: Path,
    more: dict[str, Any],
    options: str,
    temperature: float,
) -> None:
    """A data set twice over, so that responses are found again."""
    given = [f"--{name}={str(value).lower()}" for name, value in more.items()]
    cases = [] if options == "tight" else [*samples(), *samples()]
    metrics = assert_equal(
        program, chain_engine, tmp_path, {**SUFFIX, **more}, (*SUFFIX_FLAGS, *given), options,
        temperature, cases,
    )  # fmt: skip
    assert metrics["acceptance_length"] > 1.1
    assert not more or options == "tight" or metrics["num_draft_tokens"] > 0


def test_changed_logits(program: Program, chain_engine: Path, tmp_path: Path) -> None:
    """Penalties, biases and bans, each row by its own text, and log probabilities."""
    changes, cases = changes_of_logits(), samples()[:5]
    assert_equal(program, chain_engine, tmp_path, None, (), "plain", 0.8, cases, changes)
    found = json.loads((tmp_path / "responses.json").read_text())["responses"]
    (word,), _ = changes["bad_words"]
    assert all(word not in response["tokens"] for response in found)
    assert min(len(response["tokens"]) for response in found) >= changes["min_tokens"]


@pytest.mark.matrix
@pytest.mark.parametrize("temperature", [0.0, 0.8], ids=["greedy", "sampled"])
@pytest.mark.parametrize("options", ["plain", "tight", "without_reuse"])
@pytest.mark.parametrize(
    ("engine", "speculation", "flags"),
    [
        ("eagle_engine", None, ()),
        ("chain_engine", None, ()),
        ("chain_engine", SUFFIX, SUFFIX_FLAGS),
        ("chain_engine", ngram(6), NGRAM_FLAGS),
        ("chain_engine", False, ("--speculative", "none")),
    ],
    ids=["eagle3", "draft_model", "suffix", "ngram", "none"],
)
def test_changed_logits_of_every_draft(
    program: Program,
    request: pytest.FixtureRequest,
    tmp_path: Path,
    engine: str,
    speculation: Any,
    flags: tuple[Any, ...],
    options: str,
    temperature: float,
) -> None:
    folder, changes = request.getfixturevalue(engine), changes_of_logits()
    # With few blocks, as many tokens as let them run out.
    if options == "tight":
        changes = {**changes, "min_tokens": 60}
    cases = [(ids[:20], 60) for ids, _ in samples()] if options == "tight" else samples()[:5]
    assert_equal(
        program, folder, tmp_path, speculation, flags, options, temperature, cases, changes
    )


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
