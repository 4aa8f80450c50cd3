"""Requests of one batch say how deep they are drafted for, or that they are not: by no method does
a text change, and nothing is spent on those that are not."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams
from trtspec.errors import RequestError

from .every_method import METHODS, PROMPTS, VARIANTS
from .helpers import (
    GREEDY_24,
    SAMPLED_24,
    TinyModels,
    assert_no_leak,
    chain,
    ngram,
    open_llm,
    tokens,
    watch,
)

EXEMPT = {"plain", "medusa typical", "extract_hidden_states"}
"""Nothing to compare, another text, and what drafts nothing."""
CASES = {name: make for name, make in {**METHODS, **VARIANTS}.items() if name not in EXEMPT}
ROUNDS = {"greedy": [GREEDY_24] * 8, "sampled": SAMPLED_24}
DEPTHS = (None, 0, 1, 2, 0, None, 1, 0)
TIGHT: dict[str, Any] = {
    "tokens_per_block": 4, "max_batch_size": 4, "max_num_tokens": 24,
    "kv_cache_config": {"max_tokens": 128},
}  # fmt: skip
"""Chunks, preemptions, and prefixes that others left, drafted for or not."""

Texts = dict[str, list[list[int]]]


def limited(params: Sequence[SamplingParams], depths: Sequence[int | None]) -> list[SamplingParams]:
    return [
        replace(p, speculative=None if depth is None else {"num_speculative_tokens": depth})  # type: ignore[arg-type]
        for p, depth in zip(params, depths, strict=True)
    ]


@pytest.fixture(scope="module")
def plain(models: TinyModels) -> Callable[[Path], Texts]:
    known: dict[Path, Texts] = {}

    def of(folder: Path) -> Texts:
        if folder not in known:
            with open_llm(folder) as llm:
                known[folder] = {
                    name: tokens(llm.generate(PROMPTS, params, use_tqdm=False))
                    for name, params in ROUNDS.items()
                }
        return known[folder]

    return of


OFTEN = {*METHODS, "suffix", "adaptive hybrid", "auto with a draft"}


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", [pytest.param(n, marks=() if n in OFTEN else pytest.mark.matrix) for n in CASES]
)
def test_no_text_changes(
    models: TinyModels, plain: Callable[[Path], Texts], tmp_path: Path, name: str
) -> None:
    folder, speculation = CASES[name](models, tmp_path)
    drafted = 0
    with open_llm(folder, speculation, **TIGHT) as llm:
        steps = watch(llm)
        for shift, (kind, params) in enumerate([*ROUNDS.items(), *ROUNDS.items()]):
            depths = [*DEPTHS[shift:], *DEPTHS[:shift]]
            outputs = llm.generate(PROMPTS, limited(params, depths), use_tqdm=False)
            assert tokens(outputs) == plain(folder)[kind]
            for output, depth in zip(outputs, depths, strict=True):
                positions = output.metrics.num_drafts_per_pos
                assert depth is None or len(positions) <= depth
                drafted += len(positions) > 1
        assert_no_leak(llm)
    assert any(step.num_preempted for step in steps)
    assert drafted or "adaptive" in name or "auto" in name


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("name", ["chain", "eagle3", "medusa", "hybrid", "suffix"])
def test_no_draft_runs_for_those_that_want_none(
    models: TinyModels, tmp_path: Path, name: str, adaptive: bool
) -> None:
    """Neither for their prompts, nor beside one that is drafted for."""
    folder, speculation = CASES[name](models, tmp_path)
    off = replace(GREEDY_24, speculative={"num_speculative_tokens": None})  # type: ignore[arg-type]
    with open_llm(folder, {**(speculation or {}), "adaptive": adaptive}) as llm:
        llm.generate(PROMPTS, off, use_tqdm=False)
        metrics = llm.get_metrics()
        assert metrics["num_draft_calls"] == metrics["num_draft_tokens"] == 0
        steps = watch(llm)
        outputs = llm.generate(PROMPTS, [GREEDY_24, *[off] * 7], use_tqdm=False)
        drafted, *others = [output.metrics.num_draft_tokens for output in outputs]
        assert not any(others) and (drafted or adaptive)
    assert not any(item.max_nodes for s in steps for item in s.items if not item.request.may_draft)


def test_what_is_refused(models: TinyModels) -> None:
    def refusal(llm: LLM, depth: int) -> str:
        params = limited([GREEDY_24], [depth])
        with pytest.raises(RequestError) as caught:
            llm.generate(PROMPTS[0], params[0])
        return str(caught.value)

    with open_llm(models.folder("llama"), chain(models.draft("llama"), 3)) as llm:
        assert "'num_speculative_tokens': 4} was asked for" in refusal(llm, 4)
        assert "at most 3 deep; lower it" in refusal(llm, 4)
        llm.generate(PROMPTS[0], limited([GREEDY_24], [3])[0])
    with open_llm(models.folder("llama"), ngram(2)) as llm:
        assert "at most 2 deep" in refusal(llm, 3)
    with open_llm(models.folder("llama")) as llm:
        assert "nothing is drafted here; give 0" in refusal(llm, 1)
        llm.generate(PROMPTS[0], limited([GREEDY_24], [0])[0])
