"""BuildConfig, KvCacheConfig and the resolution of defaults."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest

from trtspec.builder.resolve import resolve_build
from trtspec.config.build_config import WEIGHT_OPTIONS, BuildConfig
from trtspec.config.kv import KvCacheConfig
from trtspec.config.rope import RopeConfig
from trtspec.config.storage import NetworkStorage, WeightStorage
from trtspec.errors import ConfigError
from trtspec.speculative.ngram.options import NGramDecodingConfig

from ..tiny_config import tiny_config

MODEL = tiny_config(
    architecture="LlamaForCausalLM",
    vocab_size=100,
    hidden_size=16,
    intermediate_size=32,
    num_layers=2,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    eps=1e-5,
    max_position_embeddings=512,
    dtype="bfloat16",
)


@pytest.mark.parametrize(
    ("name", "full"),
    [
        ("fp32", "float32"),
        ("bf16", "bfloat16"),
        ("half", "float16"),
        ("torch.float16", "float16"),
        ("auto", "auto"),
    ],
)
def test_dtype_spellings(name: str, full: str) -> None:
    assert BuildConfig(dtype=name).dtype == full


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": "fp8"}, "dtype 'fp8' is not supported"),
        ({"max_batch_size": 0}, "max_batch_size=0 must be between 1"),
        ({"max_seq_len": 1}, "max_seq_len=1 must be at least 2"),
        ({"max_num_tokens": 0}, "max_num_tokens=0"),
        ({"tokens_per_block": 12}, "tokens_per_block=12 must be a power of two"),
        ({"device": "gpu"}, r"device 'gpu' is unknown.* \(available: auto, cpu, cuda\)"),
        ({"device": "cuda:1"}, "'cuda:1' is unknown; .* with CUDA_VISIBLE_DEVICES"),
        ({"max_beam_width": 4}, "beam search"),
        ({"max_input_len": 4}, "max_seq_len"),
        ({"max_batch": 4}, "did you mean `max_batch_size`"),
    ],
)
def test_build_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        BuildConfig.from_dict(options)


def test_build_round_trip() -> None:
    config = BuildConfig(dtype="bf16", max_seq_len=64)
    assert BuildConfig.from_dict(config.to_dict()) == config
    assert BuildConfig.from_dict({"max_model_len": 64, "max_num_seqs": 8}).max_seq_len == 64


def test_the_device_is_resolved_with_its_reason(monkeypatch: pytest.MonkeyPatch) -> None:
    for found, device, words in ((True, "cuda", "finds a CUDA"), (False, "cpu", "finds no CUDA")):
        monkeypatch.setattr("torch.cuda.is_available", lambda found=found: found)
        resolved, reasons = resolve_build(BuildConfig(device="auto"), MODEL)
        assert resolved.device == device
        assert any(f"device {device}" in reason and words in reason for reason in reasons)
        for given in ("cpu", "cuda"):
            resolved, reasons = resolve_build(BuildConfig(device=given), MODEL)
            assert resolved.device == given
            assert not any("device" in reason for reason in reasons)


@pytest.mark.parametrize("fraction", [0.0, -1.0, 1.5, float("nan")])
def test_kv_refused(fraction: float) -> None:
    with pytest.raises(ConfigError, match="free_memory_fraction"):
        KvCacheConfig(free_memory_fraction=fraction)


def test_kv() -> None:
    data = {"free_gpu_memory_fraction": 0.2, "enable_block_reuse": False, "max_tokens": 64}
    assert KvCacheConfig.from_dict(data) == KvCacheConfig(False, 64, 0.2)
    with pytest.raises(ConfigError, match="max_tokens=0"):
        KvCacheConfig(max_tokens=0)
    with pytest.raises(ConfigError, match="kv_cache_dtype 'fp8': no attention reads"):
        KvCacheConfig.from_dict({"dtype": "fp8"})


def test_defaults_are_resolved_with_reasons() -> None:
    resolved, reasons = resolve_build(BuildConfig(), MODEL)
    assert resolved == BuildConfig(
        *("bfloat16", 8, 512, 2048, 16, "aoti"),
        **dict.fromkeys((w for w in WEIGHT_OPTIONS if w.endswith("dtype")), "bfloat16"),
        weight_group_size=0,
    )
    assert [r.split(":")[0] for r in reasons] == [
        "dtype bfloat16",
        "max_seq_len 512",
        "max_num_tokens 2048",
    ]
    assert resolve_build(resolved, MODEL) == (resolved, [])
    small, _ = resolve_build(BuildConfig(max_batch_size=1, max_seq_len=64), MODEL)
    assert small.max_num_tokens == 64
    wide, reasons = resolve_build(
        BuildConfig(max_batch_size=8, max_seq_len=16), MODEL, NGramDecodingConfig(max_draft_len=31)
    )
    assert wide.max_num_tokens == 256 and "8 x 32 rows" in reasons[-1]


@pytest.mark.parametrize(
    ("backend", "dtype", "why"),
    [
        ("aoti", "bfloat16", "the checkpoint's float16 overflows above 65504, .* ask for float16"),
        ("onnx", "float32", "ONNX Runtime has no bfloat16 .* ask for float16"),
    ],
)
def test_float16_is_not_chosen_for_a_cpu(backend: str, dtype: str, why: str) -> None:
    model, build = replace(MODEL, dtype="float16"), BuildConfig(backend=backend, device="cpu")
    resolved, reasons = resolve_build(build, model)
    assert resolved.dtype == dtype and re.match(f"dtype {dtype}: {why}", reasons[0])
    asked, reasons = resolve_build(replace(build, dtype="float16"), model)
    assert asked.dtype == "float16" and not any(r.startswith("dtype") for r in reasons)


LONG = {"type": "longrope", "factor": 4.0, "short_factor": [1.0], "long_factor": [2.0]}


@pytest.mark.parametrize(
    ("rope", "usual", "longest", "why"),
    [
        (
            {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 128},
            *(512, 512, r"what the model's yarn rope \(factor 4\) makes of 128"),
        ),
        (
            {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 512},
            *(512, 2048, r"counted before its yarn rope \(factor 4\) stretches it, up to 2048"),
        ),
        (
            {"type": "linear", "factor": 3.0},
            *(512, 1536, r"counted before its linear rope \(factor 3\) stretches it, up to 1536"),
        ),
        (
            {**LONG, "original_max_position_embeddings": 128},
            *(128, 512, r"short longrope factors for; of its max_position_embeddings=512 more can"),
        ),
        (
            {
                "type": "llama3",
                "factor": 8.0,
                "original_max_position_embeddings": 512,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
            },
            *(512, 512, "the model's max_position_embeddings$"),
        ),
        ({}, 512, 512, "the model's max_position_embeddings$"),
    ],
)
def test_sequences_are_as_long_as_the_rope_was_made_for(
    rope: dict[str, Any], usual: int, longest: int, why: str
) -> None:
    """A factor that may be part of max_position_embeddings stretches it only where that is asked
    for."""
    model = replace(MODEL, ropes=(RopeConfig(**rope),))
    resolved, reasons = resolve_build(BuildConfig(), model)
    assert resolved.max_seq_len == usual
    (reason,) = [reason for reason in reasons if "max_seq_len" in reason.split(":")[0]]
    assert re.search(rf"^max_seq_len {usual}: .*{why}", reason)
    asked, reasons = resolve_build(BuildConfig(max_seq_len=longest), model)
    assert asked.max_seq_len == longest
    assert any(r.startswith(f"max_seq_len {longest}: past") for r in reasons) == (longest > usual)
    with pytest.raises(ConfigError, match=f"max_seq_len={longest + 1} exceeds .* to {longest}$"):
        resolve_build(BuildConfig(max_seq_len=longest + 1), model)


def test_int8_weights() -> None:
    """Asked for, or as the checkpoint has them; never where no kernel reads them."""
    asked = BuildConfig(weight_dtype="int8", weight_group_size=64)
    assert BuildConfig.from_dict(asked.to_dict()) == asked
    resolved, reasons = resolve_build(asked, MODEL)
    assert (resolved.dtype, resolved.weight_dtype) == ("float32", "int8")
    assert (resolved.kv_cache_dtype, resolved.embedding_weight_dtype) == ("float16", "bfloat16")
    assert sum("weights" in reason for reason in reasons) == 1 and "float32" in reasons[0]
    stored = replace(MODEL, storage=NetworkStorage(WeightStorage(bits=8)))
    resolved, reasons = resolve_build(BuildConfig(), stored)
    assert resolved.weight_dtype == "bfloat16" and resolved.activation_dtype == "int8"
    assert (resolved.dtype, resolved.kv_cache_dtype) == ("float32", "float16")
    for dtype, kept in (("bfloat16", "auto"), ("float32", "auto")):  # one is asked for: for all
        narrow, _ = resolve_build(BuildConfig(dtype), stored)
        assert (narrow.dtype, narrow.weight_dtype, narrow.kv_cache_dtype) == (dtype, dtype, kept)
    for given in ({"activation_dtype": "bf16"}, {"weight_dtype": "bf16"}):
        narrow, _ = resolve_build(BuildConfig(**given), stored)
        assert (narrow.dtype, narrow.activation_dtype) == ("bfloat16", "bfloat16")
        assert narrow.kv_cache_dtype == "auto"
    wide, _ = resolve_build(BuildConfig(kv_cache_dtype="q8_0"), stored)
    assert (wide.dtype, wide.kv_cache_dtype) == ("float32", "int8")
    assert resolve_build(BuildConfig("float32", weight_dtype="bf16"), MODEL)[0].dtype == "float32"
    assert "weights int8: as the checkpoint stores them" in reasons
    floats = BuildConfig(weight_dtype="bfloat16")
    resolved, reasons = resolve_build(floats, stored)
    assert resolved.weight_dtype == "bfloat16" and "become floats" in reasons[1]
    assert resolve_build(floats, MODEL)[0].weight_dtype == "bfloat16"
    for config, model, message in (
        (
            BuildConfig(weight_dtype="int8", backend="onnx"),
            MODEL,
            "'onnx'.* leave weight_dtype out",
        ),
        (BuildConfig(backend="onnx"), stored, "'onnx', .*give weight_dtype 'float32' to make"),
        (BuildConfig(weight_dtype="int8", backend="tensorrt", dtype="fp16"), MODEL, "'tensorrt'"),
        (BuildConfig(weight_dtype="int8", device="cuda"), MODEL, "device 'cuda'"),
        (asked, stored, "weight_group_size=64: .* have groups of their own"),
        (BuildConfig(weight_dtype="fp32"), MODEL, "'float32' with dtype 'bfloat16'"),
        (BuildConfig("fp16", weight_dtype="bf16"), MODEL, "'bfloat16' with dtype 'float16'"),
        (BuildConfig(weight_dtype="int5"), MODEL, "'int5' is not supported; did you mean `int8`"),
        (
            BuildConfig(weight_dtype="int8", weight_group_size=48),
            MODEL,
            "=48 is not one of 0, 16, 32, 64, 128, 256",
        ),
        (BuildConfig(weight_group_size=64), MODEL, "=64 was given without weight_dtype int8 or"),
        (BuildConfig(head_weight_dtype="int4", device="cuda"), MODEL, "head_weight_dtype int4 is"),
        (BuildConfig(head_weight_dtype="int"), MODEL, "head_weight_dtype 'int' is not supported"),
        (BuildConfig(activation_dtype="int8"), MODEL, "without weight_dtype int8 or int4"),
        (BuildConfig(activation_dtype="fp16"), MODEL, "'float16' with dtype 'bfloat16'"),
        (BuildConfig(activation_dtype="int4"), MODEL, "activation_dtype 'int4' is not supported"),
    ):
        with pytest.raises(ConfigError, match=message):
            resolve_build(config, model)


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"max_seq_len=513 exceeds.*max_position_embeddings=512"):
        resolve_build(BuildConfig(max_seq_len=513), MODEL)
    drafts = NGramDecodingConfig(max_draft_len=4)
    with pytest.raises(ConfigError, match=r"max_num_tokens=7 is below max_batch_size=8"):
        resolve_build(BuildConfig(max_num_tokens=7), MODEL, drafts)
    tight, reasons = resolve_build(BuildConfig(max_num_tokens=39), MODEL, drafts)
    assert (
        tight.max_num_tokens == 39 and "drafts shortened" in reasons[-1] and "= 40" in reasons[-1]
    )
    _, reasons = resolve_build(BuildConfig(max_num_tokens=40), MODEL, drafts)
    assert not any("shortened" in reason for reason in reasons)
    short = NGramDecodingConfig(max_draft_len=4, max_model_len=100)
    with pytest.raises(ConfigError, match=r"max_model_len=100 is below max_seq_len=512"):
        resolve_build(BuildConfig(), MODEL, short)
