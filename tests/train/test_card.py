"""The plan's figures, and the card: command, data, seeds, figures."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from trtspec.builder.token_choice import DraftVocabulary
from trtspec.train.card import Card
from trtspec.train.measure import Measured
from trtspec.train.options import TrainOptions
from trtspec.train.plan import TrainingPlan
from trtspec.train.run import make_plan
from trtspec.train.trainer import HeldOut

from .toy_training import schedule


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> TrainingPlan:
    folder = tmp_path_factory.mktemp("plan")
    options = TrainOptions(
        "eagle3", "trtspec-tiny", folder / "head", tokens=1000, state=folder / "s"
    )
    return replace(make_plan(options), gflops=100.0, efficiency=0.2)


def test_figures_of_the_plan(plan: TrainingPlan) -> None:
    """Of a head with hidden size 256 and 4,096 tokens, by hand."""
    body = 3 * 256 * 256 + 512 * (256 + 2 * 128) + 256 * 256 + 3 * 256 * 704
    assert plan.head_weights == body + 4096 * 256
    assert plan.operations == 6 * 3 * plan.head_weights + 2 * 4096 * 256
    assert plan.training_minutes == pytest.approx(4 * 1000 * plan.operations / (0.2 * 100e9) / 60)
    twice = replace(plan, tokens=2000, new_tokens=2000)
    assert twice.training_minutes == pytest.approx(2 * plan.training_minutes)
    assert twice.writing_minutes == pytest.approx(2 * plan.writing_minutes)
    states = 1000 * 4 * 256 * 2
    assert twice.disk_bytes - plan.disk_bytes == states
    assert replace(plan, new_tokens=0).writing_minutes == 0


def test_card(plan: TrainingPlan, tmp_path: Path) -> None:
    text = Card(
        plan=plan,
        title="my-head",
        command="trtspec-train eagle3 --seed 5",
        schedule=schedule(),
        step=9,
        data="1,000 tokens of somebody's",
        vocabulary=DraftVocabulary(torch.arange(1024), 0.996),
        held_out=HeldOut(1.25, (0.5, 0.25)),
        measured=Measured(7, 5, {0.0: 2.5, 1.0: 2.25}),
        versions="trtspec 1",
    ).text()
    for words in (
        "# my-head\n", "layers [1, 3, 4]", '"method": "eagle3"', '"num_speculative_tokens": 5',
        "`trtspec-train eagle3 --seed 5`", "1,000 tokens of somebody's", "9 of 12 steps",
        "1,024 of 4,096 tokens, 99.60% of a text",
        "1.250 nats (cross-entropy with the target's distribution, the sum over the positions",
        "0.500, 0.250",
        "2.50 at temperature 0, 2.25 at temperature 1 (7 prompts, drafts of 5)",
        f"fingerprint {plan.target.fingerprint}", "| Seeds | 5 for", "trtspec 1",
    ):  # fmt: skip
        assert words in text, words
