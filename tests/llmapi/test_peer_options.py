"""What users of vLLM, SGLang and TensorRT-LLM type in Python: it means what is done here, or is
refused by name and with a reason."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

import trtspec
from trtspec import KvCacheConfig, SamplingParams
from trtspec.config.build_config import BuildConfig
from trtspec.config.kv import DEFAULT_FREE_MEMORY_FRACTION
from trtspec.config.strict import nearest
from trtspec.errors import ConfigError, RequestError
from trtspec.llmapi.options import LLMConfig
from trtspec.llmapi.peer_options import ALIASES, FOREIGN, part_speculation
from trtspec.speculative.options import parse_speculative_config

from ..e2e.eagle_heads import random_eagle3
from ..e2e.helpers import PARAMS_40, TinyModels, chain, open_llm, random_prompt, tokens
from .conftest import TextModel


def test_an_output_reads_as_a_list_of_one(text_model: TextModel) -> None:
    with text_model.open("ngram") as llm:
        output = llm.generate("ab", SamplingParams(max_tokens=2))
        assert output[0] is output[-1] is output
        assert len(output) == 1 and list(output) == [output] == output[:]
        with pytest.raises(IndexError):
            output[1]
        (inner,) = llm.generate(["ab"], SamplingParams(max_tokens=2), use_tqdm=False)
        assert inner.outputs == output.outputs or inner.outputs[0].text == output.outputs[0].text
        assert llm.get_tokenizer() is llm.tokenizer is not None


def test_every_alias_means_a_field_and_nothing_is_both() -> None:
    own = set(LLMConfig.__dataclass_fields__)
    assert set(ALIASES.values()) <= own
    assert not (own | set(ALIASES)) & set(FOREIGN)


@pytest.mark.parametrize(
    "options",
    [
        {"distributed_executor_backend": "uni", "enforce_eager": True, "pipeline_parallel_size": 1},
        {"swap_space": 0, "cpu_offload_gb": 0, "disable_custom_all_reduce": True},
        {"compilation_config": {"cudagraph_mode": "FULL_DECODE_ONLY"}},
        {"ep_size": 1, "disable_radix_cache": False, "enable_torch_compile": True},
        {"max_beam_width": 1, "enable_chunked_prefill": True, "torch_compile_max_bs": 2},
        {"distributed_executor_backend": "mp", "trust_remote_code": False},
        {"dtype": torch.float32, "device": torch.device("cpu"), "enable_iter_perf_stats": True},
    ],
)
def test_what_is_done_anyway(options: dict[str, Any]) -> None:
    given = {"dtype": "float32", "device": "cpu"}
    own = {"enforce_eager": options.get("enforce_eager", False)}
    assert LLMConfig(**{**given, **options}).build_config() == LLMConfig(**given).build_config()
    assert LLMConfig(**options) == LLMConfig(
        **own, **{k: str(v) for k, v in options.items() if k in given}
    )


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"swap_space": 4}, "`swap_space`=4 is refused: .* computed again"),
        ({"enable_prompt_adapter": True}, "`enable_prompt_adapter`=True is refused: adapters"),
        ({"lora_config": {"rank": 8}}, "`lora_config`=.* is refused: write enable_lora"),
        ({"distributed_executor_backend": "ray"}, "ranks are processes of this host"),
        ({"distributed_executor_backend": "uni", "tp": 2}, "ranks are processes of this host"),
        ({"compilation_config": {"cudagraph_mode": "NONE"}}, "enforce_eager=True"),
        ({"compilation_config": {"cudagraph_capture_sizes": [5]}}, "batch_sizes"),
        ({"compilation_config": 3}, "ahead of time"),
        ({"cudagraph_capture_sizes": [5, 10]}, "batch_sizes.*in requests"),
        ({"max_beam_width": 2}, "`max_beam_width`=2 is refused: beam search"),
        ({"pp_size": 2}, "`pp_size`=2 is refused: .*by tensor_parallel_size alone"),
        ({"disable_radix_cache": True}, "enable_block_reuse"),
        ({"attention_backend": "flashinfer"}, "one attention op"),
        ({"max_total_tokens": 20480}, "'max_tokens'"),
        ({"dtype": torch.int8}, "dtype 'torch.int8' is not supported"),
        ({"dtype": 32}, "must be str, got int 32"),
        ({"kv_cache_dtype": "fp8"}, "no attention reads K/V of 8-bit floats"),
        ({"gpu_memory_utilization": 1.5}, "memory_fraction=1.5 must be above 0 and at most 1"),
        ({"gpu_memory_utilization": 0.9, "mem_fraction_static": 0.8}, "mean the same option"),
        ({"gpu_memory_utilization": 0.9, "kv_cache_config": {"free_memory_fraction": 0.4}},
         "both say how much memory"),
        ({"cuda_graph_max_bs": 8, "cuda_graph_config": {"batch_sizes": [1]}},
         "cuda_graph_max_batch_size=8 came beside cuda_graph_config"),
        ({"cuda_graph_max_bs": 0}, "max_batch_size=0 must be at least 1"),
    ],
)  # fmt: skip
def test_what_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        LLMConfig(**options).build_config()


@pytest.mark.parametrize("name", ["tensor_parallel_size", "tp_size", "tp"])
def test_ranks(name: str) -> None:
    options = {name: 2, "distributed_executor_backend": "mp", "enable_expert_parallel": True}
    asked = LLMConfig(**options).build_config()
    assert asked == BuildConfig(tensor_parallel_size=2, enable_expert_parallel=True)


def test_a_part_of_all_memory() -> None:
    cache = LLMConfig(gpu_memory_utilization=0.9).kv_cache_config
    assert cache == KvCacheConfig(memory_fraction=0.9) == KvCacheConfig(mem_fraction_static=0.9)
    assert cache.budget(free=700, total=1000) == 600  # 300 are full, 100 stay free
    assert cache.budget(free=50, total=1000) < 0
    assert KvCacheConfig().budget(700, 1000) == int(700 * DEFAULT_FREE_MEMORY_FRACTION)


def test_graphs_of_at_most_so_many_requests() -> None:
    config = LLMConfig(cuda_graph_max_bs=6)
    assert config.graph_config("cpu") is None, "it asks for no graphs where there are none"
    graphs = config.graph_config("cuda")
    assert graphs is not None and graphs.sizes(64) == (1, 2, 4, 6)


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("max_batchsize", "max_batch_size"),
        ("tensor_parallel", "tensor_parallel_size"),
        ("prefix_caching", "enable_prefix_caching"),
        ("quantisation", "quantization"),
        ("lora_configuration", "lora_config"),
        ("draft_config", None),
        ("model_config", None),
        ("num_gpus", None),
    ],
)
def test_hints_name_what_may_be_meant_and_no_neighbour(typed: str, meant: str | None) -> None:
    known = [*LLMConfig.__dataclass_fields__, *ALIASES, *FOREIGN]
    assert nearest(typed, known) == (f"; did you mean `{meant}`?" if meant else "")


def test_a_word_in_common_makes_no_hint() -> None:
    assert nearest("lora_config", ["quant_config", "kv_cache_config"]) == ""


SGLANG = {
    "speculative_algorithm": "EAGLE3",
    "speculative_draft_model_path": "head",
    "speculative_num_steps": 3,
    "speculative_eagle_topk": 4,
    "speculative_num_draft_tokens": 13,
}


def test_speculation_among_the_options() -> None:
    asked, rest = part_speculation(None, {**SGLANG, "seed": 1, "speculative_token_map": None})
    assert rest == {"seed": 1}
    config = parse_speculative_config(asked)
    assert config == trtspec.Eagle3DecodingConfig(
        speculative_model="head", max_draft_len=3, topk=4, num_draft_tokens=13
    )
    asked, rest = part_speculation(
        None,
        {"speculative_model": "[ngram]", "num_speculative_tokens": 3, "ngram_prompt_lookup_max": 4,
         "speculative_disable_mqa_scorer": True},
    )  # fmt: skip
    with pytest.raises(ConfigError, match=r'for prompt lookup write \{"method": "ngram"'):
        parse_speculative_config(asked)
    asked, _ = part_speculation(
        None,
        {"speculative_algorithm": "NGRAM", "num_speculative_tokens": 3,
         "ngram_prompt_lookup_max": 4},
    )  # fmt: skip
    assert parse_speculative_config(asked) == trtspec.NGramDecodingConfig(
        max_draft_len=3, prompt_lookup_max=4
    )
    asked, rest = part_speculation(
        None, {"speculative_model": "small", "num_speculative_tokens": 3, "dtype": "half"}
    )
    assert parse_speculative_config(asked) == trtspec.DraftTargetDecodingConfig(
        speculative_model="small", max_draft_len=3
    )
    for beside in (False, {"method": "ngram", "num_speculative_tokens": 3}):
        with pytest.raises(ConfigError, match=r"speculative_algorithm.* came beside"):
            part_speculation(beside, SGLANG)
    assert part_speculation(False, {"speculative_token_map": None}) == (False, {})


def test_llm_takes_sglangs_speculation(models: TinyModels) -> None:
    options = {
        "speculative_algorithm": "STANDALONE",
        "speculative_draft_model_path": str(models.draft("llama")),
        "speculative_num_steps": 2,
    }
    with open_llm(models.folder("llama"), **options) as llm:
        assert llm.speculation is not None
        assert (llm.speculation.method, llm.speculation.max_draft_len) == ("draft_model", 2)
    with pytest.raises(ConfigError, match="came beside speculative_config"):
        open_llm(models.folder("llama"), chain(models.draft("llama"), 2), **options)


def test_configs_by_tensorrt_llms_names() -> None:
    assert trtspec.MTPDecodingConfig is trtspec.MtpDecodingConfig
    assert trtspec.PARDDecodingConfig is trtspec.PardDecodingConfig
    with pytest.raises(AttributeError, match="no attribute 'MTPdecodingConfig'"):
        trtspec.MTPdecodingConfig  # noqa: B018


class Drafts:
    """One draft of a known kind."""

    by_pass = False

    def __init__(self, kind: type[Any], built: Any = None) -> None:
        self.kind, self.built = kind, built

    def method_for(self, model: str | Path) -> type[Any]:
        return self.kind

    def training_layers(self, method: str) -> tuple[int, ...]:
        raise AssertionError(method)


def test_eagle_with_tensorrt_llms_key_is_what_its_files_say() -> None:
    eagle, eagle3 = trtspec.EagleDecodingConfig, trtspec.Eagle3DecodingConfig
    shape = {"speculative_model": "head", "max_draft_len": 3, "topk": 2, "num_draft_tokens": 6}
    for value in (True, False):
        asked = parse_speculative_config(
            {"decoding_type": "Eagle", "eagle3_one_model": value, **shape}
        )
        assert asked == eagle(eagle3_one_model=value, **shape)
        assert asked.resolve(Drafts(eagle3)) == eagle3(**shape)
        assert asked.resolve(Drafts(eagle)) is asked
        assert asked.resolve(Drafts(eagle, eagle3(**shape))) == eagle3(**shape)
    plain = eagle(**shape)
    assert plain.resolve(Drafts(eagle3)) is plain, "whose files are refused by name"
    members = [{"method": "suffix"}, {"method": "eagle", "eagle3_one_model": True, **shape}]
    both = parse_speculative_config({"method": "hybrid", "drafters": members})
    assert both is not None
    assert both.resolve(Drafts(eagle3)).members[1] == eagle3(**shape)
    assert both.resolve(Drafts(eagle)) is both


def test_an_eagle3_head_under_tensorrt_llms_name(models: TinyModels, tmp_path: Path) -> None:
    """From a checkpoint and from the engine folder that was built of it."""
    head = random_eagle3(models.hf("llama"), tmp_path / "head", modelopt=False)
    config = trtspec.EagleDecodingConfig(
        max_draft_len=2, speculative_model=str(head), eagle3_one_model=True
    )
    options: dict[str, Any] = {"backend": "eager", "dtype": "float32"}
    folder = trtspec.build(models.folder("llama"), config, tmp_path / "engine", **options)
    prompt = random_prompt(70, 20)
    for model in (models.folder("llama"), folder):
        with open_llm(model, config) as llm:
            assert llm.speculation is not None and llm.speculation.method == "eagle3"
            output = llm.generate(prompt, PARAMS_40)
            assert tokens([output]) == [models.greedy("llama", prompt)]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"logprobs": -1}, "logprobs=-1 is refused: .* whole vocabulary .* 0 to 20"),
        ({"return_context_logits": True}, "is refused: only the log probabilities of"),
        ({"json_schema": "{}"}, "`json_schema`='{}' is refused: write guided_decoding"),
        ({"flat_logprobs": True}, "`flat_logprobs`=True is refused"),
    ],
)
def test_sampling_options_refused_by_name(options: dict[str, Any], words: str) -> None:
    with pytest.raises(RequestError, match=words):
        SamplingParams(**options)
    SamplingParams(prompt_logprobs=None, return_perf_metrics=True, output_kind=None)
