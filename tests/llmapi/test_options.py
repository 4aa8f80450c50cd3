"""Options of LLM: foreign names, limits, and what an engine folder has fixed."""

from __future__ import annotations

import copy
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, DraftTargetDecodingConfig, KvCacheConfig, NGramDecodingConfig
from trtspec.builder.build_engine import build_engine
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.errors import CheckpointError, ConfigError, EngineError
from trtspec.speculative.options import parse_speculative_config

from ..e2e.helpers import (
    PARAMS_40,
    TinyModels,
    chain,
    ngram,
    open_llm,
    random_prompt,
    tokens,
    tree,
    watch,
)

PROMPTS = [random_prompt(70, 20), random_prompt(71, 5) * 3]
EAGER = {"skip_tokenizer_init": True}


@pytest.fixture(scope="module")
def engines(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Engine folders without a draft, with a chain of 4 and with a tree (3, 4, 13)."""
    root = tmp_path_factory.mktemp("engines")
    draft = models.draft("llama")
    methods = {"plain": None, "chain": chain(draft, 4), "tree": tree(draft, 3, 4, 13)}
    config = BuildConfig("float32", 4, 96, 200, backend="eager")
    return {
        name: build_engine(
            plan_build(models.folder("llama"), config, parse_speculative_config(spec)), root / name
        )
        for name, spec in methods.items()
    }


def expected(models: TinyModels) -> list[list[int]]:
    return [models.greedy("llama", prompt) for prompt in PROMPTS]


@pytest.mark.slow
def test_speculative_configs_of_both_worlds(models: TinyModels) -> None:
    folder, draft = models.folder("llama"), str(models.draft("llama"))
    configs: list[Any] = [
        NGramDecodingConfig(max_draft_len=3, prompt_lookup_min=1),
        {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 4},
        {"decoding_type": "NGram", "max_draft_len": 3, "max_matching_ngram_size": 4},
        DraftTargetDecodingConfig(max_draft_len=3, speculative_model=draft),
        {"method": "draft_model", "model": draft, "num_speculative_tokens": 3},
        {"model": draft, "num_speculative_tokens": 3, "draft_tensor_parallel_size": 1},
        {"decoding_type": "Draft_Target", "max_draft_len": 3, "speculative_model_dir": draft},
        {"speculative_algorithm": "STANDALONE", "speculative_draft_model_path": draft,
         "speculative_num_steps": 3, "speculative_eagle_topk": 1},
    ]  # fmt: skip
    for config in configs:
        with open_llm(folder, config) as llm:
            assert tokens(llm.generate(PROMPTS, PARAMS_40, use_tqdm=False)) == expected(models)
            assert llm.get_metrics()["num_draft_tokens"] > 0


def test_neighbours_options_that_ask_for_nothing_else(models: TinyModels) -> None:
    options: dict[str, Any] = {
        "tensor_parallel_size": 1, "enforce_eager": True, "max_model_len": 96, "seed": 3,
        "async_scheduling": True, "disable_overlap_scheduler": False,
        "max_num_seqs": 2, "max_num_batched_tokens": 64,
        "kv_cache_config": KvCacheConfig(enable_block_reuse=False), "block_size": 8,
    }  # fmt: skip
    with open_llm(models.folder("llama"), **options) as llm:
        build = llm.config.build
        assert (build.max_seq_len, build.max_batch_size, build.max_num_tokens) == (96, 2, 64)
        assert build.tokens_per_block == 8
        assert tokens(llm.generate(PROMPTS, PARAMS_40, use_tqdm=False)) == expected(models)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tensor_parallel_size": 0}, "tensor_parallel_size=0 must be at least 1"),
        ({"async_scheduling": 1}, "`async_scheduling` must be bool"),
        ({"disable_overlap_scheduler": True}, "write async_scheduling=False"),
        ({"max_batchsize": 2}, r"unknown option `max_batchsize`; did you mean `max_batch_size`\?"),
        ({"dtype": "int8"}, "dtype 'int8' is not supported"),
        ({"max_batch_size": 0}, "max_batch_size=0 must be between 1 and 4096"),
        ({"max_seq_len": 129}, "max_seq_len=129 exceeds .* max_position_embeddings=128"),
        ({"max_seq_len": 64, "max_model_len": 65}, "mean the same option"),
        ({"tokens_per_block": 12}, "tokens_per_block=12 must be a power of two"),
        ({"backend": "tensorrt"}, r"no GPU here to build for|pip install trtspec\[tensorrt"),
        ({"kv_cache_config": {"max_tokens": 0}}, "max_tokens=0 must be at least 1"),
        ({"kv_cache_config": {"free_memory_fraction": 1.5}}, "free_memory_fraction=1.5"),
        ({"max_batch_size": 8, "max_num_tokens": 7}, "max_num_tokens=7 is below max_batch_size=8"),
        ({"speculative_config": True}, "names no method"),
        ({"speculative_config": {}}, "names no method"),
        ({"speculative_config": "ngram"}, "must be None, a mapping or a DecodingConfig, got str"),
        ({"speculative_config": {"method": "ngrams"}}, "unknown speculative method 'ngrams'"),
        ({"speculative_config": {"method": "hydra"}}, "'hydra' is not available"),
        ({"speculative_config": ngram(0)}, "max_draft_len=0 must be at least 1"),
        ({"speculative_config": ngram(70)}, "'ngram' .* 71 rows .* at most 64 .* to 63$"),
        ({"speculative_config": ngram(3, max_model_len=64)}, "max_model_len=64 is below max_seq"),
        ({"speculative_config": {"method": "draft_model", "num_speculative_tokens": 3}},
         "missing option `speculative_model`"),
    ],
)  # fmt: skip
def test_refused_options(models: TinyModels, options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        open_llm(models.folder("llama"), **{"speculation": options.pop("speculative_config", None)},
                 **options)  # fmt: skip


def test_drafts_as_deep_as_a_sliding_window(models: TinyModels) -> None:
    """Tree rows see their branch back to the root, whatever the window: 7 of 8 is the most."""
    folder = models.folder("mistral_window")
    for config in (ngram(7), chain(folder, 7), tree(folder, 2, 7, 9)):
        with open_llm(folder, config) as llm:
            texts = tokens(llm.generate(PROMPTS, PARAMS_40, use_tqdm=False))
            assert texts == [models.greedy("mistral_window", prompt) for prompt in PROMPTS]
    for config in (ngram(8), chain(folder, 8), tree(folder, 2, 8, 9)):
        with pytest.raises(ConfigError, match=r"max_draft_len=8 .* window of 8 tokens; lower it"):
            open_llm(folder, config)


def test_no_such_model(models: TinyModels, tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no model 'nowhere': not a folder"):
        LLM("nowhere")
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        LLM(tmp_path)
    with pytest.raises(CheckpointError, match="no model 'nowhere'"):
        open_llm(models.folder("llama"), chain(Path("nowhere"), 2))
    (tmp_path / "file").write_text("")
    with pytest.raises(CheckpointError, match="is no GGUF file"):
        LLM(tmp_path / "file")


@pytest.mark.slow
def test_an_engine_folder_speculates_with_its_draft(
    models: TinyModels, engines: dict[str, Path]
) -> None:
    """Unless told otherwise; every way gives the same text."""
    ways: list[tuple[str, Any, int]] = [
        ("plain", None, 0),
        ("plain", ngram(5), 5),
        ("chain", None, 4),
        ("chain", False, 0),
        ("chain", ngram(6), 6),
        ("chain", chain(models.draft("llama"), 4), 4),
        ("chain", chain(models.draft("llama"), 2), 2),
        ("chain", chain(Path("draft"), 3), 3),
        ("tree", None, 12),
        ("tree", tree(models.draft("llama"), 3, 2, 5), 4),
        ("tree", tree(models.draft("llama"), 3, 1, 4), 3),
        ("tree", tree(models.draft("llama"), 3, 4, 3), 2),
    ]
    for name, config, nodes in ways:
        with LLM(engines[name], config, **EAGER) as llm:
            steps = watch(llm)
            outputs = llm.generate(PROMPTS, PARAMS_40, use_tqdm=False)
            assert tokens(outputs) == expected(models), (name, config)
            assert max(item.max_nodes for step in steps for item in step.items) == nodes
            metrics = llm.get_metrics()
            assert (metrics["num_accepted_tokens"] > 0) == (nodes > 0)
            uses_draft = nodes > 0 and (config or {}).get("method") != "ngram"
            assert (metrics["num_draft_calls"] > 0) == uses_draft


@pytest.mark.parametrize(
    ("name", "topk", "depth", "rows", "words"),
    [
        ("plain", 1, 2, 3, "built without a draft;"),
        ("chain", 1, 5, 6, "num_steps=5 was asked for, the engine was built for at most 4"),
        ("chain", 2, 3, 5, "topk=2 was asked for, the engine's rollout has 1"),
        ("tree", 1, 3, 4, "topk=1 was asked for, the engine's rollout has 3"),
        ("tree", 3, 4, 14, "num_draft_tokens=14 was asked for, .* at most 13"),
    ],
)
def test_more_than_the_engine_rolls_out(
    models: TinyModels,
    engines: dict[str, Path],
    name: str,
    topk: int,
    depth: int,
    rows: int,
    words: str,
) -> None:
    with pytest.raises(ConfigError, match=words):
        LLM(engines[name], tree(models.draft("llama"), topk, depth, rows), **EAGER)


def test_another_draft_than_the_engines(models: TinyModels, engines: dict[str, Path]) -> None:
    model = copy.deepcopy(models.hf("llama"))
    other = models.save(model, "another-draft")
    with pytest.raises(ConfigError, match=r"another-draft \(fingerprint \w+\) is not the one"):
        LLM(engines["chain"], chain(other, 2), **EAGER)


def test_limits_of_an_engine_folder(models: TinyModels, engines: dict[str, Path]) -> None:
    """Smaller ones are used, larger ones are refused with both numbers."""
    smaller = {"max_batch_size": 2, "max_seq_len": 64, "max_num_tokens": 12}
    with LLM(engines["chain"], **smaller, **EAGER) as llm:
        steps = watch(llm)
        outputs = llm.generate([*PROMPTS, *PROMPTS], PARAMS_40, use_tqdm=False)
        assert tokens(outputs) == expected(models) * 2
        assert max(len(step.items) for step in steps) == 2
        assert max(sum(i.num_rows + i.max_nodes for i in step.items) for step in steps) == 12
        with pytest.raises(ValueError, match="64 tokens, but max_seq_len=64"):
            llm.generate([1] * 64)
    for name, built in {"max_batch_size": 4, "max_seq_len": 96, "max_num_tokens": 200}.items():
        with pytest.raises(EngineError, match=f"{name}={built + 1} exceeds the {built} "):
            LLM(engines["chain"], **{name: built + 1}, **EAGER)


def test_what_an_engine_folder_has_fixed(engines: dict[str, Path]) -> None:
    fixed = {"dtype": "float32", "tokens_per_block": 16, "backend": "eager"}
    with LLM(engines["plain"], **fixed, **EAGER) as llm:
        assert asdict(llm.config.build)["dtype"] == "float32"
    for name, other in {"dtype": "bf16", "tokens_per_block": 8, "backend": "aoti"}.items():
        with pytest.raises(ConfigError, match=f"{name}={other!r} .* built with '?{fixed[name]}"):
            LLM(engines["plain"], **{name: other}, **EAGER)
