"""The embedded DFlash network on code that it has not seen: right often, in chains and trees."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from trtspec import SamplingParams
from trtspec.bench.data.dataset import held_out_prompts
from trtspec.builder.locate import find_model

from .dflash_heads import dflash
from .helpers import assert_no_leak, open_llm, tokens

TARGET, HEAD = "trtspec-tiny", "trtspec-tiny-dflash"
SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"method": "dflash", "num_speculative_tokens": 7},
    "ddtree": {"method": "ddtree", "num_speculative_tokens": 7, "num_draft_tokens": 24},
}
NUM_PROMPTS = 12  # of the library of this Python: fewer are not alike from one to the next
GREEDY = SamplingParams(max_tokens=32, ignore_eos=True)
SAMPLED = [SamplingParams(32, temperature=0.8, seed=i, ignore_eos=True) for i in range(NUM_PROMPTS)]


@cache
def prompts() -> list[list[int]]:
    with open_llm(Path(find_model(TARGET)), skip_tokenizer_init=False) as llm:
        return [prompt.token_ids for prompt in held_out_prompts(llm.tokenizer, NUM_PROMPTS, 70)]


@cache
def texts() -> list[list[list[int]]]:
    """Without speculation: greedy and sampled."""
    with open_llm(Path(find_model(TARGET))) as llm:
        both = (GREEDY, SAMPLED)
        return [tokens(llm.generate(prompts(), params, use_tqdm=False)) for params in both]


@pytest.mark.slow
@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("shape", SHAPES)
def test_it_is_often_right(shape: str, batch: int) -> None:
    """float32 texts are those without speculation, greedy and sampled."""
    for params, expected in zip((GREEDY, SAMPLED), texts(), strict=True):
        config = dflash(find_model(HEAD), **SHAPES[shape])
        with open_llm(Path(find_model(TARGET)), config, max_batch_size=batch) as llm:
            found = tokens(llm.generate(prompts(), params, use_tqdm=False))
            assert found == expected
            floor = 2.0 if shape == "ddtree" else 1.6
            assert llm.get_metrics()["acceptance_length"] > floor
            assert_no_leak(llm)
