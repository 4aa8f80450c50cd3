"""Options of vLLM's, SGLang's and TensorRT-LLM's engines: which translate to one of ours, which ask
for something that is done anyway, and why the others are refused."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from trtspec.config.decoding import DecodingConfig
from trtspec.config.speculative_keys import any_bool, any_number
from trtspec.config.strict import Foreign
from trtspec.errors import ConfigError

ALIASES: Mapping[str, str] = {
    "max_model_len": "max_seq_len",
    "context_length": "max_seq_len",
    "max_num_seqs": "max_batch_size",
    "max_running_requests": "max_batch_size",
    "max_num_batched_tokens": "max_num_tokens",
    "block_size": "tokens_per_block",
    "page_size": "tokens_per_block",
    "tensorrt_config": "backend_options",
    "mem_fraction_static": "gpu_memory_utilization",
    "mem_fraction": "gpu_memory_utilization",
    "cuda_graph_max_bs": "cuda_graph_max_batch_size",
    "tokenizer_path": "tokenizer",
    "random_seed": "seed",
    "tp_size": "tensor_parallel_size",
    "tp": "tensor_parallel_size",
    "lora_paths": "lora_modules",
    "max_loras_per_batch": "max_loras",
}

_RANKS = ("tensor_parallel_size", "tp_size", "tp")
_ONE_DEVICE = (
    "an engine is split over processes by tensor_parallel_size alone; leave it out or give 1"
)
_WEIGHTS = (
    "write weight_dtype='int8' or 'int4' to quantise weights; checkpoints that are quantised "
    "already need no option"
)
_GRAPHS = "write cuda_graph_config={'batch_sizes': [...]}, in requests"
_COMPILED = "engines are compiled ahead of time, always"
_BEAM = "beam search is not offered"
_TEXT = "only text is offered"
_GUIDED = "grammars are read by llguidance; a request says its own, as SamplingParams"
_NO_SWAP = "a request that loses its blocks is computed again, nothing is swapped"
_ONE_LEVEL = "weights and caches lie on the engine's device; give 0"
_FIGURES = "figures are always kept: ask `get_metrics()`, or the server's /metrics"
_CHECKPOINT = "the checkpoint's config.json says it"
_REQUESTS = "it is said with each request, as SamplingParams"
_PARSERS = "texts are returned as they are; trtspec-serve reads tool calls and reasoning"
_TOKENS = "max_num_tokens bounds the rows of a step, chunks of prompts among them"
_REUSE = "write kv_cache_config={'enable_block_reuse': False} to turn prefix reuse off"
_CAPTURES = ("FULL", "PIECEWISE", "FULL_DECODE_ONLY", "FULL_AND_PIECEWISE")


def graphs_as_they_are(value: Any, given: Mapping[str, Any]) -> bool:
    """a `cudagraph_mode` with graphs, which are the default on CUDA"""
    if not isinstance(value, Mapping):
        return value is None
    return not value or (
        value.keys() == {"cudagraph_mode"} and str(value["cudagraph_mode"]).upper() in _CAPTURES
    )


def ranks_here(value: Any, given: Mapping[str, Any]) -> bool:
    """`"mp"`, or `"uni"` with one rank"""
    ranks = next((given[name] for name in _RANKS if given.get(name) is not None), 1)
    return value in (None, "mp") or (value == "uni" and ranks == 1)


def up_to_20(value: Any, given: Mapping[str, Any]) -> bool:
    """0 to 20"""
    return value is None or (type(value) is int and 0 <= value <= 20)


def _each(names: str, rule: Foreign) -> dict[str, Foreign]:
    return dict.fromkeys(names.split(), rule)


FOREIGN: Mapping[str, Foreign] = {
    **_each(
        "pipeline_parallel_size data_parallel_size context_parallel_size "
        "prefill_context_parallel_size decode_context_parallel_size expert_parallel_size "
        "moe_tensor_parallel_size moe_expert_parallel_size moe_cluster_parallel_size "
        "pp_size dp_size ep_size cp_size pp dp nnodes",
        Foreign(_ONE_DEVICE, (None, 1)),
    ),
    "disable_custom_all_reduce": Foreign("it must be true or false", any_bool),
    **_each("enable_attention_dp enable_dp_attention", Foreign("all ranks see all requests")),
    "distributed_executor_backend": Foreign(
        "ranks are processes of this host, the first of them this one; trtspec-serve runs replicas "
        'over "ray"',
        ranks_here,
    ),
    **_each(
        "disable_overlap_scheduler disable_overlap_schedule",
        Foreign(
            "write async_scheduling=False to deliver between steps; none is launched before the "
            "result of the last, unless steps_ahead says so"
        ),
    ),
    **_each(
        "enable_chunked_prefill enable_chunked_context",
        Foreign("long prompts are always fed in chunks", (None, True)),
    ),
    **_each("chunked_prefill_size max_prefill_tokens", Foreign(_TOKENS, (None,))),
    **_each("max_num_partial_prefills max_long_partial_prefills", Foreign(_TOKENS, (None, 1))),
    "long_prefill_token_threshold": Foreign(_TOKENS, (None, 0)),
    "schedule_policy": Foreign("write scheduling_policy", (None, "fcfs")),
    "num_scheduler_steps": Foreign("a step is one target call", (None, 1)),
    "preemption_mode": Foreign(_NO_SWAP, (None, "recompute")),
    "swap_space": Foreign(f"{_NO_SWAP}; give 0", (None, 0, 0.0)),
    "cpu_offload_gb": Foreign(_ONE_LEVEL, (None, 0, 0.0)),
    "enable_sleep_mode": Foreign("weights stay loaded until `shutdown()`"),
    "trust_remote_code": Foreign("no code is ever loaded from a checkpoint"),
    **_each("quantization quant_config torchao_config", Foreign(_WEIGHTS, (None,))),
    "quantize": Foreign(
        "weights are quantised by AWQ when an engine is built: run trtspec-build --quantize awq, "
        "and give the engine folder",
        (None, "rtn"),
    ),
    "load_format": Foreign("checkpoints are safetensors", (None, "auto", "safetensors")),
    **_each(
        "revision tokenizer_revision code_revision",
        Foreign("download the revision and give its folder", (None,)),
    ),
    "download_dir": Foreign("set HF_HOME for where downloads go", (None,)),
    "tokenizer_mode": Foreign("tokenizers are those of transformers", (None, "auto", "hf")),
    "calculate_kv_scales": Foreign("scales of 8-bit caches are those of each token and head"),
    "enable_prefix_caching": Foreign(_REUSE, (None, True)),
    **_each("disable_radix_cache disable_kv_cache_reuse", Foreign(_REUSE)),
    **_each(
        "max_total_tokens num_gpu_blocks_override",
        Foreign("write kv_cache_config={'max_tokens': ...}", (None,)),
    ),
    "kv_cache_fraction": Foreign("write kv_cache_config={'free_memory_fraction': ...}", (None,)),
    "disable_cuda_graph": Foreign("write enforce_eager=True to run without CUDA graphs"),
    "use_cuda_graph": Foreign("write enforce_eager=True to run without CUDA graphs", (None, True)),
    "compilation_config": Foreign(
        f"{_COMPILED}; enforce_eager=True runs them without CUDA graphs, and for their sizes "
        f"{_GRAPHS}",
        graphs_as_they_are,
    ),
    **_each(
        "cuda_graph_bs cuda_graph_sizes cudagraph_capture_sizes cuda_graph_batch_sizes",
        Foreign(_GRAPHS, (None,)),
    ),
    "enable_torch_compile": Foreign(_COMPILED, any_bool),
    "torch_compile_max_bs": Foreign(f"{_COMPILED}; it must be a number", any_number),
    "max_seq_len_to_capture": Foreign("graphs serve any length; a number", any_number),
    "torch_compile_config": Foreign(_COMPILED, (None,)),
    **_each(
        "attention_backend attn_backend prefill_attention_backend decode_attention_backend",
        Foreign("there is one attention op", (None, "auto")),
    ),
    **_each("sampling_backend sampler_type", Foreign("there is one sampler", (None, "auto"))),
    **_each("moe_backend moe_runner_backend", Foreign("no such backend", (None, "auto"))),
    "disable_cascade_attn": Foreign("it must be true or false", any_bool),
    "use_v2_block_manager": Foreign("it must be true or false", any_bool),
    "enable_prompt_adapter": Foreign("adapters of prompts are not offered"),
    **_each(
        "lora_config peft_cache_config",
        Foreign("write enable_lora, max_loras and max_lora_rank", (None,)),
    ),
    "max_cpu_loras": Foreign("adapters stay in memory until they are unloaded", any_number),
    "fully_sharded_loras": Foreign("an engine with adapters is not split over ranks"),
    "lora_extra_vocab_size": Foreign("adapters add no tokens", (None, 0)),
    "lora_dtype": Foreign("adapters have the engine's dtype", (None, "auto")),
    "lora_target_modules": Foreign("all projections may be adapted", (None,)),
    "lora_backend": Foreign("there is one op", (None, "auto")),
    **_each(
        "limit_mm_per_prompt mm_processor_kwargs allowed_local_media_path",
        Foreign(_TEXT, (None, {}, "")),
    ),
    "enable_multimodal": Foreign(_TEXT),
    **_each("task runner", Foreign("only text generation is offered", (None, "auto", "generate"))),
    "is_embedding": Foreign("only text generation is offered"),
    **_each(
        "guided_decoding_backend guided_decoding_config structured_outputs_config grammar_backend",
        Foreign(_GUIDED, (None, "auto", "llguidance", "guidance")),
    ),
    **_each("logits_processors batched_logits_processor", Foreign(_REQUESTS, (None, []))),
    **_each("generation_config override_generation_config", Foreign(_REQUESTS, (None, "vllm", {}))),
    **_each("tool_call_parser reasoning_parser tool_parser_plugin", Foreign(_PARSERS, (None, ""))),
    "enable_auto_tool_choice": Foreign(_PARSERS),
    **_each(
        "hf_overrides rope_scaling rope_theta hf_config_path json_model_override_args",
        Foreign(_CHECKPOINT, (None, {}, "")),
    ),
    "max_beam_width": Foreign(_BEAM, (None, 1)),
    "max_input_len": Foreign("`max_seq_len` bounds prompt and output together", (None,)),
    "max_logprobs": Foreign("a request may ask for at most 20 `logprobs`", up_to_20),
    **_each(
        "disable_log_stats enable_metrics enable_iter_perf_stats enable_iter_req_stats "
        "return_perf_metrics",
        Foreign(_FIGURES, any_bool),
    ),
    "print_iter_log": Foreign(_FIGURES),
    "build_config": Foreign("write its fields as options of their own", (None,)),
    "enable_build_cache": Foreign("what is built is always kept", (None, True)),
    "additional_config": Foreign("no such options are known", (None, {})),
    "served_model_name": Foreign("it is an option of trtspec-serve", (None,)),
}
"""Options that are not fields of LLMConfig."""

_SPECULATIVE_PREFIX = "speculative_"
_SPECULATIVE = (
    *("num_speculative_tokens", "ngram_prompt_lookup_max", "ngram_prompt_lookup_min"),
    "spec_decoding_acceptance_method",
    "typical_acceptance_sampler_posterior_threshold",
    "typical_acceptance_sampler_posterior_alpha",
)


def is_of_speculation(key: str) -> bool:
    """Whether an option of another engine belongs to its speculation."""
    return key in _SPECULATIVE or key.startswith(_SPECULATIVE_PREFIX)


def part_speculation(
    given: Mapping[str, Any] | DecodingConfig | bool | None, options: Mapping[str, Any]
) -> tuple[Any, dict[str, Any]]:
    """Separate the speculative config from the engine's options, among which its keys may stand, as
    in SGLang (``speculative_algorithm=...``) and earlier versions of vLLM.

    Raises:
        ConfigError: such keys are given in addition to a config.
    """
    keys = {key: value for key, value in options.items() if is_of_speculation(key)}
    asked = {key: value for key, value in keys.items() if value is not None}
    if asked and given is not None:
        raise ConfigError(
            f"{', '.join(asked)} came beside speculative_config={given!r:.80}; write all of it "
            "there, or leave that out"
        )
    return asked or given, {key: v for key, v in options.items() if key not in keys}
