"""One compiled engine with two drafts, the embedded ones: it gives what the target alone gives."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams
from trtspec.builder.locate import find_model

from ..compiled_engines import CHAIN, LIMITS, TREE, build_one
from .helpers import assert_no_leak, open_llm, tokens, watch
from .hybrid_drafts import hybrid

pytestmark = [pytest.mark.slow, pytest.mark.ci]

TEXTS = (
    "def read_file(self, path, encoding=None):\n",
    "import os\nimport sys\n\nclass ",
    "    def test_add(self):\n        self.assertEqual(",
)
GREEDY = SamplingParams(max_tokens=48, ignore_eos=True)
SAMPLED = [replace(GREEDY, temperature=0.8, seed=seed) for seed in range(len(TEXTS))]
DRAFTERS: dict[str, dict[str, Any]] = {
    "suffix": {"method": "suffix", "num_speculative_tokens": 8},
    "draft_model": {**CHAIN, "model": "trtspec-tiny-draft"},
    "eagle3": {**TREE, "model": "trtspec-tiny-eagle3"},
}
"""Of the trained ones, with the graphs that they have alone."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    config = hybrid(*DRAFTERS.values(), num_draft_tokens=16)
    return build_one(tmp_path_factory, find_model("trtspec-tiny"), config)


@pytest.fixture(scope="module")
def texts(folder: Path) -> Iterator[list[list[list[int]]]]:
    with LLM(folder, speculative_config=False) as llm:
        yield [tokens(llm.generate(TEXTS, params, use_tqdm=False)) for params in (GREEDY, SAMPLED)]


def test_the_folder(folder: Path) -> None:
    files = {str(p.relative_to(folder)) for p in folder.rglob("*.pt2")}
    assert files == {
        "target/model.pt2", "draft/pass.pt2", "draft_2/step.pt2", "draft_2/rollout.pt2",
    }  # fmt: skip


@pytest.mark.parametrize("names", [tuple(DRAFTERS), ("eagle3", "suffix"), ("draft_model",)])
def test_same_text(folder: Path, texts: list[list[list[int]]], names: tuple[str, ...]) -> None:
    """As built, with one of its drafts and another method, and with one alone."""
    some = [DRAFTERS[name] for name in names]
    config = None if len(some) == 3 else hybrid(*some) if len(some) == 2 else some[0]
    with LLM(folder, config) as llm:
        steps = watch(llm)
        for params, expected in zip((GREEDY, SAMPLED), texts, strict=True):
            assert tokens(llm.generate(TEXTS, params, use_tqdm=False)) == expected
        metrics = llm.get_metrics()
        assert metrics["acceptance_length"] > 2
        drafting = [s for s in steps if s.only_generates and any(i.max_nodes for i in s.items)]
        # A draft model's passes are calls of their own; where a text ends it makes fewer.
        most = {"suffix": 0, "draft_model": CHAIN["num_speculative_tokens"], "eagle3": 1}
        calls = sum(most[name] for name in names)
        assert drafting and all(step.target_calls == 1 for step in drafting)
        assert max(step.draft_calls for step in drafting) == calls
        assert all(step.draft_calls == calls or "draft_model" in names for step in drafting)
        assert_no_leak(llm)


def test_together_accepts_more(folder: Path) -> None:
    """With room for all nodes, every step accepts at least what the best of them would."""
    lengths = []
    for config in (DRAFTERS["eagle3"], DRAFTERS["draft_model"], None):
        with LLM(folder, config, max_batch_size=1) as llm:
            llm.generate(TEXTS, GREEDY, use_tqdm=False)
            lengths.append(llm.get_metrics()["acceptance_length"])
    assert lengths[2] > max(lengths[:2])


def test_as_eager(folder: Path, texts: list[list[list[int]]]) -> None:
    config = hybrid(*DRAFTERS.values(), num_draft_tokens=16)
    with open_llm(Path("trtspec-tiny"), config, **LIMITS, skip_tokenizer_init=False) as llm:
        for params, expected in zip((GREEDY, SAMPLED), texts, strict=True):
            assert tokens(llm.generate(TEXTS, params, use_tqdm=False)) == expected
