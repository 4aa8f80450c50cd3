"""What the quickstart says of a run, and of a prompt, that gained something or nothing."""

from __future__ import annotations

import re

import pytest

from trtspec import CompletionOutput, RequestOutput
from trtspec.bench.runs.side_by_side import Run, gain_of_prompt, report
from trtspec.executor.metrics import SpeculativeMetrics


def of_steps(steps: int, emitted: int, **milliseconds: float) -> Run:
    """A run of 1 second by figures: each step emitted so many tokens."""
    metrics = SpeculativeMetrics()
    for _ in range(steps):
        metrics.record(emitted, 4)
    texts = [CompletionOutput(0, 0, "x", [1] * steps * emitted, metrics=metrics)]
    run = Run("run", [RequestOutput(0, "prompt", [1], texts)])
    run.metrics = {"num_engine_steps": steps, "target_ms": 0, "draft_ms": 0, "host_ms": 0}
    run.metrics |= {f"{name}_ms": steps * value for name, value in milliseconds.items()}
    run.seconds = [1.0]
    return run


@pytest.mark.parametrize(
    ("emitted", "milliseconds", "words"),
    [
        (
            1,
            {"target": 5, "draft": 1, "host": 1},
            "hardly any draft was accepted: a step emits 1",
        ),
        (2, {"target": 5, "draft": 9, "host": 1}, "drafting is too dear for this target"),
        (2, {"target": 9, "draft": 2, "host": 1}, "more rows to verify cost the target more"),
        (2, {"target": 5, "draft": 1, "host": 4}, "is so small that the work around its calls"),
    ],
)
def test_why_a_run_gains_nothing(
    capsys: pytest.CaptureFixture[str],
    emitted: int,
    milliseconds: dict[str, float],
    words: str,
) -> None:
    base = of_steps(10, 1, target=4, host=1)
    run = of_steps(10, emitted, **milliseconds)
    report([base, run], [""])
    (line,) = re.findall(r"^no gain +(.*)$", capsys.readouterr().out, re.M)
    assert words in line and f"{sum(milliseconds.values()) / 5:.2f} times as long" in line
    run.seconds = [0.5]
    report([base, run], [""])
    assert "no gain" not in capsys.readouterr().out


def test_why_each_prompt_gained_or_not(capsys: pytest.CaptureFixture[str]) -> None:
    """Of prompts with a turn of their own: (emitted, drafted) of each step, seconds, what is said;
    the base takes a second for each."""
    cases = [
        ([(3, 4)] * 4, 0.5, "2.00 x: gained: 3.00 tokens a step, 4 of 4 steps had drafts, 8 of 16"),
        ([(2, 4)] * 4, 1.0, "1.00 x: no gain, steps took as much longer: 2.00"),
        ([(1, 4)] * 4, 1.0, "no gain, hardly any draft was accepted: 1.00 tokens a step, 4 of 4"),
        (
            [(1, 0)] * 3 + [(2, 1)],
            1.0,
            "no gain, most steps had no draft: 1.25 tokens a step, 1 of",
        ),
    ]
    base, run = Run("baseline"), Run("auto")
    for steps, seconds, _ in cases:
        metrics = SpeculativeMetrics()
        for emitted, drafted in steps:
            metrics.record(emitted, drafted)
        texts = [CompletionOutput(0, 0, "x", [1], metrics=metrics)]
        for each, took in ((base, 1.0), (run, seconds)):
            each.add([RequestOutput(0, "prompt", [1], texts)], took)
            each.metrics = {"num_engine_steps": 1, "target_ms": 1, "draft_ms": 0, "host_ms": 0}
    for index, (_, _, words) in enumerate(cases):
        assert words in gain_of_prompt(base, run, index)
    report([base, run], ["prompt"] * len(cases))
    assert len(re.findall(r"^ +\d\.\d\d x: ", capsys.readouterr().out, re.M)) == len(cases)
    run.seconds = [sum(run.seconds)]  # one turn for all: nobody knows the time of a prompt
    base.seconds = [sum(base.seconds)]
    report([base, run], ["prompt"] * len(cases))
    assert " x: " not in capsys.readouterr().out
