"""Weights in 4 and 8 bits: drafts change nothing about the text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams
from trtspec.bench.data.dataset import held_out_prompts
from trtspec.builder.locate import find_model
from trtspec.errors import ConfigError

from .eagle_heads import RightHeads, V
from .every_method import METHODS, PROMPTS
from .helpers import (
    GREEDY_24,
    SAMPLED_24,
    TinyModels,
    assert_no_leak,
    ngram,
    open_llm,
    random_prompt,
    tokens,
)

INT8: dict[str, Any] = {"weight_dtype": "int8"}
INT4: dict[str, Any] = {"weight_dtype": "int4"}


@pytest.mark.parametrize("method", ["tree", "eagle", "medusa", "p_eagle", "modules", "dflash"])
def test_drafts_change_nothing(models: TinyModels, tmp_path: Path, method: str) -> None:
    """Drafts are in 8 bits too, and share an embedding or a head with their target."""
    folder, config = METHODS[method](models, tmp_path)
    with open_llm(folder, None, **INT8) as llm:
        expected = [
            tokens(llm.generate(PROMPTS, p, use_tqdm=False)) for p in (GREEDY_24, SAMPLED_24)
        ]
    with open_llm(folder, config, **INT8, max_num_tokens=60) as llm:
        assert [
            tokens(llm.generate(PROMPTS, p, use_tqdm=False)) for p in (GREEDY_24, SAMPLED_24)
        ] == expected
        assert llm.get_metrics()["num_draft_tokens"] > 0
        assert_no_leak(llm)


PARAMS = (
    SamplingParams(max_tokens=32, ignore_eos=True),
    SamplingParams(max_tokens=32, ignore_eos=True, temperature=0.8, seed=5),
)


@pytest.mark.slow
@pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled"])
def test_the_embedded_models(params: SamplingParams) -> None:
    """A trained head of a float target still knows the int8 one, alone and in a batch."""
    target, draft = (Path(find_model(f"trtspec-tiny{name}")) for name in ("", "-eagle3"))
    eagle3 = {"method": "eagle3", "model": str(draft), "num_speculative_tokens": 4}

    def run(speculation: Any) -> tuple[list[list[int]], dict[str, Any]]:
        options: dict[str, Any] = {**INT8, "max_batch_size": 8, "max_seq_len": 128}
        with open_llm(target, speculation, skip_tokenizer_init=False, **options) as llm:
            prompts = [p.token_ids for p in held_out_prompts(llm.tokenizer, 8, 40)]
            together = tokens(llm.generate(prompts, params, use_tqdm=False))
            assert tokens([llm.generate(prompts[0], params)]) == together[:1]
            return together, llm.get_metrics()

    expected, _ = run(None)
    texts, metrics = run(eagle3)
    assert texts == expected and metrics["acceptance_length"] > 1.5
    assert run(ngram(5))[0] == expected


@pytest.mark.ci
@pytest.mark.slow
class TestCompiled:
    """An engine built once: layers of 4 bits, a head of 8."""

    @pytest.mark.parametrize("params", PARAMS, ids=["greedy", "sampled"])
    def test_drafts_change_nothing(
        self, right_heads: RightHeads, rounded_engine: Path, params: SamplingParams
    ) -> None:
        bodies = [random_prompt(180 + i, 3 * i + 1, V - 2) for i in range(8)]
        prompts = [[i % 2, *(token + 2 for token in body)] for i, body in enumerate(bodies)]

        def texts(speculation: Any, **options: Any) -> list[list[int]]:
            with LLM(rounded_engine, speculation, skip_tokenizer_init=True, **options) as llm:
                return tokens(llm.generate(prompts, params, use_tqdm=False))

        expected = texts(False)
        assert texts(None) == expected  # EAGLE-3
        assert texts(None, max_batch_size=1) == expected
        assert texts(ngram(5)) == expected
        with open_llm(right_heads.target, None, **INT4, max_seq_len=128) as llm:
            assert tokens(llm.generate(prompts, params, use_tqdm=False)) == expected

    def test_options_of_a_built_engine(self, rounded_engine: Path) -> None:
        for options, message in (
            ({"weight_dtype": "float32"}, "weight_dtype='float32' .* built with 'int4'"),
            ({**INT4, "weight_group_size": 64}, "weight_group_size=64 .* built with 32"),
            ({"activation_dtype": "float32"}, "activation_dtype='float32' .* with 'int8'"),
        ):
            with pytest.raises(ConfigError, match=message):
                LLM(rounded_engine, skip_tokenizer_init=True, **options)
        with LLM(rounded_engine, False, skip_tokenizer_init=True, **INT4) as llm:
            llm.generate([1, 6, 7], SamplingParams(max_tokens=4, ignore_eos=True))
            figures, read = llm.get_metrics(), llm.config.weight_bytes()
            assert figures["verify_weight_bytes"] == read * figures["num_verify_steps"] > 0
