"""Lines that are typed for other servers and builders: what each means here, or why it is refused.

The tables hold the kinds of lines that guides to speculation in vLLM, SGLang and TensorRT-LLM show.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trtspec import (
    LLM,
    DraftTargetDecodingConfig,
    Eagle3DecodingConfig,
    EagleDecodingConfig,
    ExtractHiddenStatesConfig,
    MtpDecodingConfig,
    NGramDecodingConfig,
    SuffixDecodingConfig,
)
from trtspec.commands import build, serve
from trtspec.config.decoding import DecodingConfig
from trtspec.errors import ConfigError, TrtspecError
from trtspec.llmapi.options import LLMConfig
from trtspec.llmapi.peer_options import part_speculation
from trtspec.speculative.options import parse_speculative_config
from trtspec.speculative.recording import ready_to_run

Meaning = tuple[DecodingConfig | None, Mapping[str, Any]]
"""The speculation, and those fields of LLMConfig that are not their defaults."""


def eagle(kind: type[Any], steps: int, topk: int, rows: int, **more: Any) -> DecodingConfig:
    config: DecodingConfig = kind(
        speculative_model="head", max_draft_len=steps, topk=topk, num_draft_tokens=rows, **more
    )
    return config


def not_default(config: LLMConfig) -> dict[str, Any]:
    """Of an LLMConfig; of its caches likewise."""
    plain = LLMConfig()
    own = {
        name: getattr(config, name)
        for name in LLMConfig.__dataclass_fields__
        if getattr(config, name) != getattr(plain, name)
    }
    own.pop("kv_cache_config", None)
    return own


def as_served(line: list[str]) -> Meaning:
    args = serve.read_args(line)
    speculation = serve.speculative_config(args)
    return parse_speculative_config(speculation or None), not_default(
        LLMConfig(**serve.llm_options(args))
    )


def as_called(options: Mapping[str, Any]) -> Meaning:
    given = dict(options)
    asked, rest = part_speculation(given.pop("speculative_config", None), given)
    config = LLMConfig(**rest)
    config.build_config()
    speculation = ready_to_run(parse_speculative_config(asked), config.kv_transfer_config)
    return speculation, not_default(config)


SGLANG = (
    "--model m --speculative-draft-model-path head --speculative-algorithm {} "
    "--speculative-num-steps {} --speculative-eagle-topk {} --speculative-num-draft-tokens {}"
)
LINES: Mapping[str, tuple[str, Meaning]] = {
    "a tree of EAGLE-2": (
        SGLANG.format("EAGLE", 3, 4, 16) + " --cuda-graph-max-bs 8",
        (eagle(EagleDecodingConfig, 3, 4, 16), {"cuda_graph_max_batch_size": 8}),
    ),
    "with a compiled draft": (
        SGLANG.format("EAGLE", 5, 8, 64)
        + " --mem-fraction 0.6 --enable-torch-compile --torch-compile-max-bs 2",
        (eagle(EagleDecodingConfig, 5, 8, 64), {"gpu_memory_utilization": 0.6}),
    ),
    "with a cut head": (
        SGLANG.format("EAGLE", 5, 8, 64) + " --speculative-token-map freq_32768.pt "
        "--mem-fraction-static 0.7 --cuda-graph-max-bs 2 --dtype float16",
        (
            eagle(EagleDecodingConfig, 5, 8, 64, speculative_token_map="freq_32768.pt"),
            {
                "gpu_memory_utilization": 0.7,
                "cuda_graph_max_batch_size": 2,
                "dtype": "float16",
            },
        ),
    ),
    "a tree of EAGLE-3": (
        SGLANG.format("EAGLE3", 5, 8, 32).replace("-num-", "_num_")
        + " --mem_fraction 0.6 --cuda-graph-max-bs=2 --dtype half",
        (
            eagle(Eagle3DecodingConfig, 5, 8, 32),
            {"gpu_memory_utilization": 0.6, "cuda_graph_max_batch_size": 2, "dtype": "half"},
        ),
    ),
    "prediction modules": (
        "m --port 20004 --data-parallel-size 1 --tensor-parallel-size 1 --enable-expert-parallel "
        "--seed 1024 --served-model-name dsv3 --max-model-len 36768 --max-num-batched-tokens 5000 "
        "--max-num-seqs 10 --no-trust-remote-code --gpu-memory-utilization 0.9 "
        '--compilation-config {"cudagraph_mode":"FULL_DECODE_ONLY"} --speculative-config '
        '{"num_speculative_tokens":2,"method":"deepseek_mtp","disable_padded_drafter_batch":"False"}',
        (
            MtpDecodingConfig(max_draft_len=2),
            {
                "seed": 1024,
                "max_seq_len": 36768,
                "max_num_tokens": 5000,
                "max_batch_size": 10,
                "gpu_memory_utilization": 0.9,
                "tensor_parallel_size": 1,
                "enable_expert_parallel": True,
            },
        ),
    ),
    "a draft model": (
        '--model=m --max-model-len 2000 --speculative-config {"model":"small",'
        '"method":"draft_model","num_speculative_tokens":3,"max-model-len":2000}',
        (
            DraftTargetDecodingConfig(
                speculative_model="small", max_draft_len=3, max_model_len=2000
            ),
            {"max_seq_len": 2000},
        ),
    ),
    "TensorRT-LLM's": (
        "m --tp_size 1 --pp_size 1 --ep_size 1 --max_beam_width 1 --max_seq_len 64 "
        "--enable_chunked_prefill --backend-options {}",
        (None, {"max_seq_len": 64, "tensor_parallel_size": 1}),
    ),
    "short ones, in any place": (
        "-tp 2 --disable-custom-all-reduce m --swap-space 0",
        (None, {"tensor_parallel_size": 2}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", LINES)
def test_lines_of_servers(name: str) -> None:
    line, meaning = LINES[name]
    args = serve.read_args(line.split())
    assert (args.model or args.model_flag) == "m"
    speculation, options = as_served(line.split())
    options.pop("backend_options", None)
    assert (speculation, options) == meaning


CALLS: Mapping[str, tuple[Mapping[str, Any], Meaning]] = {
    "prompt lookup": (
        {
            "tensor_parallel_size": 1,
            "speculative_config": {
                "method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4,
            },
        },
        (NGramDecodingConfig(max_draft_len=5, prompt_lookup_max=4), {"tensor_parallel_size": 1}),
    ),
    "EAGLE": (
        {
            "tensor_parallel_size": 1,
            "distributed_executor_backend": "mp",
            "enforce_eager": True,
            "async_scheduling": True,
            "max_num_seqs": 1,
            "speculative_config": {
                "method": "eagle", "model": "head", "draft_tensor_parallel_size": 1,
                "num_speculative_tokens": 2,
            },
        },
        (
            eagle(EagleDecodingConfig, 2, 1, 3, draft_tensor_parallel_size=1),
            {"enforce_eager": True, "max_batch_size": 1, "tensor_parallel_size": 1},
        ),
    ),
    "suffix decoding": (
        {
            "enforce_eager": True,
            "speculative_config": {"method": "suffix", "num_speculative_tokens": 15},
        },
        (SuffixDecodingConfig(max_draft_len=15), {"enforce_eager": True}),
    ),
    "TensorRT-LLM's EAGLE-3": (
        {
            "disable_overlap_scheduler": False,
            "cuda_graph_config": None,
            "kv_cache_config": {"enable_block_reuse": False, "free_gpu_memory_fraction": 0.6},
            "max_beam_width": 1,
            "speculative_config": {
                "decoding_type": "Eagle", "max_draft_len": 4, "speculative_model_dir": "head",
                "eagle3_one_model": True,
            },
        },
        (eagle(EagleDecodingConfig, 4, 1, 5, eagle3_one_model=True), {}),
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", CALLS)
def test_calls_in_python(name: str) -> None:
    options, meaning = CALLS[name]
    assert as_called(options) == meaning


def test_hidden_states_to_files(tmp_path: Path) -> None:
    layers = {"eagle_aux_hidden_state_layer_ids": [2, 18, 34]}
    transfer = {
        "kv_connector": "ExampleHiddenStatesConnector",
        "kv_role": "kv_producer",
        "kv_connector_extra_config": {"shared_storage_path": str(tmp_path)},
    }
    speculation = {
        "method": "extract_hidden_states",
        "num_speculative_tokens": 1,
        "draft_model_config": {"hf_config": layers},
    }
    written = ["--kv-transfer-config", json.dumps(transfer)]
    for config, options in (
        as_called({"speculative_config": speculation, "kv_transfer_config": transfer}),
        as_served(
            ["m", "--speculative-config", json.dumps(speculation), *written],
        ),
    ):
        assert isinstance(config, ExtractHiddenStatesConfig)
        assert config.captured_layers(36) == (1, 17, 33)  # they name inputs, as in vLLM
        assert list(options) == ["kv_transfer_config"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("m -pp=4", "`pipeline_parallel_size`=4 is refused"),
        ("m --quantization ascend", "`quantization`='ascend' is refused: write weight_dtype"),
        ("m --trust-remote-code", "`trust_remote_code`=True is refused: no code"),
        ("m --swap-space 4", "`swap_space`=4 is refused"),
        ("m --no-enable-chunked-prefill", "`enable_chunked_prefill`=False is refused"),
        ("m --lora-modules a", "lora_modules: .a. is no .name=path."),
        ("m --cuda-graph-bs 1 2 4", r"`cuda_graph_bs`=\[1, 2, 4\] is refused"),
        ("m --tool-parser-plugin f.py", "`tool_parser_plugin`='f.py' is refused: texts"),
        ("m --attention-backend flashinfer", "one attention op"),
        ("m --stream-interval 4", "--stream_interval=4 is refused: every step"),
        ("m --extra_llm_api_options f.yml", "write its options as flags"),
        ("m --max-model-len 64 --context-length 65", "mean the same option"),
        ("m --kv-cache-config 3", "--kv-cache-config 3 is no JSON of options"),
        (SGLANG.format("EAGLE", 3, 1, 4) + ' --speculative-config {"method":"ngram"}',
         "--speculative-config holds the whole method; leave out speculative_draft_model_path"),
        (SGLANG.format("EAGLE", 3, 1, 4) + " --no-speculation", "exclude each other"),
        (SGLANG.format("EAGLE", 3, 1, 4) + " --speculative-accept-threshold-single 0.5",
         "it would change the text"),
        (SGLANG.format("EAGLE", 3, 1, 4) + " --speculative-attention-mode decode "
         "--speculative-draft-attention-backend fa3", "one attention op"),
        ("m --speculative-algorithm EAGLE --speculative-num-steps 3",
         "missing option `speculative_model`.*speculative_draft_model_path"),
    ],
)  # fmt: skip
def test_lines_refused_by_name(line: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(TrtspecError, match=words):
        as_served(line.split())
    assert serve.main(line.split()) == 1
    assert capsys.readouterr().err.startswith("trtspec-serve: ")


def test_unknown_flags_are_told_apart(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        serve.read_args(["m", "--frobnicate", "1"])
    assert "unrecognized arguments: --frobnicate" in capsys.readouterr().err


BUILD = ["--checkpoint_dir", "m", "--output_dir", "o"]


@pytest.mark.parametrize(
    ("line", "fields"),
    [
        ("--tp_size 1 --max_beam_width 1 --workers 1 --gemm_plugin auto", {}),
        ("--use_paged_context_fmha enable --remove_input_padding enable --log_level info", {}),
        ("--max-model-len 64 --max_num_seqs 2", {"max_seq_len": 64, "max_batch_size": 2}),
    ],
)
def test_lines_of_builders(line: str, fields: dict[str, Any]) -> None:
    assert build.read_args([*BUILD, *line.split()]).peers == fields


def test_a_builders_line_with_sglangs_speculation() -> None:
    line = SGLANG.format("EAGLE3", 5, 8, 32).removeprefix("--model m ")
    args = build.read_args([*BUILD, *line.split()])
    assert build.speculative_options(args) == eagle(Eagle3DecodingConfig, 5, 8, 32)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("--pp_size 2", "`pp_size`=2 is refused: .*by tensor_parallel_size alone"),
        ("--max_beam_width 4", "`max_beam_width`=4 is refused: beam search"),
        ("--gather_context_logits", "--gather_context_logits=True is refused: logits"),
        ("--max_input_len 100", "`max_seq_len` bounds prompt and output"),
        ("--gpu_memory_utilization 0.9", "--gpu_memory_utilization is no option of a build"),
        ("--max_seq_len 64 --max_model_len 32", "--max_seq_len is given twice: 64 and 32"),
    ],
)
def test_builders_lines_refused_by_name(
    line: str, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ConfigError, match=words):
        build.read_args([*BUILD, *line.split()])
    assert build.main([*BUILD, *line.split()]) == 1
    assert capsys.readouterr().err.startswith("trtspec-build: ")


def test_every_flag_of_serve_is_an_option_in_python() -> None:
    """So that a line and a call are told the same."""
    with pytest.raises(ConfigError, match=r"`swap_space`=4 is refused"):
        LLM("nowhere", swap_space=4)
    assert as_served(["m", "--skip-tokenizer-init", "--verify-checkpoint"])[1] == {
        "skip_tokenizer_init": True, "verify_checkpoint": True,
    }  # fmt: skip
