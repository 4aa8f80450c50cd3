"""Suffix decoding in the executor: the text of no speculation, and drafts that get better."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from trtspec import LLM, SamplingParams

from .. import inside
from .helpers import TinyModels, assert_no_leak, open_llm, random_prompt, tokens, watch

PROMPTS = [random_prompt(60 + i, n) for i, n in enumerate((9, 1, 25, 3, 16, 17))] + [
    [8, 9] * 10,
    random_prompt(70, 6) * 4,
]
GREEDY = [SamplingParams(max_tokens=40)] * len(PROMPTS)
SAMPLED = [SamplingParams(max_tokens=40, temperature=0.8, seed=i) for i in range(len(PROMPTS))]
# Few tokens share the mass, so that sampled texts repeat themselves and drafts are accepted.
NARROW = [replace(p, logit_bias={5: 60.0, 8: 60.0, 9: 60.0}) for p in SAMPLED]
KINDS = {"greedy": GREEDY, "sampled": SAMPLED, "narrow": NARROW}
CONFIGS: dict[str, dict[str, Any]] = {
    "default": {},
    "path": {"suffix_decoding_tree": False, "num_speculative_tokens": 5},
    "wide": {
        "suffix_decoding_max_spec_factor": 3.0,
        "suffix_decoding_max_spec_offset": 2.0,
        "suffix_decoding_min_token_prob": 0.0,
        "num_speculative_tokens": 40,
    },
    "local": {"suffix_decoding_max_cached_requests": 0, "suffix_decoding_max_tree_depth": 6},
}


@pytest.fixture(scope="module")
def baseline(models: TinyModels) -> dict[str, list[list[int]]]:
    with open_llm(models.folder("llama"), max_batch_size=1) as llm:
        return {name: generate(llm, params) for name, params in KINDS.items()}


def generate(llm: LLM, params: list[SamplingParams]) -> list[list[int]]:
    return tokens(llm.generate(PROMPTS, params, use_tqdm=False))


def suffix(**options: Any) -> dict[str, Any]:
    return {"method": "suffix", **options}


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("name", CONFIGS)
def test_same_text(
    models: TinyModels, baseline: dict[str, list[list[int]]], name: str, batch: int
) -> None:
    limits = {"max_batch_size": batch, "max_num_tokens": 30 if batch > 1 else None}
    with open_llm(models.folder("llama"), suffix(**CONFIGS[name]), **limits) as llm:
        for kind, params in KINDS.items():
            assert generate(llm, params) == baseline[kind]
        metrics = llm.get_metrics()
        assert 20 < metrics["num_accepted_tokens"] < metrics["num_draft_tokens"]
        assert metrics["num_draft_calls"] == 0
        assert_no_leak(llm)
        assert inside.drafter(llm).sizes.num_active == 0


def test_repeated_requests_are_drafted_from_their_first_responses(models: TinyModels) -> None:
    """The same requests again and again: what is drafted is more and more the truth."""
    with open_llm(models.folder("llama"), suffix(num_speculative_tokens=16)) as llm:
        rates, lengths, steps = [], [], 0
        for _ in range(6):
            before = llm.get_metrics()
            generate(llm, SAMPLED)
            after = llm.get_metrics()
            drafted, accepted, steps = (
                after[key] - before[key]
                for key in ("num_draft_tokens", "num_accepted_tokens", "num_steps")
            )
            rates.append(accepted / max(drafted, 1))
            lengths.append(1 + accepted / steps)
    assert rates[0] < 0.5 < 0.8 < rates[-1]
    assert lengths[0] < 1.5 < 3 < lengths[-1]


@pytest.mark.parametrize("name", ["default", "path"])
def test_preempted(models: TinyModels, baseline: dict[str, list[list[int]]], name: str) -> None:
    options = {"kv_cache_config": {"max_tokens": 160}, "tokens_per_block": 4}
    with open_llm(models.folder("llama"), suffix(**CONFIGS[name]), **options) as llm:
        steps = watch(llm)
        for kind, params in KINDS.items():
            assert generate(llm, params) == baseline[kind]
        assert sum(step.num_preempted for step in steps) > 0
        sizes = inside.drafter(llm).sizes
        assert sizes.num_cached == 3 * len(PROMPTS)
        # Every emitted token once, however often its request was preempted.
        assert sizes.num_cached_tokens == sum(
            len(text) for texts in baseline.values() for text in texts
        )
        assert_no_leak(llm)
