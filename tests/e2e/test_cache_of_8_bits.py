"""K/V in another dtype than the engine's: no draft, chunk, preemption or kept prefix changes a
text, and it stays near."""

from __future__ import annotations

import logging
import re
from pathlib import Path
from typing import Any

import pytest
import torch

from trtspec import LLM, KvCacheConfig, SamplingParams
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.engine.folder import EngineConfig
from trtspec.errors import ConfigError
from trtspec.llmapi.engines import build

from .every_method import METHODS
from .families import family_model
from .helpers import TinyModels, assert_no_leak, chain, ngram, open_llm, random_prompt, tokens, tree

PROMPTS = [random_prompt(1, 30), random_prompt(2, 6) * 4, random_prompt(3, 33)]
RUNS = [
    SamplingParams(max_tokens=24, ignore_eos=True),
    SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.8, seed=5),
]
TIGHT: dict[str, Any] = {"max_num_tokens": 16, "tokens_per_block": 4}
KEPT = {"int8": {torch.int8, torch.float32}, "float16": {torch.float16, torch.float32}}
"""Of values, and of scales or states."""
KINDS = ("tree", "eagle3", "modules", "medusa", "pard2", "dflash2", "assistant")
"""Of `METHODS`, one for each way in which networks keep K/V."""
FAST = {*((name, "int8") for name in KINDS), ("dflash2", "float16"), ("assistant", "float16")}
MATRIX = pytest.mark.matrix


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> TinyModels:
    return TinyModels(tmp_path_factory.mktemp("eight"))


def keeping(dtype: str = "int8", **options: Any) -> dict[str, Any]:
    return {"kv_cache_config": {"dtype": dtype, **options}, "max_seq_len": 96}


def texts(llm: LLM) -> list[list[list[int]]]:
    return [tokens(llm.generate(PROMPTS, params, use_tqdm=False)) for params in RUNS]


@pytest.fixture(scope="module")
def alone(models: TinyModels) -> list[list[list[int]]]:
    with open_llm(models.folder("llama"), **keeping(), max_batch_size=1) as llm:
        return texts(llm)


@pytest.mark.parametrize("method", ["none", "ngram", "chain", "tree"])
@pytest.mark.parametrize("max_tokens", [None, 84])
def test_nothing_changes_the_text(
    models: TinyModels, alone: list[list[list[int]]], method: str, max_tokens: int | None
) -> None:
    folder, draft = models.folder("llama"), models.draft("llama")
    speculation = {
        "none": None, "ngram": ngram(4), "chain": chain(draft, 4), "tree": tree(draft, 2, 3, 7)
    }[method]  # fmt: skip
    with open_llm(folder, speculation, **keeping(max_tokens=max_tokens), **TIGHT) as llm:
        assert texts(llm) == alone
        assert texts(llm) == alone, "behind kept prefixes"
        assert_no_leak(llm)


def keeps(engine: Any, dtype: str) -> bool:
    """All that it keeps, if it keeps anything."""
    caches = getattr(engine, "caches", None)
    return caches is None or {buffer.dtype for buffer in caches.all} <= KEPT[dtype]


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        pytest.param(name, dtype, marks=[] if (name, dtype) in FAST else MATRIX)
        for name in METHODS
        for dtype in KEPT
    ],
)
def test_drafts_keep_theirs_likewise(
    models: TinyModels, tmp_path: Path, method: str, dtype: str
) -> None:
    """And those that read the target's read them so."""
    folder, speculation = METHODS[method](models, tmp_path)
    with open_llm(folder, speculation, **keeping(dtype, max_tokens=120), **TIGHT) as llm:
        assert all(keeps(draft.engine, dtype) for draft in llm._runtime.drafts)
        found = texts(llm)
        assert_no_leak(llm)
    with open_llm(folder, **keeping(dtype), max_batch_size=1) as llm:
        assert texts(llm) == found


def test_a_draft_that_is_the_target_is_right(models: TinyModels) -> None:
    """Its K/V are rounded as the target's are, so that it says the same."""
    folder = models.folder("llama")
    with open_llm(folder, chain(folder, 4), **keeping()) as llm:
        texts(llm)
        metrics = llm.get_metrics()
    assert metrics["num_accepted_tokens"] == metrics["num_draft_tokens"] > 0


@pytest.mark.parametrize("dtype", KEPT)
@pytest.mark.parametrize("family", ["deepseek_v3", "qwen3_next"])
def test_other_mixers(tmp_path: Path, family: str, dtype: str) -> None:
    """Latents too, and K/V beside states, which stay as they are."""
    folder = TinyModels(tmp_path).save(family_model(family), family)
    with open_llm(folder, **keeping(dtype), max_batch_size=1) as llm:
        expected = texts(llm)
        assert keeps(llm._runtime.target, dtype)
    with open_llm(folder, ngram(4), **keeping(dtype, max_tokens=84), **TIGHT) as llm:
        assert texts(llm) == expected


def test_it_takes_its_bytes_and_says_what_it_costs(
    models: TinyModels, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder, options = models.folder("llama"), {"backend": "eager", "dtype": "float32"}
    with caplog.at_level(logging.INFO, "trtspec"):
        found = build(folder, None, tmp_path / "engine", **options, kv_cache_dtype="q8_0")
    engine = EngineConfig.read(found)
    assert engine.build.kv_cache_dtype == "int8"
    said = re.search(
        r"int8 K/V of the target: against float32.* divergence (\S+) nats", caplog.text
    )
    assert said is None or 0 < float(said[1]) < 1e-2  # None: it was built before
    (mixer,) = {layer.mixer for layer in engine.target.layers}
    row = 2 * mixer.num_kv_heads * (mixer.head_dim + 4)  # type: ignore[attr-defined]
    assert (
        engine.to_dict()["facts"]["target"]["kv_bytes_per_token"] == engine.target.num_layers * row
    )
    with open_llm(found, kv_cache_dtype="int8") as llm:
        assert llm.config == engine
    plain = build(folder, **options)
    with pytest.raises(ConfigError, match=r"kv_cache_dtype='int8' was asked .* built with 'auto'"):
        open_llm(plain, kv_cache_dtype="int8")


@pytest.mark.parametrize("name", ["fp8", "fp8_e4m3", "fp8_e5m2"])
def test_floats_of_8_bits_are_refused(name: str) -> None:
    with pytest.raises(ConfigError, match=f"{name}'.* neither on CPUs nor on CUDA; use int8"):
        KvCacheConfig(dtype=name)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"backend": "onnx"}, "attention of backend 'onnx' reads K/V in its own"),
        ({"kv_cache_dtype": "int3"}, "'int3' is not supported .supported: auto, int8, q8_0"),
    ],
)
def test_what_cannot_read_it(models: TinyModels, options: dict[str, Any], words: str) -> None:
    asked = {"dtype": "float32", "kv_cache_dtype": "int8", "max_seq_len": 64, **options}
    with pytest.raises(ConfigError, match=words):
        plan_build(models.folder("llama"), BuildConfig(**asked))
