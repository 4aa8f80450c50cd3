"""No draft shortens what a prompt finds in the caches: as many tokens with every method as without
speculation, over chats that grow and prompts that leave them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from trtspec import LLM, SamplingParams

from .every_method import METHODS, VARIANTS, Made
from .helpers import TinyModels, assert_no_leak, open_llm, random_prompt

pytestmark = pytest.mark.slow

BLOCK = 4
CASES: dict[str, Callable[[TinyModels, Path], Made]] = {**METHODS, **VARIANTS}
EXEMPT = {"plain", "medusa typical", "extract_hidden_states"}
"""Nothing to compare, another text, and what must see every row."""


def _adaptive(name: str) -> Callable[[TinyModels, Path], Made]:
    def make(models: TinyModels, root: Path) -> Made:
        folder, speculation = METHODS[name](models, root)
        return folder, {**(speculation or {}), "adaptive": True}

    return make


ADAPTIVE = ("eagle", "eagle3", "mtp", "modules", "p_eagle", "dflash", "hybrid_of_blocks")
CASES |= {f"{name}, adaptive": _adaptive(name) for name in ADAPTIVE}

Found = tuple[list[int], list[list[int]]]


def found(llm: LLM) -> Found:
    """Of each prompt how many tokens came out of the caches, and the texts."""
    cached: list[int] = []
    texts: list[list[int]] = []

    def say(prompt: list[int], max_tokens: int) -> list[int]:
        output = llm.generate(prompt, SamplingParams(max_tokens=max_tokens), use_tqdm=False)
        cached.append(output.num_cached_tokens)
        texts.append(output.outputs[0].token_ids)
        return texts[-1]

    chat = random_prompt(900, 9)
    for turn in range(4):
        chat = chat + say(chat, 11) + random_prompt(901 + turn, 3 + turn)
    say(chat, 8)
    for length in range(4 * BLOCK - 1, 5 * BLOCK + 2):
        say([*chat[:length], *random_prompt(950 + length, 3)], 5)
    metrics = llm.get_metrics()
    assert metrics["num_prefix_cache_hits"] == sum(cached)
    assert_no_leak(llm)
    return cached, texts


@pytest.fixture(scope="module")
def plain(models: TinyModels) -> Callable[[Path], Found]:
    known: dict[Path, Found] = {}

    def of(folder: Path) -> Found:
        if folder not in known:
            with open_llm(folder, tokens_per_block=BLOCK, max_batch_size=2) as llm:
                known[folder] = found(llm)
        return known[folder]

    return of


@pytest.mark.parametrize("name", [name for name in CASES if name not in EXEMPT])
def test_as_many_as_without_speculation(
    models: TinyModels, plain: Callable[[Path], Found], tmp_path: Path, name: str
) -> None:
    folder, speculation = CASES[name](models, tmp_path)
    with open_llm(folder, speculation, tokens_per_block=BLOCK, max_batch_size=2) as llm:
        cached, texts = found(llm)
        drafted = llm.get_metrics()["num_draft_tokens"]
    expected, said = plain(folder)
    assert texts == said
    assert cached == expected
    assert sum(expected) > 200
    assert drafted or "adaptive" in name or "auto" in name
