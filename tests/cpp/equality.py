"""An engine folder run by Python and by the C++ runtime: tokens, steps and figures compared."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache as cached
from pathlib import Path
from typing import Any

from trtspec import LLM, SamplingParams
from trtspec.bench.data.dataset import held_out_prompts
from trtspec.builder.locate import find_model
from trtspec.llmapi.outputs import RequestOutput
from trtspec.llmapi.prompts import load_tokenizer

from .. import inside
from ..e2e.eagle_heads import V
from ..e2e.helpers import random_prompt, tokens, watch
from .program import Program, Sample

LENGTHS = ((40, 40), (9, 56), (33, 24), (1, 30), (17, 48), (40, 1))
TIMES = ("step_ms", "target_ms", "draft_ms", "host_ms", "host_share")
OPTIONS: dict[str, tuple[dict[str, Any], tuple[Any, ...]]] = {
    "plain": ({}, ()),
    "tight": (
        {"max_num_tokens": 9, "kv_cache_config": {"max_tokens": 96}},
        ("--max_num_tokens", 9, "--kv_cache_max_tokens", 96),
    ),
    # Of slot caches: as many slots as take so many tokens.
    "few_slots": (
        {"max_num_tokens": 9, "kv_cache_config": {"max_tokens": 800}},
        ("--max_num_tokens", 9, "--kv_cache_max_tokens", 800),
    ),
    "snapshots": (
        {"kv_cache_config": {"snapshot_blocks": 2}, "max_batch_size": 2},
        ("--kv_cache_snapshot_blocks", 2, "--max_batch_size", 2),
    ),
    "without_reuse": (
        {"kv_cache_config": {"enable_block_reuse": False}, "max_batch_size": 2},
        ("--enable_kv_cache_reuse=false", "--max_batch_size", 2),
    ),
}


@cached
def samples() -> list[Sample]:
    """Code, the same text twice among it, so that a prefix is found again."""
    prompts = held_out_prompts(load_tokenizer(find_model("trtspec-tiny")), 5, 40)
    texts = [prompt.token_ids for prompt in prompts] + [prompts[0].token_ids]
    return [(ids[:n], wanted) for ids, (n, wanted) in zip(texts, LENGTHS, strict=True)]


def sampling(
    temperature: float, cases: Sequence[Sample], changes: Mapping[str, Any] | None = None
) -> list[SamplingParams]:
    """What the program's flags ask of each sample; see `flags_of`."""
    more: dict[str, Any] = {"top_k": 40, "top_p": 0.95} if temperature else {}
    more |= changes or {}
    return [
        SamplingParams(n, temperature=temperature, seed=7 + i, ignore_eos=True, **more)
        for i, (_, n) in enumerate(cases)
    ]


def flags_of(temperature: float, changes: Mapping[str, Any] | None = None) -> list[Any]:
    filters = ["--top_k", 40, "--top_p", 0.95] if temperature else []
    given = ["--temperature", temperature, "--random_seed", 7, *filters]
    for name, value in (changes or {}).items():
        match name:
            case "stop_token_ids":
                name, value = "eos_id", ",".join(map(str, value))
            case "logit_bias":
                value = ",".join(f"{token}:{bias}" for token, bias in value.items())
            case "bad_words":
                name, value = "bad_words_ids", ";".join(",".join(map(str, w)) for w in value)
        given += [f"--{name}", value]
    return given


@cached
def changes_of_logits() -> dict[str, Any]:
    """Options that change logits by the text so far, and log probabilities."""
    ids = samples()[0][0]
    return {
        "repetition_penalty": 1.15,
        "presence_penalty": 0.3,
        "frequency_penalty": 0.17,
        "logit_bias": {ids[1]: 1.7, ids[2]: -0.9},
        "bad_words": ((ids[4],), (ids[2], ids[3])),
        "min_tokens": 5,
        "stop_token_ids": (ids[5],),
        "logprobs": 4,
    }


SERVED = {
    *("num_failed_steps", "num_preemptions", "num_texts_over_draft"),
    *("target_buckets", "drafts", "adapters"),
    *("overlap_ms", "overlap_wait_ms"),
}
"""What a server counts and watches over its life; one run of the binary does not, nor does it do
other work while its engines run."""


def assert_equal(
    program: Program,
    engine: Path,
    folder: Path,
    speculation: Any,
    flags: tuple[Any, ...],
    options: str,
    temperature: float,
    cases: Sequence[Sample] = (),
    changes: Mapping[str, Any] | None = None,
    texts: Sequence[Sequence[int]] | None = None,
) -> dict[str, Any]:
    """Tokens, log probabilities, schedule and figures of the two; returns Python's figures.
    ``texts``: what they say, where it is known."""
    python_options, program_flags = OPTIONS[options]
    # With few blocks: texts that begin together and cannot end together.
    cases = cases or ([(ids[:20], 60) for ids, _ in samples()] if options == "tight" else samples())
    prompts = [list(ids) for ids, _ in cases]
    with LLM(engine, speculation, skip_tokenizer_init=True, **python_options) as llm:
        steps = watch(llm)
        outputs = llm.generate(prompts, sampling(temperature, cases, changes), use_tqdm=False)
        expected = llm.get_metrics()
        cache = inside.resources(llm).target
        capacity = cache.num_blocks * cache.block_size
    preemptions = sum(step.num_preempted for step in steps)
    assert not preemptions or options == "tight"
    # At temperature 0 so many drafts are accepted that a text may end before it is in the way.
    assert preemptions or options != "tight" or not temperature
    sampled = flags_of(temperature, changes)
    result = program.run(engine, cases, folder, *flags, *program_flags, *sampled)
    assert result.tokens == tokens(outputs)
    assert texts is None or result.tokens == texts
    assert [r.get("logprobs") for r in result.responses] == [_logprobs(o) for o in outputs]
    assert [r["metrics"] for r in result.responses] == [o.metrics.to_dict() for o in outputs]
    found = result.report["metrics"]
    # The binary reports its verify steps as figures of its own.
    shared = {k: v for k, v in expected.items() if "verify_" not in k and k not in SERVED}
    assert set(found) == set(shared)
    # The steps were even the same ones: as many of them, as many calls, the same histogram.
    assert {k: v for k, v in found.items() if k not in TIMES} == {
        k: v for k, v in shared.items() if k not in TIMES
    }
    assert result.report["engine"]["kv_cache_tokens"] == capacity
    assert result.figures["acceptance_length"] == expected["acceptance_length"]
    return expected


def _logprobs(output: RequestOutput) -> list[dict[str, Any]] | None:
    entries = output.outputs[0].logprobs
    if entries is None:
        return None
    return [
        {
            "token": entry.token,
            "logprob": entry.logprob,
            "top": {str(token): value for token, value in entry.top.items()},
        }
        for entry in entries
    ]


def cycling_samples() -> list[Sample]:
    """The right drafts want 0 or 1 as the first token."""
    bodies = [random_prompt(180 + i, n, V - 2) for i, n in enumerate((20, 1, 4, 25, 12))]
    return [([i % 2, *(token + 2 for token in body)], 60) for i, body in enumerate(bodies)]


def deep_samples() -> list[Sample]:
    """The modules for several depths want 0 or 1 as the first token; two texts begin alike."""
    bodies = [random_prompt(190 + i, n, V - 2) for i, n in enumerate((20, 3, 4, 25))]
    bodies.append([*bodies[0][:17], 5, 6])
    return [([i % 2, *(token + 2 for token in body)], 60) for i, body in enumerate(bodies)]
