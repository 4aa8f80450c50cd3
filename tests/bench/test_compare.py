"""Methods side by side: arithmetic over synthetic rounds, the file, the picture, the table."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from trtspec import CompletionOutput, RequestOutput
from trtspec.bench.report import picture, table
from trtspec.bench.report.result_file import save
from trtspec.bench.runs.by_category import by_category
from trtspec.bench.runs.compare import (
    Entrant,
    Round,
    compare_texts,
    first_divergence,
    run_rounds,
    set_floor,
    summarize,
)
from trtspec.bench.runs.compare_report import (
    FORMAT,
    HEADERS,
    broken_promises,
    make_report,
    plot,
    print_point,
)
from trtspec.bench.runs.compare_report import (
    __doc__ as SCHEMA,
)
from trtspec.bench.runs.methods import NONE, BenchMethod
from trtspec.config.sampling import SamplingParams
from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.speculative.options import parse_speculative_config

from ..e2e.helpers import TinyModels, open_llm, random_prompt
from .test_floor import RATES

NGRAM = BenchMethod(
    "ngram:2 [x]",
    parse_speculative_config({"method": "ngram", "num_speculative_tokens": 2}),
)
TEXTS = [[1, 2, 3, 4], [5, 6]]


def one_round(seconds: float, steps: int = 4, accepted: int = 0, **changes: Any) -> Round:
    metrics = SpeculativeMetrics()
    for _ in range(steps):
        metrics.record(1 + accepted, 2 if accepted else 0)
    totals = {
        "num_verify_steps": steps,
        "verify_ms": 10.0 * steps,
        "verify_target_ms": 6.0 * steps,
        "verify_draft_ms": 3.0 * steps,
        "verify_host_ms": 1.0 * steps,
        "verify_weight_bytes": 90_000_000 * steps,
        "verify_kv_bytes": 10_000_000 * steps,
    }
    return Round(**{"seconds": seconds, "tokens": TEXTS, "acceptance": metrics, "totals": totals}
                 | changes)  # fmt: skip


class FakeLLM:
    """Writes down when it is opened, asked and closed; answers a prompt with its tokens."""

    def __init__(self, name: str, events: list[str]) -> None:
        self.name, self.events = name, events
        events.append(f"open {name}")

    def __enter__(self) -> FakeLLM:
        return self

    def __exit__(self, *_: object) -> None:
        self.events.append(f"close {self.name}")

    def generate(self, prompts: Any, params: Any, use_tqdm: bool) -> Any:
        if not isinstance(params, SamplingParams):  # else it is the warm-up
            self.events.append(f"{self.name} {[token for prompt in prompts for token in prompt]}")
        metrics = SpeculativeMetrics()
        return [
            RequestOutput(0, None, prompt, [CompletionOutput(0, 0, "", prompt, metrics=metrics)])
            for prompt in prompts
        ]

    def get_metrics(self) -> dict[str, Any]:
        return dict(one_round(1.0).totals)


def test_by_category() -> None:
    """Of prompts that had turns of their own: the median of the rounds' ratios."""
    plain = [one_round(4.0, turn_seconds=(1.0, 3.0)), one_round(8.0, turn_seconds=(2.0, 6.0))]
    own = [one_round(3.0, turn_seconds=(0.5, 2.5)), one_round(4.0, turn_seconds=(1.0, 3.0))]
    found = by_category(["qa", "math"], own, plain)
    assert found == {
        "qa": {"tokens_per_second": 6.0, "speed_up": 2.0},
        "math": {"tokens_per_second": median((0.8, 2 / 3)), "speed_up": median((1.2, 2.0))},
    }
    assert by_category(["qa", None], own, plain).keys() == {"qa"}
    assert by_category([None, None], own, plain) == {}
    shared = [one_round(4.0, turn_seconds=(4.0,))] * 2
    assert by_category(["qa", "qa"], shared, shared) == {}


def test_figures_are_medians_over_rounds() -> None:
    baseline = [one_round(s) for s in (1.0, 2.0, 4.0)]
    rounds = [one_round(s, steps=2, accepted=1) for s in (0.5, 0.5, 4.0)]
    figures = summarize(NGRAM, rounds, baseline, RATES, is_promised=True)
    assert figures["tokens_per_second"] == 6 / 0.5
    assert figures["speed_up"] == 2.0  # of 2, 4 and 1
    assert [figures[k] for k in ("step_ms", "target_ms", "draft_ms", "host_ms")] == [10, 6, 3, 1]
    # 100 MB a step at 20 GB/s
    assert figures["memory_floor_ms"] == pytest.approx(5.0)
    assert figures["memory_floor_share"] == pytest.approx(0.5)
    assert figures["acceptance"]["acceptance_length"] == 2.0
    assert figures["acceptance"]["num_steps"] == 6
    assert figures["speculative_config"]["method"] == "ngram"
    assert figures["texts"]["is_promised"] and figures["texts"]["num_divergences"] == 0
    own = summarize(BenchMethod(NONE, None), baseline, baseline, RATES, True)
    assert own["speed_up"] == 1.0 and own["speculative_config"] is None


def test_a_floor_that_was_not_measured(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """It is none until memory is read faster, in the table, the file and the picture."""
    slow = replace(RATES, read_bandwidth=2e9)  # 50 ms for a step of 10
    rounds = [one_round(1.0)]
    figures = summarize(BenchMethod(NONE, None), rounds, rounds, slow, True)
    assert figures["memory_floor_ms"] is figures["memory_floor_share"] is None
    shown = {"batch_size": 1, "temperature": 0.0, "methods": [figures]}
    print_point(shown)
    assert "floor not measured" in " ".join(capsys.readouterr().out.split())
    json.dumps(shown, allow_nan=False)
    if picture.HAS_MATPLOTLIB:
        plot([shown], tmp_path / "plot.png")
    set_floor(figures, RATES)
    assert figures["memory_floor_share"] == pytest.approx(0.5)


def test_memory_is_sampled_between_rounds(models: TinyModels) -> None:
    events: list[str] = []
    contenders = [Entrant(NGRAM, lambda: FakeLLM("a", events))]
    run_rounds(contenders, [[1]], SamplingParams(seed=0), 3, lambda: events.append("sample"))
    assert events == ["open a", "a [1]", "close a", "sample"] * 3


def test_turns_by_prompts() -> None:
    """All models are open for a round, anew, and take turns forwards and backwards; without a size
    of turns one is open at a time."""
    events: list[str] = []
    names = ("a", "b")
    contenders = [Entrant(NGRAM, partial(FakeLLM, name, events)) for name in names]
    prompts = [[0], [1], [2]]
    run_rounds(contenders, prompts, SamplingParams(seed=0), 2, turn_size=2)
    first = ["open a", "open b", "a [0, 1]", "b [0, 1]", "b [2]", "a [2]", "close b", "close a"]
    assert events[:8] == first
    assert events[8:10] == ["open b", "open a"] and events[10:12] == ["b [0, 1]", "a [0, 1]"]
    assert [r.tokens for c in contenders for r in c.rounds] == [[[0], [1], [2]]] * 4
    events.clear()
    run_rounds(contenders, prompts, SamplingParams(seed=0), 1)
    assert events == [
        line for name in names for line in (f"open {name}", f"{name} [0, 1, 2]", f"close {name}")
    ]


def test_rounds_that_differ_are_marked(capsys: pytest.CaptureFixture[str]) -> None:
    for seconds, shown in (((1.0, 1.2), "1.20"), ((1.0, 1.4), "1.40 !")):
        rounds = [one_round(s) for s in seconds]
        figures = summarize(BenchMethod(NONE, None), rounds, rounds, RATES, True)
        assert figures["spread"] == pytest.approx(max(seconds))
        print_point({"batch_size": 1, "temperature": 0.0, "methods": [figures]})
        assert shown in capsys.readouterr().out


def test_a_run_without_verify_steps() -> None:
    """One token a prompt: all of it is prefill."""
    empty = dict.fromkeys(one_round(1.0).totals, 0)
    rounds = [one_round(1.0, steps=0, totals=empty)]
    figures = summarize(NGRAM, rounds, rounds, RATES, True)
    assert figures["step_ms"] == figures["memory_floor_share"] == 0.0
    json.dumps(figures, allow_nan=False)


def test_texts() -> None:
    assert first_divergence([1, 2], [1, 2]) is None
    assert first_divergence([1, 3, 2], [1, 2, 2]) == 1
    assert first_divergence([1], [1, 2]) == 1 and first_divergence([1, 2], [1]) == 1
    other, later = [[1, 2, 9, 4], [5, 6]], [[1, 9, 3, 4], [5, 6]]
    found = compare_texts([TEXTS, other, later], TEXTS, is_promised=False)
    assert found["num_divergences"] == 1 and found["first_divergences"] == {"0": 1}
    assert compare_texts([TEXTS], TEXTS, True)["first_divergences"] == {}


def point(**changes: Any) -> dict[str, Any]:
    baseline, rounds = [one_round(1.0)], [one_round(0.5, 2, 1, **changes)]
    methods = [
        summarize(BenchMethod(NONE, None), baseline, baseline, RATES, True),
        summarize(NGRAM, rounds, baseline, RATES, True),
    ]
    return {"batch_size": 1, "temperature": 0.0, "methods": methods}


def test_a_broken_promise_is_named() -> None:
    assert broken_promises([point()]) == []
    (line,) = broken_promises([point(tokens=[[1, 2, 3, 4], [5, 9]])])
    assert "ngram:2 [x] changed 1 of 2 texts (batch 1, temperature 0)" in line
    assert "first prompt 1 at output token 1" in line


def test_the_file_has_what_its_schema_names(tmp_path: Path) -> None:
    report = make_report("trtspec-bench compare", "m", {}, {}, RATES, 1, {}, [point()])
    save(tmp_path / "report.json", report)
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["format"] == FORMAT and data["versions"]["trtspec"] and data["machine"]["cores"]
    assert SCHEMA is not None
    figures = data["points"][0]["methods"][0]
    for name in [*data, *figures, *figures["texts"], *data["points"][0]]:
        assert name in SCHEMA, f"{name} is not described"


@pytest.mark.parametrize("has_rich", [True, False])
def test_the_table(
    has_rich: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if has_rich:
        pytest.importorskip("rich")
    monkeypatch.setattr(table, "HAS_RICH", has_rich)
    print_point(point(tokens=[[1, 2, 3, 4], [5, 9]]))
    out = capsys.readouterr().out
    assert "batch 1, temperature 0" in out and all(header in out for header in HEADERS)
    (line,) = (line for line in out.splitlines() if "ngram:2 [x]" in line)
    assert [cell for cell in line.replace("│", " ").split() if cell][2:] == [
        "12.0", "2.00", "2.00", "0.50", "1.00", "0.00", "10.000", "6.000", "3.000", "1.000", "50%",
        "1.00", "1", "of", "2", "differ",
    ]  # fmt: skip


def test_the_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    plot([point(), point()], tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")


def test_no_round_knows_the_one_before(models: TinyModels) -> None:
    """Suffix trees learn from answers; a second round over the same prompts must not."""
    spec = {"method": "suffix", "num_speculative_tokens": 8}
    method = BenchMethod("suffix:8", parse_speculative_config(spec))
    contender = Entrant(method, lambda: open_llm(models.folder("llama"), spec))
    run_rounds([contender], [random_prompt(1, 20)], SamplingParams(24, ignore_eos=True), 2)
    first, second = contender.rounds
    assert first.tokens == second.tokens and len(first.tokens[0]) == 24
    assert first.acceptance.to_dict() == second.acceptance.to_dict()
    assert first.totals["num_verify_steps"] == second.totals["num_verify_steps"] > 0
