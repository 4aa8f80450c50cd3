"""One engine folder run by Python and by the C++ runtime: the same tokens, steps and figures."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams
from trtspec.bench.dataset import held_out_prompts
from trtspec.builder.locate import find_model
from trtspec.llmapi.prompts import load_tokenizer

from ..e2e.eagle_heads import V
from ..e2e.helpers import ngram, random_prompt, tokens, watch
from .program import Program, Sample

pytestmark = pytest.mark.slow

LENGTHS = ((40, 40), (9, 56), (33, 24), (1, 30), (17, 48), (40, 1))
TIMES = ("step_ms", "target_ms", "draft_ms", "host_ms", "host_share")
OPTIONS: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "plain": ({}, ()),
    "tight": (
        {"max_num_tokens": 9, "kv_cache_config": {"max_tokens": 96}},
        ("--max_num_tokens", 9, "--kv_cache_max_tokens", 96),
    ),
    "without_reuse": (
        {"kv_cache_config": {"enable_block_reuse": False}, "max_batch_size": 2},
        ("--enable_kv_cache_reuse=false", "--max_batch_size", 2),
    ),
}


NGRAM_FLAGS = ("--speculative", "ngram", "--max_draft_len", 6, "--prompt_lookup_min", 1)


@cache
def samples() -> list[Sample]:
    """Code, the same text twice among it, so that a prefix is found again."""
    prompts = held_out_prompts(load_tokenizer(find_model("trtspec-tiny")), 5, 40)
    texts = [prompt.token_ids for prompt in prompts] + [prompts[0].token_ids]
    return [(ids[:n], wanted) for ids, (n, wanted) in zip(texts, LENGTHS, strict=True)]


def sampling(temperature: float, cases: Sequence[Sample]) -> list[SamplingParams]:
    """What the program's flags ask of each sample; see `flags_of`."""
    filters: dict[str, Any] = {"top_k": 40, "top_p": 0.95} if temperature else {}
    return [
        SamplingParams(n, temperature=temperature, seed=7 + i, ignore_eos=True, **filters)
        for i, (_, n) in enumerate(cases)
    ]


def flags_of(temperature: float) -> list[Any]:
    filters = ["--top_k", 40, "--top_p", 0.95] if temperature else []
    return ["--temperature", temperature, "--random_seed", 7, *filters]


def assert_equal(
    program: Program,
    engine: Path,
    folder: Path,
    speculation: Any,
    flags: tuple[Any, ...],
    options: str,
    temperature: float,
    cases: Sequence[Sample] = (),
) -> dict[str, Any]:
    """Tokens, schedule and figures of the two; returns Python's figures."""
    python_options, program_flags = OPTIONS[options]
    # With few blocks: texts that begin together and cannot end together.
    cases = cases or ([(ids[:20], 60) for ids, _ in samples()] if options == "tight" else samples())
    prompts = [list(ids) for ids, _ in cases]
    with LLM(engine, speculation, skip_tokenizer_init=True, **python_options) as llm:
        steps = watch(llm)
        outputs = llm.generate(prompts, sampling(temperature, cases), use_tqdm=False)
        expected = llm.get_metrics()
        capacity = llm._executor._resources.target.capacity
    preemptions = sum(step.num_preempted for step in steps)
    assert not preemptions or options == "tight"
    # At temperature 0 so many drafts are accepted that a text may end before it is in the way.
    assert preemptions or options != "tight" or not temperature
    result = program.run(engine, cases, folder, *flags, *program_flags, *flags_of(temperature))
    assert result.tokens == tokens(outputs)
    assert [r["metrics"] for r in result.responses] == [o.metrics.to_dict() for o in outputs]
    found = result.report["metrics"]
    # The binary reports its verify steps as figures of its own.
    shared = {k: v for k, v in expected.items() if "verify_" not in k}
    assert set(found) == set(shared)
    # The steps were even the same ones: as many of them, as many calls, the same histogram.
    assert {k: v for k, v in found.items() if k not in TIMES} == {
        k: v for k, v in shared.items() if k not in TIMES
    }
    assert result.report["engine"]["kv_cache_tokens"] == capacity
    assert result.figures["acceptance_length"] == expected["acceptance_length"]
    return expected


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


def cycling_samples() -> list[Sample]:
    """The right drafts want 0 or 1 as the first token."""
    bodies = [random_prompt(180 + i, n, V - 2) for i, n in enumerate((20, 1, 4, 25, 12))]
    return [([i % 2, *(token + 2 for token in body)], 60) for i, body in enumerate(bodies)]


@pytest.mark.parametrize("method", ["pard", "p_eagle"])
@pytest.mark.parametrize("options", ["plain", "tight", "shallow"])
def test_parallel_drafts(
    program: Program,
    parallel_engines: dict[str, Path],
    tmp_path: Path,
    method: str,
    options: str,
) -> None:
    engine, cases = parallel_engines[method], cycling_samples()
    speculation, flags = None, ()
    if options == "shallow":
        tree = {"topk": 4, "num_draft_tokens": 10} if method == "pard" else {}
        speculation = {"method": method, "model": "draft", "num_speculative_tokens": 2, **tree}
        flags, options = ("--max_draft_len", 2), "without_reuse"
    metrics = assert_equal(program, engine, tmp_path, speculation, flags, options, 0.8, cases)
    assert metrics["acceptance_length"] > 1.2


@pytest.mark.parametrize("options", ["plain", "tight"])
def test_static_tree(program: Program, static_engine: Path, tmp_path: Path, options: str) -> None:
    """EAGLE-1."""
    cases = cycling_samples()
    metrics = assert_equal(program, static_engine, tmp_path, None, (), options, 0.8, cases)
    assert metrics["acceptance_length"] > 1.2


CUT = {"method": "mtp", "num_speculative_tokens": 2}


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
    """Each drafts at its own depth. They want 0 or 1 as the first token; two texts begin alike."""
    bodies = [random_prompt(190 + i, n, V - 2) for i, n in enumerate((20, 3, 4, 25))]
    bodies.append([*bodies[0][:17], 5, 6])
    cases = [([i % 2, *(token + 2 for token in body)], 60) for i, body in enumerate(bodies)]
    temperature = 0.8 if options == "tight" else 0.0
    metrics = assert_equal(
        program, modules_engine, tmp_path, speculation, flags, options, temperature, cases
    )
    assert metrics["acceptance_length"] > 1.8


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
