"""How many drafts of Medusa heads are accepted: all of heads that are right, however a request is
fed, and few where heads are shifted or read the wrong row. Texts cannot show any of it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trtspec import SamplingParams
from trtspec.config.typical_acceptance import TypicalAcceptanceConfig
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.speculative.medusa.drafter import MedusaDrafter

from .eagle_heads import V, cycling_target, known_text
from .helpers import assert_no_leak, open_llm, random_prompt, tokens, watch
from .medusa_heads import forgetful_target, idle_heads, medusa, right_heads, write_heads

pytestmark = pytest.mark.slow

HEADS = 4
# The mode, then any tokens: of several lengths, two of them equal in their first 32 tokens.
BODIES = [random_prompt(280 + i, n, V - 2) for i, n in enumerate((20, 1, 4, 39))]
PROMPTS = [[i % 2, *(token + 2 for token in body)] for i, body in enumerate(BODIES)]
PROMPTS += [[*PROMPTS[3][:32], 5, 6], [*PROMPTS[3][:32], 7]]
LONG = SamplingParams(max_tokens=60)
NOISY = [replace(LONG, temperature=1.0, seed=i) for i in range(len(PROMPTS))]
SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"topk": 1},
    "default": {},
    "dynamic": {"topk": 3, "num_draft_tokens": 12},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("right")
    cycling_target(40.0).save_pretrained(root / "cycling")
    forgetful_target().save_pretrained(root / "forgetful")
    write_heads(root / "right", right_heads(HEADS))
    write_heads(root / "shifted", right_heads(HEADS, shift=1))
    write_heads(root / "late", right_heads(HEADS, shift=-1))
    write_heads(root / "idle", idle_heads(HEADS))
    return root


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "alone": {"max_batch_size": 1},
    "chunked": {"max_num_tokens": 24, "max_batch_size": 4},
    "preempted": {"tokens_per_block": 4, "kv_cache_config": {"max_tokens": 200}},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("shape", SHAPES)
def test_right_heads_are_always_accepted(root: Path, shape: str, options: str) -> None:
    config = medusa(root / "right", HEADS, **SHAPES[shape])
    with open_llm(root / "cycling", config, **OPTIONS[options]) as llm:
        steps = watch(llm)
        for _ in range(2):  # the second time over cached prefixes
            found = tokens(llm.generate(PROMPTS, LONG, use_tqdm=False))
            assert found == [known_text(prompt, 60) for prompt in PROMPTS]
        metrics = llm.get_metrics()
        whole = metrics["num_drafts"] * HEADS
        # Steps behind a prompt's last token draft from a state that does not know it, short texts
        # end early, and few rows cut drafts; all others are as deep as the tree.
        least = 0.9 if options in ("plain", "alone") else 0.65
        assert least * whole <= metrics["num_accepted_tokens"] <= whole
        if shape == "chain" and options in ("plain", "alone"):
            assert metrics["acceptance_rate"] > 0.98
        assert (sum(step.num_preempted for step in steps) > 0) == (options == "preempted")
        assert_no_leak(llm)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("batch", [1, 8])
def test_heads_guess_the_noise(root: Path, shape: str, batch: int) -> None:
    """Texts drawn at temperature 1 that nobody could foresee: the draft's noise of every depth is
    the target's at that output token."""
    config = medusa(root / "idle", HEADS, **SHAPES[shape])
    with open_llm(root / "forgetful", config, max_batch_size=batch) as llm:
        assert not llm.config.drafts[0].network.own_head
        found = tokens(llm.generate(PROMPTS, NOISY, use_tqdm=False))
        metrics = llm.get_metrics()
        accepted = metrics["num_accepted_tokens"]
        # The last step of a text may be shorter than the tree; a dynamic one may be so wide at its
        # top that it has no room for the likeliest path down to the last head.
        spared = HEADS * len(PROMPTS) * (2 if shape == "dynamic" else 1)
        assert metrics["num_drafts"] * HEADS - accepted <= spared
        if shape == "chain":
            assert metrics["acceptance_rate"] == 1.0
    with open_llm(root / "forgetful") as llm:
        assert tokens(llm.generate(PROMPTS, NOISY, use_tqdm=False)) == found
    assert all(len(set(text)) > 4 for text in found) and len({*map(tuple, found)}) == len(found)


def rate(root: Path, heads: str, target: str = "cycling", params: Any = LONG) -> float:
    with open_llm(root / target, medusa(root / heads, HEADS, topk=1)) as llm:
        found = tokens(llm.generate(PROMPTS, params, use_tqdm=False))
        if target == "cycling":
            assert found == [known_text(prompt, 60) for prompt in PROMPTS]
        value: float = llm.get_metrics()["acceptance_rate"]
        return value


def test_shifted_heads_are_noticed(root: Path) -> None:
    assert rate(root, "right") > 0.98
    assert rate(root, "shifted") < 0.1
    assert rate(root, "late") < 0.1


def test_a_wrong_row_is_noticed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The first of the accepted rows in place of the newest."""

    def on_accepted(
        self: MedusaDrafter, batch: StepPlan, result: StepResult
    ) -> list[tuple[int, ...]]:
        for item, hidden in zip(batch.items, result.hidden_of(batch), strict=True):
            self._states[item.request.id] = hidden[0].clone()
        return [()] * len(batch.items)

    monkeypatch.setattr(MedusaDrafter, "on_accepted", on_accepted)
    assert rate(root, "right") < 0.5


def test_wrong_noise_is_noticed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise of the output token before, for every depth."""
    roll_out = MedusaDrafter._roll_out

    def late(self: MedusaDrafter, requests: Any, sampling: Any, *options: Any) -> Any:
        return roll_out(self, requests, [*sampling[:-1], sampling[-1] - 1], *options)

    monkeypatch.setattr(MedusaDrafter, "_roll_out", late)
    assert rate(root, "idle", "forgetful", NOISY) < 0.5


def test_typical_acceptance_keeps_what_is_likely(root: Path) -> None:
    """Without noise of the target's own, most drafts are not what it samples, but likely."""
    lossy = {"lossy_typical_acceptance": vars(TypicalAcceptanceConfig(0.02, 0.3))}
    figures = []
    for more in ({}, lossy):
        config = medusa(root / "right", HEADS, topk=1, **more)
        blunt = root / "blunt"
        cycling_target(3.0).save_pretrained(blunt)
        with open_llm(blunt, config) as llm:
            outputs = llm.generate(PROMPTS, NOISY, use_tqdm=False)
            rules = {"lossy_typical" if more else "lossless"}
            assert {output.acceptance for output in outputs} == rules
            assert llm.generate(PROMPTS[0], SamplingParams(max_tokens=1)).acceptance == "lossless"
            figures.append(llm.get_metrics()["acceptance_rate"])
    assert figures[1] > figures[0] + 0.2
