"""Drafts whose attention sees the first tokens and the newest ones alone: the text stays, what lies
between is let go, and a network that is right by what it still sees stays right."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams, build
from trtspec.errors import ConfigError

from .dflash_heads import BLOCK, dflash, right_dflash
from .eagle_heads import V, cycling_target, known_text
from .every_method import LIMITS, METHODS, PROMPTS, Made
from .helpers import TinyModels, assert_no_leak, chain, open_llm, random_prompt, tokens, tree
from .parallel_drafts import pard, right_pard, save_pard

WINDOW = {"draft_window": 8, "draft_sinks": 4}
SIZE = 4
MOST_BLOCKS = 1 + (8 + 3 * SIZE + 6) // SIZE
"""Of a sequence: its sinks, a window with the blocks that are cut or wait, and a rollout's rows."""
CACHED = ("chain", "tree", "eagle", "eagle3", "mtp", "pard", "pard2", "p_eagle", "modules")
CACHED += ("dflash", "jetspec", "dspark", "dflash2", "self", "hybrid_of_blocks")
PARAMS = [SamplingParams(24), SamplingParams(24, temperature=0.8, seed=3)]
SHORT = {**LIMITS, "tokens_per_block": SIZE, "max_num_tokens": 24, "max_batch_size": 4}

Texts = list[list[list[int]]]


class Drafts:
    """Each method's target and draft, made once, and its texts without drafts."""

    def __init__(self, models: TinyModels, root: Path) -> None:
        self.models, self.root = models, root
        self.made: Callable[[str], Made] = cache(self._make)
        self.plain: Callable[[Path], Texts] = cache(self._plain)

    def _make(self, name: str) -> Made:
        (self.root / name).mkdir()
        return METHODS[name](self.models, self.root / name)

    def _plain(self, folder: Path) -> Texts:
        with open_llm(folder, None, **SHORT) as llm:
            return [read(llm, p) for p in PARAMS]


def read(llm: LLM, params: SamplingParams) -> list[list[int]]:
    return tokens(llm.generate(PROMPTS, params, use_tqdm=False))


@pytest.fixture(scope="module")
def drafts(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Drafts:
    return Drafts(models, tmp_path_factory.mktemp("window"))


def limited(speculation: dict[str, Any], **window: Any) -> dict[str, Any]:
    """With the window, of each member of a hybrid."""
    if "drafters" not in speculation:
        return {**speculation, **window}
    return {**speculation, "drafters": [{**one, **window} for one in speculation["drafters"]]}


def watch_tables(llm: LLM) -> list[int]:
    """How many blocks of a draft's cache each request holds whenever rows are fed to it."""
    held: list[int] = []
    for own in llm._executor._resources.draft_caches:
        rows = own.rows

        def watched(*given: Any, rows: Any = rows) -> Any:
            group = rows(*given)
            held.append(len(group.blocks))
            return group

        own.rows = watched  # type: ignore[method-assign]
    return held


@pytest.mark.parametrize("name", CACHED)
def test_text_is_unchanged(drafts: Drafts, name: str) -> None:
    """In chunks, four at once, and again over cached prefixes; a request holds a bounded number of
    blocks beside those of the chunk that it is fed, and none in the end."""
    folder, speculation = drafts.made(name)
    assert speculation is not None
    with open_llm(folder, limited(speculation, **WINDOW), **SHORT) as llm:
        held = watch_tables(llm)
        for params, texts in zip(PARAMS * 2, drafts.plain(folder) * 2, strict=True):
            assert read(llm, params) == texts
        assert_no_leak(llm)
        assert llm.get_metrics()["num_draft_tokens"] > 100
        assert max(held) <= MOST_BLOCKS + SHORT["max_num_tokens"] // SIZE


# The mode, then any tokens; the mode is read off the first row, what is next off the newest ones.
RIGHT_PROMPTS = [[i % 2, *(t + 2 for t in random_prompt(380 + i, 39, V - 2))] for i in range(3)]
LONG = SamplingParams(60)


@pytest.fixture(scope="module")
def right(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("right")
    cycling_target(40.0).save_pretrained(root / "target")
    right_dflash(root / "dflash", 40.0, cached=True)
    save_pard(right_pard(40.0), root / "pard")
    return root


RIGHT: dict[str, Callable[[Path], dict[str, Any]]] = {
    "draft_model": lambda root: chain(root / "target", 3),
    "a tree": lambda root: tree(root / "target", 2, 3, 7),
    "dflash": lambda root: dflash(root / "dflash", num_speculative_tokens=BLOCK - 1),
    "pard": lambda root: pard(root / "pard", num_speculative_tokens=3),
}


@pytest.mark.parametrize("name", RIGHT)
def test_what_is_seen(right: Path, name: str) -> None:
    """With the first row all is known, wherever rows lie; without it nothing is."""
    options = {"tokens_per_block": SIZE, "max_num_tokens": 24, "max_batch_size": 3}
    rates = []
    for sinks in (1, 0):
        config = {**RIGHT[name](right), "draft_window": 6, "draft_sinks": sinks}
        with open_llm(right / "target", config, **options) as llm:
            held = watch_tables(llm)
            for _ in range(2):
                found = tokens(llm.generate(RIGHT_PROMPTS, LONG, use_tqdm=False))
                assert found == [known_text(prompt, 60) for prompt in RIGHT_PROMPTS]
            assert_no_leak(llm)
            rates.append(min(llm.get_metrics()["acceptance_rate_per_pos"]))
            assert held[-1] < 12
    assert rates[0] > 0.98 and rates[1] < 0.5, rates


def test_an_engine_that_was_built_with_it(drafts: Drafts) -> None:
    """It is what the engine's draft sees where nobody says so, and may be asked of any engine."""
    folder, speculation = drafts.made("eagle3")
    assert speculation is not None
    options = {**SHORT, "backend": "eager", "skip_tokenizer_init": True}
    for built, asked, least in (
        (WINDOW, None, True),
        (WINDOW, speculation, False),
        ({}, {**speculation, **WINDOW}, True),
        ({}, None, False),
    ):
        engine = build(folder, {**speculation, **built}, **options)
        with LLM(engine, asked, skip_tokenizer_init=True) as llm:
            held = watch_tables(llm)
            assert read(llm, PARAMS[0]) == drafts.plain(folder)[0]
            assert (max(held) <= MOST_BLOCKS + SHORT["max_num_tokens"] // SIZE) == least


@pytest.mark.parametrize(
    ("name", "asked", "message"),
    [
        ("medusa", {}, "draft_window=8: the draft keeps no K/V of its own; leave it out"),
        ("assistant", {}, "draft_window=8: the draft keeps no K/V of its own; leave it out"),
        ("ddtree", {}, "layers of the draft have sliding windows, of up to 9 tokens"),
        ("dflash", {"backend": "onnx"}, "backend onnx keeps K/V in slots, of which no rows are"),
        ("chain", {"draft_window": 0}, "draft_window=0 must be at least 1"),
        ("chain", {"draft_sinks": -1}, "draft_sinks=-1 must be at least 0"),
        ("chain", {"draft_window": 2**63}, f"draft_window={2**63} must be below 2[*][*]31"),
        ("ngram", {}, "no network drafts here whose attention could see less"),
    ],
)
def test_refused(drafts: Drafts, name: str, asked: dict[str, Any], message: str) -> None:
    folder, speculation = drafts.made(name)
    options = {key: value for key, value in asked.items() if key == "backend"}
    window = {key: value for key, value in asked.items() if key != "backend"}
    with pytest.raises(ConfigError, match=message):
        open_llm(folder, {**(speculation or {}), **WINDOW, **window}, **options)
