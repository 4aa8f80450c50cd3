"""Backend onnx gives the text of the eager modules, and drafts and accepts what they do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from .eagle_heads import eagle, random_eagle1, random_eagle3
from .helpers import (
    GREEDY_24,
    SAMPLED_24,
    TinyModels,
    assert_no_leak,
    chain,
    eight_prompts,
    ngram,
    open_llm,
    tokens,
    tree,
    watch,
)
from .hybrid_drafts import hybrid
from .medusa_heads import fitted_heads, medusa, write_heads
from .mtp_modules import add_modules, mtp, random_module
from .parallel_drafts import p_eagle, pard, random_p_eagle, save_pard

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

PROMPTS = eight_prompts(560)
TREE = {"num_speculative_tokens": 3, "topk": 3, "num_draft_tokens": 10}
STATIC = {"eagle_choices": [[0], [1], [0, 0], [1, 0], [0, 0, 0]]}
# Cached prefixes, which linear caches have none of, would change what a step has room to draft.
OPTIONS = {
    "max_batch_size": 8,
    "max_num_tokens": 80,
    "kv_cache_config": {"enable_block_reuse": False},
}

Speculation = dict[str, Any] | None
Made = tuple[Path, Speculation]


def _plain(models: TinyModels, root: Path) -> Made:
    return models.folder("mistral_window"), None


def _ngram(models: TinyModels, root: Path) -> Made:
    return models.folder("llama"), ngram(4)


def _chain(models: TinyModels, root: Path) -> Made:
    return models.folder("llama"), chain(models.draft("llama"), 3)


def _tree(models: TinyModels, root: Path) -> Made:
    return models.folder("llama"), tree(models.draft("llama"), 3, 3, 10)


def _eagle(models: TinyModels, root: Path) -> Made:
    return models.folder("llama"), eagle(random_eagle1(models.hf("llama"), root), "eagle", **STATIC)


def _eagle3(models: TinyModels, root: Path) -> Made:
    common = [token for text in _greedy(models, "llama") for token in text]
    heads = random_eagle3(models.hf("llama"), root, sorted(set(common)))
    return models.folder("llama"), eagle(heads, "eagle3", **TREE)


def _mtp(models: TinyModels, root: Path) -> Made:
    module = random_module(models.hf("qwen3"))
    folder = add_modules(models.folder("qwen3"), root / "qwen3-mtp", [module], "qwen3_next")
    return folder, mtp(num_speculative_tokens=3)


def _medusa(models: TinyModels, root: Path) -> Made:
    texts = [p + t for p, t in zip(PROMPTS, _greedy(models, "llama3_tied"), strict=True)]
    heads = write_heads(root, fitted_heads(models.hf("llama3_tied"), texts, 3))
    return models.folder("llama3_tied"), medusa(heads)


def _pard(models: TinyModels, root: Path) -> Made:
    draft = models.hf("llama").__class__.from_pretrained(models.draft("llama"))
    return models.folder("llama"), pard(save_pard(draft, root), **TREE)


def _p_eagle(models: TinyModels, root: Path) -> Made:
    heads = random_p_eagle(models.hf("llama3_tied"), root, None, layers=2)
    return models.folder("llama3_tied"), p_eagle(heads, **TREE)


def _hybrid(models: TinyModels, root: Path) -> Made:
    folder, eagle3 = _eagle3(models, root)
    assert eagle3 is not None
    return folder, hybrid(eagle3, chain(models.draft("llama"), 3), ngram(3))


def _greedy(models: TinyModels, case: str) -> list[list[int]]:
    return [models.greedy(case, prompt, 24) for prompt in PROMPTS]


@pytest.mark.parametrize(
    "make",
    [_plain, _ngram, _chain, _tree, _eagle, _eagle3, _mtp, _medusa, _pard, _p_eagle, _hybrid],
)
def test_same_tokens(
    models: TinyModels, tmp_path: Path, make: Callable[[TinyModels, Path], Made]
) -> None:
    """Eight requests at once in chunks, then one alone; the drafts are the same as well, so a
    draft's caches and the states that it reads are right."""
    folder, speculation = make(models, tmp_path)
    texts, figures = [], []
    for backend in ("eager", "onnx"):
        with open_llm(folder, speculation, backend=backend, **OPTIONS) as llm:
            steps = watch(llm)
            found = tokens(llm.generate(PROMPTS, GREEDY_24, use_tqdm=False))
            found += tokens(llm.generate(PROMPTS, SAMPLED_24, use_tqdm=False))
            prefills = [item for step in steps for item in step.items if not item.is_generation]
            assert any(not item.samples for item in prefills), "no prompt was cut"
            found += tokens([llm.generate(PROMPTS[0], SAMPLED_24[0])])
            metrics = llm.get_metrics()
            assert_no_leak(llm)
        texts.append(found)
        figures.append([metrics["num_draft_tokens"], metrics["num_accepted_tokens"]])
    assert texts[0] == texts[1]
    assert figures[0] == figures[1]
    assert speculation is None or 0 < figures[0][1] < figures[0][0]
