"""MTP modules behind a target's layers, made like the last of these: DeepSeek V3's, GLM-4.5's."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams

from .families import VOCAB, family_model
from .helpers import assert_no_leak, open_llm, random_prompt, tokens
from .mtp_modules import add_behind, behind_guesses, mtp

PROMPTS = [random_prompt(1, 30, VOCAB), random_prompt(2, 6, VOCAB) * 4, random_prompt(3, 5, VOCAB)]
GREEDY = SamplingParams(max_tokens=16)
RUNS = (GREEDY, replace(GREEDY, temperature=0.8, seed=5))


def watch_guesses(llm: LLM) -> dict[int, int]:
    """Filled with the first draft token of every step, by the number of tokens before it."""
    found: dict[int, int] = {}
    drafter = llm._executor._drafter
    prepare = drafter.prepare_draft_tokens

    def watched(plan: Any) -> Any:
        drafts = prepare(plan)
        for item, tree in zip(plan.items, drafts, strict=True):
            if len(tree):
                found[len(item.request.tokens)] = int(tree.tokens[0])
        return drafts

    drafter.prepare_draft_tokens = watched
    return found


def test_guesses_are_those_of_transformers(tmp_path: Path) -> None:
    hf = family_model("deepseek_v3", first_k_dense_replace=9)
    folder = add_behind(hf, tmp_path / "target")
    with open_llm(folder, mtp(num_speculative_tokens=1)) as llm:
        found = watch_guesses(llm)
        (text,) = tokens(llm.generate(PROMPTS[:1], GREEDY))
    whole = PROMPTS[0] + text
    guesses = behind_guesses(hf, folder, whole)
    assert len(found) >= 10
    assert found == {count: guesses[count - 2] for count in found}


@pytest.mark.slow
@pytest.mark.parametrize("case", ["deepseek_v3", "glm4_moe"])
def test_text_is_unchanged(tmp_path: Path, case: str) -> None:
    """By one module at every depth, chain or tree, and by one for each depth."""
    folder = add_behind(family_model(case), tmp_path / "target", 2)
    with open_llm(folder) as llm:
        expected = [tokens(llm.generate(PROMPTS, run)) for run in RUNS]
    shapes: list[dict[str, Any]] = [
        {"num_speculative_tokens": 3, "topk": 2, "num_draft_tokens": 8},
        {"num_speculative_tokens": 2},
    ]
    for shape in shapes:
        with open_llm(folder, mtp(**shape), max_num_tokens=24, tokens_per_block=4) as llm:
            for _ in range(2):  # the second time over kept prefixes
                assert [tokens(llm.generate(PROMPTS, run)) for run in RUNS] == expected
            assert llm.get_metrics()["num_draft_tokens"] > 0
            assert_no_leak(llm)
