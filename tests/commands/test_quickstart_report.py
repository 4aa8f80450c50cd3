"""What the quickstart says of a run that gained nothing."""

from __future__ import annotations

import re

import pytest

from trtspec import CompletionOutput, RequestOutput
from trtspec.bench.side_by_side import Run, report
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
