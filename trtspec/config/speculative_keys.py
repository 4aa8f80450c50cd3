"""Speculation keys of TensorRT-LLM, vLLM and SGLang: which translate to a field of ours, which ask
for something that is done anyway, and why the others are refused. Data only."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtspec.config.strict import Foreign

COMMON_ALIASES: Mapping[str, str] = {
    "num_speculative_tokens": "max_draft_len",
    "synthetic_acceptance_rates": "simulate_acceptance",
    "speculative_adaptive": "adaptive",
    "speculative_max_model_len": "max_model_len",
    "enable_adaptive_verification": "adaptive",
}
TREE_ALIASES: Mapping[str, str] = {
    "num_steps": "max_draft_len",
    "speculative_num_steps": "max_draft_len",
    "eagle_topk": "topk",
    "speculative_eagle_topk": "topk",
    "dynamic_tree_max_topK": "topk",
    "speculative_num_draft_tokens": "num_draft_tokens",
    "speculative_draft_window_size": "draft_window",
    "draft_window_size": "draft_window",
    "speculative_draft_sink_size": "draft_sinks",
    "speculative_draft_tensor_parallel_size": "draft_tensor_parallel_size",
}
MODEL_ALIASES: Mapping[str, str] = {
    "model": "speculative_model",
    "draft_model": "speculative_model",
    "speculative_model_dir": "speculative_model",
    "draft_model_dir": "speculative_model",
    "speculative_draft_model_path": "speculative_model",
    "speculative_draft_model": "speculative_model",
}

LOSSLESS = (
    "acceptance is lossless: a draft token is kept only where the target itself emits it, which "
    "needs neither rejection sampling nor thresholds"
)
LOSSY = "it would change the text; acceptance here is always lossless"
FIXED_LENGTH = (
    "the draft length is fixed when the engine is built; adaptive=True verifies fewer drafts, or "
    "none, where that is faster"
)
OWN_WEIGHTS = (
    "leave it out: a quantised checkpoint says itself how, and in how many bits a draft with a "
    "network keeps its weights is said by "
)
SAME_CACHE = "drafts keep K/V as their target does; leave it out"
OTHER_METHOD = "it belongs to another speculative method"
_EAGLE = "the methods eagle, eagle3, p_eagle and mtp"
_CUT = (
    f"{_EAGLE}, dflash, ddtree, jetspec, dspark and dflash2, and of draft_model, pard, pard2 and "
    "self,"
)


# What these accept is said in their docstrings, which the page of keys quotes.


def any_bool(value: Any, given: Mapping[str, Any]) -> bool:
    """`true`, `false`"""
    return value is None or isinstance(value, bool) or value in ("True", "False", "true", "false")


def any_number(value: Any, given: Mapping[str, Any]) -> bool:
    """a whole number"""
    return value is None or type(value) is int


def is_chain_length(value: Any, given: Mapping[str, Any]) -> bool:
    """the draft length"""
    names = ("max_draft_len", "num_speculative_tokens", "num_steps", "speculative_num_steps")
    return value is None or value in [given[name] for name in names if name in given]


def is_standard_or_simulated(value: Any, given: Mapping[str, Any]) -> bool:
    """`"standard"`; `"synthetic"` beside `synthetic_acceptance_rates`"""
    rates = any(given.get(name) for name in ("simulate_acceptance", "synthetic_acceptance_rates"))
    return value in (None, "standard") or (value == "synthetic" and rates)


COMMON_FOREIGN: Mapping[str, Foreign] = {
    "tensor_parallel_size": Foreign(
        "it is not a speculative option; pass `draft_tensor_parallel_size` instead", ()
    ),
    # Both say how vLLM runs a draft: nothing here is padded, and there is one way to run.
    "enforce_eager": Foreign("it must be true or false", any_bool),
    "disable_padded_drafter_batch": Foreign("it must be true or false", any_bool),
    "disable_log_stats": Foreign("it must be true or false", any_bool),
    "allow_advanced_sampling": Foreign("it must be true or false", any_bool),
    "parallel_drafting": Foreign(
        "it makes draft_model into pard and eagle3 into p_eagle, whose drafts are trained for it; "
        "leave it out here"
    ),
    "use_heterogeneous_vocab": Foreign("draft and target must share one vocabulary"),
    "use_local_argmax_reduction": Foreign(
        "logits of a split draft's head are gathered, so that drafts may be trees and samples; "
        "leave it out"
    ),
    **dict.fromkeys(
        (
            *("quantization", "speculative_model_quantization"),
            "speculative_draft_model_quantization",
        ),
        Foreign(f"{OWN_WEIGHTS}weight_dtype", (None, "unquant")),
    ),
    "draft_lm_head_quantization": Foreign(f"{OWN_WEIGHTS}head_weight_dtype", (None,)),
    **dict.fromkeys(
        ("kv_cache_dtype", "speculative_draft_kv_cache_dtype"),
        Foreign(SAME_CACHE, (None, "auto")),
    ),
    **dict.fromkeys(
        ("load_format", "speculative_draft_load_format"),
        Foreign("weights come from safetensors files", (None, "auto", "safetensors")),
    ),
    **dict.fromkeys(
        ("revision", "speculative_draft_model_revision"),
        Foreign("download that revision and give its directory", (None,)),
    ),
    "code_revision": Foreign("no code of checkpoints is run", (None,)),
    "moe_backend": Foreign("no such backend", (None, "auto")),
    **dict.fromkeys(
        ("attention_backend", "speculative_draft_attention_backend"),
        Foreign("there is one attention op", (None, "auto")),
    ),
    "speculative_attention_mode": Foreign(
        "there is one attention op, for prompts and for drafts", (None, "prefill", "decode")
    ),
    "speculative_moe_runner_backend": Foreign("no such backend", (None, "auto")),
    "speculative_disable_mqa_scorer": Foreign("it must be true or false", any_bool),
    # Drafts are drawn from the draft's own distribution with the target's noise.
    "draft_sample_method": Foreign(
        "drafts are samples coupled to the target's by shared noise, never plain argmax above "
        "temperature 0; leave it out",
        (None, "probabilistic"),
    ),
    "rejection_sample_method": Foreign(
        f'{LOSSLESS}; "synthetic" needs synthetic_acceptance_rates', is_standard_or_simulated
    ),
    "use_rejection_sampling": Foreign(LOSSLESS),
    "speculative_use_rejection_sampling": Foreign(LOSSLESS),
    "speculative_use_block_verification": Foreign(LOSSLESS),
    "acceptance_method": Foreign(LOSSLESS, (None, "rejection_sampler")),
    "spec_decoding_acceptance_method": Foreign(LOSSLESS, (None, "rejection_sampler")),
    "synthetic_acceptance_length": Foreign("give synthetic_acceptance_rates", (None,)),
    "fly_window_size": Foreign(LOSSY, (None,)),
    "fly_entropy_threshold": Foreign(LOSSY, (None,)),
    "fly_entropy_top_k": Foreign(LOSSY, (None,)),
    "posterior_threshold": Foreign(LOSSY, (None,)),
    "posterior_alpha": Foreign(LOSSY, (None,)),
    "typical_acceptance_sampler_posterior_threshold": Foreign(LOSSY, (None,)),
    "typical_acceptance_sampler_posterior_alpha": Foreign(LOSSY, (None,)),
    "use_relaxed_acceptance_for_thinking": Foreign(LOSSY),
    "relaxed_topk": Foreign(LOSSY, (None, 1)),
    "relaxed_delta": Foreign(LOSSY, (None, 0, 0.0)),
    "speculative_accept_threshold_single": Foreign(LOSSY, (None, 1, 1.0)),
    "speculative_accept_threshold_acc": Foreign(LOSSY, (None, 1, 1.0)),
    "acceptance_threshold": Foreign(LOSSY, (None,)),
    "acceptance_window": Foreign(FIXED_LENGTH, (None,)),
    "acceptance_length_threshold": Foreign(FIXED_LENGTH, (None,)),
    "acceptance_rate_window_size": Foreign(FIXED_LENGTH, (None,)),
    "acceptance_rate_threshold": Foreign(FIXED_LENGTH, (None,)),
    "max_concurrency": Foreign(FIXED_LENGTH, (None,)),
    "draft_len_schedule": Foreign(FIXED_LENGTH, (None,)),
    "num_speculative_tokens_per_batch_size": Foreign(FIXED_LENGTH, (None,)),
    "speculative_disable_by_batch_size": Foreign(FIXED_LENGTH, (None,)),
    "disable_by_batch_size": Foreign(FIXED_LENGTH, (None,)),
    "speculative_adaptive_config": Foreign("adaptive=True has no options: it measures", (None,)),
    "disable_eagle_block_drop": Foreign(OTHER_METHOD),
    "disable_lookahead_block_hashes": Foreign(OTHER_METHOD),
    # Fields of the methods that have them, refused by the others.
    **dict.fromkeys(
        ("p_min", "draft_p_min", "spec_draft_p_min"),
        Foreign(
            "only the drafts of draft_model and self end between their passes; adaptive=True "
            "verifies fewer of these",
            (None, 0, 0.0),
        ),
    ),
    **dict.fromkeys(
        (
            *("draft_window", "draft_sinks", "draft_window_size"),
            *("speculative_draft_window_size", "speculative_draft_sink_size"),
        ),
        Foreign("no network drafts here whose attention could see less", (None,)),
    ),
    **dict.fromkeys(
        ("draft_tensor_parallel_size", "speculative_draft_tensor_parallel_size"),
        Foreign("no network drafts here that could be split; leave it out or give 1", (None, 1)),
    ),
    "eagle_choices": Foreign(f"static trees belong to {_EAGLE}, and to pard", (None,)),
    "medusa_choices": Foreign(f"write the paths as eagle_choices, with {_EAGLE}", (None,)),
    **dict.fromkeys(
        ("vocabulary", "vocabulary_text", "speculative_token_map", "token_map"),
        Foreign(f"only the head of {_CUT} is cut; this vocabulary is used whole", (None,)),
    ),
}

DRAFT_ENGINE_FOREIGN: Mapping[str, Foreign] = {
    **dict.fromkeys(
        (
            *("prompt_lookup_min", "prompt_lookup_max", "max_matching_ngram_size"),
            *("is_keep_all", "is_use_oldest", "is_public_pool"),
        ),
        Foreign('it belongs to {"method": "ngram"}', (None,)),
    ),
    "greedy_sampling": Foreign("temperature decides, per request", (None, True)),
    "sa_config": Foreign("drafts are not mixed with those of a suffix automaton", (None,)),
}


# Known in the field, not in this version; names without case, "_" and "-".
METHODS_ELSEWHERE: frozenset[str] = frozenset(
    (
        "ngramgpu",
        "sa",
        "mlpspeculator",
        "domino",
        "uno",
        "lookahead",
        "lookaheaddecoding",
        "redrafter",
        "explicitdrafttokens",
        "drafttokensexternal",
        "customclass",
        "userprovided",
        "savestate",
        "hass",
        "hydra",
    )
)
