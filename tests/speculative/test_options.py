"""Speculative configs as users of TensorRT-LLM, vLLM and SGLang write them."""

from __future__ import annotations

from typing import Any

import pytest

from trtspec.errors import ConfigError
from trtspec.speculative.draft_model.options import DraftTargetDecodingConfig
from trtspec.speculative.ngram.options import NGramDecodingConfig
from trtspec.speculative.options import parse_speculative_config, speculative_to_dict
from trtspec.speculative.registry import method_name
from trtspec.speculative.suffix.options import SuffixDecodingConfig


def test_none_and_objects() -> None:
    assert parse_speculative_config(None) is None
    config = NGramDecodingConfig(max_draft_len=3)
    assert parse_speculative_config(config) is config


@pytest.mark.parametrize(
    "data",
    [
        {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4},
        {"decoding_type": "NGram", "max_draft_len": 5, "max_matching_ngram_size": 4},
        {
            "method": "NGRAM",
            "max_draft_len": 5,
            "prompt_lookup_max": 4,
            "is_keep_all": True,
            "is_use_oldest": False,
            "is_public_pool": False,
            "model": None,
        },
    ],
)
def test_ngram(data: dict[str, Any]) -> None:
    config = parse_speculative_config(data)
    assert config == NGramDecodingConfig(max_draft_len=5, prompt_lookup_max=4)
    assert isinstance(config, NGramDecodingConfig)
    assert (config.min_ngram, config.max_ngram, config.num_rows) == (2, 4, 6)
    assert parse_speculative_config(speculative_to_dict(config)) == config


def test_ngram_range() -> None:
    def lengths(**options: int) -> tuple[int, int]:
        config = NGramDecodingConfig(max_draft_len=1, **options)
        return config.min_ngram, config.max_ngram

    assert lengths() == (2, 5)
    assert lengths(prompt_lookup_max=1) == (1, 1)
    assert lengths(prompt_lookup_min=7) == (7, 7)
    assert lengths(prompt_lookup_min=1, prompt_lookup_max=3) == (1, 3)
    with pytest.raises(ConfigError, match="prompt_lookup_min=4 must be <= prompt_lookup_max=3"):
        lengths(prompt_lookup_min=4, prompt_lookup_max=3)


@pytest.mark.parametrize(
    "data",
    [
        {
            "method": "suffix",
            "num_speculative_tokens": 16,
            "suffix_decoding_max_tree_depth": 64,
            "suffix_decoding_max_cached_requests": 100,
            "suffix_decoding_max_spec_factor": 2,
            "suffix_decoding_min_token_prob": 0.25,
            "model": None,
        },
        {
            "method": "SUFFIX",
            "model": "suffix",
            "enable_suffix_decoding": True,
            "suffix_speculative_tokens": 16,
            "suffix_cache_max_depth": 64,
            "suffix_cache_max_requests": 100,
            "suffix_max_spec_factor": 2.0,
            "suffix_max_spec_offset": 0.0,
            "suffix_min_token_prob": 0.25,
        },
    ],
)
def test_suffix(data: dict[str, Any]) -> None:
    config = parse_speculative_config(data)
    assert config == SuffixDecodingConfig(
        max_draft_len=16,
        suffix_decoding_max_tree_depth=64,
        suffix_decoding_max_cached_requests=100,
        suffix_decoding_max_spec_factor=2.0,
        suffix_decoding_min_token_prob=0.25,
    )
    assert parse_speculative_config(speculative_to_dict(config)) == config


def test_suffix_defaults() -> None:
    config = parse_speculative_config({"method": "suffix", "num_speculative_tokens": None})
    assert isinstance(config, SuffixDecodingConfig)
    assert config == SuffixDecodingConfig() == SuffixDecodingConfig(max_draft_len=24)
    assert (config.num_rows, config.suffix_decoding_max_cached_requests) == (25, 10000)
    assert SuffixDecodingConfig(suffix_decoding_max_tree_depth=60).max_draft_len == 60


@pytest.mark.parametrize(
    "data",
    [
        {"method": "draft_model", "model": "d", "num_speculative_tokens": 3},
        {"model": "d", "num_speculative_tokens": 3},
        {"decoding_type": "Draft_Target", "speculative_model_dir": "d", "max_draft_len": 3},
        {"method": "DRAFT_TARGET", "draft_model": "d", "num_steps": 3, "eagle_topk": 1},
        {
            "method": "draft_model",
            "model": "d",
            "num_speculative_tokens": 3,
            "speculative_draft_tensor_parallel_size": None,
            "enforce_eager": True,
            "disable_padded_drafter_batch": False,
            "parallel_drafting": False,
            "quantization": None,
            "rejection_sample_method": "standard",
            "num_draft_tokens": 4,
            "max_total_draft_tokens": 3,
            "use_dynamic_tree": False,
        },
    ],
)
def test_draft_model_chain(data: dict[str, Any]) -> None:
    config = parse_speculative_config(data)
    assert config == DraftTargetDecodingConfig(max_draft_len=3, speculative_model="d")
    assert isinstance(config, DraftTargetDecodingConfig)
    assert (config.topk, config.num_steps, config.num_draft_tokens) == (1, 3, 4)
    assert parse_speculative_config(speculative_to_dict(config)) == config


def test_tree() -> None:
    config = DraftTargetDecodingConfig(
        speculative_model="d", num_steps=3, eagle_topk=4, num_draft_tokens=16
    )  # type: ignore[call-arg]
    assert (config.topk, config.num_steps, config.num_rows) == (4, 3, 16)
    defaulted = DraftTargetDecodingConfig(speculative_model="d", max_draft_len=3, topk=2)
    assert defaulted.num_draft_tokens == 7
    full = 1 + 4 + 2 * 16
    assert (
        DraftTargetDecodingConfig(
            speculative_model="d", max_draft_len=3, topk=4, num_draft_tokens=full
        ).num_draft_tokens
        == full
    )
    with pytest.raises(ConfigError, match=r"38 - 1 = 37 > 4 \+ \(3 - 1\) \* 4\^2 = 36"):
        DraftTargetDecodingConfig(
            speculative_model="d", max_draft_len=3, topk=4, num_draft_tokens=full + 1
        )


DRAFT = {"method": "draft_model", "model": "d", "num_speculative_tokens": 3}
NGRAM = {"method": "ngram", "num_speculative_tokens": 3}
SUFFIX = {"method": "suffix"}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "names no method"),
        ({"num_speculative_tokens": 3}, "names no method"),
        (
            {"method": "mlp_speculator", "model": "d"},
            "not available in this version.*ngram, suffix, draft_model, eagle, eagle3",
        ),
        ({"method": "Hydra"}, "not available in this version"),
        ({"method": "n_grams"}, "unknown speculative method 'n_grams'; did you mean `ngram`"),
        ({"method": "ngram", "decoding_type": "Draft_Target"}, "names two methods"),
        ({"method": "ngram"}, "missing option `max_draft_len`.*num_speculative_tokens"),
        ({"method": "draft_model", "num_speculative_tokens": 3}, "missing option `speculative_mod"),
        ({**NGRAM, "num_speculative_tokens": 0}, "max_draft_len=0 must be at least 1"),
        ({**NGRAM, "num_speculative_tokens": 1024}, "at most 1024"),
        ({**NGRAM, "max_draft_len": 4}, "mean the same option"),
        ({**NGRAM, "model": "d"}, "has no draft model"),
        ({**NGRAM, "is_use_oldest": True}, "most recent occurrence"),
        ({**NGRAM, "is_public_pool": True}, "own text"),
        ({**NGRAM, "max_matching_ngram_size": -1}, "prompt_lookup_max=-1 must be at least 1"),
        ({**SUFFIX, "num_speculative_tokens": 0}, "max_draft_len=0 must be at least 1"),
        ({**SUFFIX, "num_speculative_tokens": -1}, "max_draft_len=-1 must be at least 1"),
        ({**SUFFIX, "suffix_decoding_max_tree_depth": 1}, "=1 must be between 2 .* and 1024"),
        ({**SUFFIX, "suffix_decoding_max_tree_depth": 1025}, "=1025 must be between 2"),
        ({**SUFFIX, "suffix_decoding_max_cached_requests": -2}, "=-2 must be -1 or more"),
        ({**SUFFIX, "suffix_decoding_max_cached_tokens": -1}, "=-1 must be 0 or more"),
        ({**SUFFIX, "suffix_decoding_max_spec_factor": -0.5}, "=-0.5 must be 0 or more"),
        ({**SUFFIX, "suffix_decoding_max_spec_factor": float("nan")}, "=nan must be 0 or more"),
        ({**SUFFIX, "suffix_max_spec_offset": float("inf")}, "=inf must be a number"),
        ({**SUFFIX, "suffix_decoding_min_token_prob": 1.5}, r"=1.5 must be in \[0, 1\]"),
        ({**SUFFIX, "model": "d"}, "suffix decoding has no draft model"),
        ({**SUFFIX, "topk": 4}, "text decides the shape"),
        ({**SUFFIX, "prompt_lookup_max": 4}, "belongs to"),
        ({**SUFFIX, "suffix_decoding_max_depth": 4}, "did you mean `suffix_decoding_max_tree_"),
        ({**DRAFT, "prompt_lookup_max": 3}, "belongs to"),
        ({**DRAFT, "topk": -1}, "topk=-1 must be between 1"),
        ({**DRAFT, "num_draft_tokens": -1}, "num_draft_tokens=-1 counts the root"),
        ({**DRAFT, "tensor_parallel_size": 1}, "pass `draft_tensor_parallel_size` instead"),
        ({**DRAFT, "draft_tensor_parallel_size": 0}, "draft_tensor_parallel_size=0 must be at le"),
        ({**SUFFIX, "draft_tensor_parallel_size": 2}, "no network drafts here that could be split"),
        ({**DRAFT, "use_heterogeneous_vocab": True}, "one vocabulary"),
        ({**DRAFT, "rejection_sample_method": "block"}, "lossless"),
        ({**DRAFT, "use_rejection_sampling": True}, "lossless"),
        ({**DRAFT, "rejection_sample_method": "synthetic"}, "needs synthetic_acceptance_rates"),
        ({**DRAFT, "synthetic_acceptance_length": 2.5}, "give synthetic_acceptance_rates"),
        ({**DRAFT, "eagle_choices": [[0]]}, "static trees belong to the methods eagle, eagle3"),
        ({**NGRAM, "eagle_choices": [[0]]}, "static trees belong to the methods eagle, eagle3"),
        ({**DRAFT, "medusa_choices": [[0]]}, "write the paths as eagle_choices"),
        ({**NGRAM, "vocabulary": 9}, "vocabulary is used whole"),
        ({**DRAFT, "vocabulary": 0}, "vocabulary=0 must be at least 1 token"),
        ({**DRAFT, "vocabulary": "m.pt", "vocabulary_text": "t"}, "a file that lists the tokens"),
        ({**DRAFT, "vocabulary_text": "t"}, "was given without vocabulary"),
        (
            {**DRAFT, "speculative_draft_model_quantization": "fp8"},
            "leave it out.* by weight_dtype",
        ),
        ({**DRAFT, "draft_lm_head_quantization": "fp8"}, "leave it out.* by head_weight_dtype"),
        ({**DRAFT, "max_total_draft_tokens": 4}, r"5 - 1 = 4 > 1 \+ \(3 - 1\) \* 1\^2 = 3"),
        ({**DRAFT, "posterior_threshold": 0.1}, "change the text"),
        ({**DRAFT, "use_relaxed_acceptance_for_thinking": True}, "change the text"),
        ({**DRAFT, "speculative_accept_threshold_single": 0.5}, "change the text"),
        ({**DRAFT, "draft_sample_method": "greedy"}, "coupled"),
        ({**DRAFT, "quantization": "fp8"}, "leave it out"),
        ({**DRAFT, "topk": 0}, "topk=0 must be between 1"),
        ({**DRAFT, "num_draft_tokens": 3}, "a chain"),
        ({**DRAFT, "num_draft_tokens": 1}, "between 2 and 1024"),
        ({**DRAFT, "num_draft_tokens": 5}, r"5 - 1 = 4 > 1 \+ \(3 - 1\) \* 1\^2 = 3"),
        ({**DRAFT, "use_dynamic_tree": True}, r"topk=1 .* set dynamic_tree_max_topK"),
        ({**DRAFT, "model": "[ngram]"}, "not a checkpoint"),
        ({**DRAFT, "num_speculative_token": 3}, "did you mean `num_speculative_tokens`"),
    ],
)
def test_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_speculative_config(data)


def test_method_names() -> None:
    names = ("draft_model", "Draft_Target", "DRAFT_TARGET", "DraftTarget", "STANDALONE")
    assert {method_name(name) for name in names} == {"draft_model"}
    assert {method_name(name) for name in ("ngram", "NGram", "NGRAM")} == {"ngram"}
    assert {method_name(name) for name in ("suffix", "SUFFIX", "suffix_decoding")} == {"suffix"}
    assert {method_name(name) for name in ("eagle", "Eagle", "EAGLE", "eagle2")} == {"eagle"}
    assert {method_name(name) for name in ("eagle3", "Eagle3", "EAGLE3", "EAGLE-3")} == {"eagle3"}
    with pytest.raises(ConfigError, match="must be None, a mapping or a DecodingConfig, got str"):
        parse_speculative_config("ngram")  # type: ignore[arg-type]


@pytest.mark.parametrize("base", [NGRAM, SUFFIX, DRAFT, {**DRAFT, "method": "eagle3"}])
def test_simulated_acceptance(base: dict[str, Any]) -> None:
    config = parse_speculative_config({**base, "simulate_acceptance": [1, 0.5]})
    assert config is not None and config.simulate_acceptance == (1.0, 0.5)
    assert parse_speculative_config(speculative_to_dict(config)) == config
    vllm = {"rejection_sample_method": "synthetic", "synthetic_acceptance_rates": [1.0, 0.5]}
    assert parse_speculative_config({**base, **vllm}) == config
    assert parse_speculative_config({**base, "synthetic_acceptance_rates": None}) != config


@pytest.mark.parametrize(
    ("rates", "message"),
    [
        ([], r"has 0 rates; give 1 to 3"),
        ([0.5] * 4, r"has 4 rates; give 1 to 3"),
        ([1.5], r"1\.5 is no probability"),
        ([0.5, -0.1], r"-0\.1 is no probability"),
        ([float("nan")], r"nan is no probability"),
        ([0.5, 0.25, 0.3], r"rises at position 2, from 0\.25 to 0\.3"),
        (0.5, "must be tuple.* or None, got float"),
    ],
)
def test_rates_that_are_none(rates: Any, message: str) -> None:
    for base in (NGRAM, DRAFT):
        with pytest.raises(ConfigError, match=message):
            parse_speculative_config({**base, "simulate_acceptance": rates})
