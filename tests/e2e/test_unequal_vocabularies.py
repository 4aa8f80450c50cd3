"""Draft models that share most of their target's tokens: the text is the target's, and a token that
is another one there, or none, is never drafted."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from trtspec import LLM

from ..inside import drafter
from .helpers import (
    GREEDY_24,
    SAMPLED_24,
    TinyModels,
    assert_no_leak,
    chain,
    open_llm,
    random_prompt,
    tokens,
    tree,
)
from .tiny_tokenizer import save_words

PROMPTS = [random_prompt(1, 30), random_prompt(2, 6) * 4, [202, 7, 201]]
WORDS = [f"w{i}" for i in range(200)]


def named(source: Path, folder: Path, words: list[str], *added: str) -> Path:
    save_words(Path(shutil.copytree(source, folder)), words, *added)
    return folder


def larger(models: TinyModels) -> Path:
    """Its rows behind the target's are those of tokens that the target likes."""
    model = copy.deepcopy(models.hf("llama"))
    model.resize_token_embeddings(290)
    with torch.no_grad():
        for matrix in (model.model.embed_tokens.weight, model.lm_head.weight):
            matrix[203:] = 1.5 * matrix[:87]
    return models.save(model, "llama-290")


def smaller(models: TinyModels) -> Path:
    model = copy.deepcopy(models.hf("llama"))
    model.resize_token_embeddings(150)
    return models.save(model, "llama-150")


def drafted(llm: LLM) -> set[int]:
    """All tokens that are drafted from now on."""
    asked, found, prepare = drafter(llm), set[int](), drafter(llm).prepare_draft_tokens

    def watched(plan: Any) -> Any:
        drafts = prepare(plan)
        for each in drafts:
            found.update(each.tokens.tolist())
        return drafts

    asked.prepare_draft_tokens = watched
    return found


NAMES = ("<a>", "<b>", "<c>")
PAIRS: dict[
    str, tuple[Callable[[TinyModels], Path], tuple[list[str], Sequence[str]], Collection[int]]
] = {
    "larger": (larger, (WORDS, NAMES), range(203, 290)),
    "smaller": (smaller, (WORDS[:150], ()), range(150, 203)),
    "prefix": (lambda models: models.folder("llama"), (WORDS[:100], ()), range(100, 203)),
    "renamed": (lambda models: models.folder("llama"), (WORDS, ("<a>", "<x>", "<y>")), (201, 202)),
}
"""A draft, its words and added tokens, and what it may not draft."""
BACKENDS = (
    "eager",
    pytest.param("onnx", marks=pytest.mark.slow),
    pytest.param("aoti", marks=[pytest.mark.slow, pytest.mark.matrix]),
)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("pair", PAIRS)
def test_text_and_drafts(models: TinyModels, tmp_path: Path, pair: str, backend: str) -> None:
    target = named(models.folder("llama"), tmp_path / "target", WORDS, *NAMES)
    make, (words, added), never = PAIRS[pair]
    draft = named(make(models), tmp_path / "draft", words, *added)
    expected = [models.greedy("llama", prompt, 24) for prompt in PROMPTS]
    for config in (chain(draft, 3), tree(draft, 3, 3, 12)):
        with open_llm(target, config, backend=backend) as llm:
            seen = drafted(llm)
            assert tokens(llm.generate(PROMPTS, GREEDY_24, use_tqdm=False)) == expected
            llm.generate(PROMPTS, SAMPLED_24[:3], use_tqdm=False)
            assert llm.get_metrics()["num_accepted_tokens"] > 0
            assert seen and not seen & set(never)
            assert_no_leak(llm)
