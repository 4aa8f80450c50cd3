"""The bring-up of a GPU: budget, resumption and report with made-up parts; the real ones on the
CPU, and on a device that is played there."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.backends.registry import backends
from trtspec.bench.floor import LinearRate, MachineRates
from trtspec.bench.gpu_bringup import __main__ as command
from trtspec.bench.gpu_bringup import kernel_figures, parity, runner, steps, suites
from trtspec.bench.gpu_bringup.part import (
    DONE,
    FAILED,
    NOT_REACHED,
    OK,
    SKIPPED,
    STOPPED,
    Part,
    PartFailed,
    PartResult,
    PartSkipped,
    Place,
)
from trtspec.bench.gpu_bringup.parts import PARTS, SHORT, needed
from trtspec.bench.gpu_bringup.report import page, write_report
from trtspec.commands import doctor

from ..fake_cuda import can_play, played_cuda

ROOT = Path(__file__).parents[2]
NAMES = "abcdef"
MADE_UP = [Part(name, f"What about {name}?", "none:none", (), 60) for name in NAMES]


def place(folder: Path, device: str = "cpu") -> Place:
    return Place(folder, ROOT, device)


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_every_part_runs_once_done_within_the_budget(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Run after run: what is done is kept, what failed or was not reached is tried again, and no
    part begins when the time is over."""
    where, clock, ran = place(tmp_path_factory.mktemp("runs")), [0.0], list[str]()

    def apart(at: Place, part: Part, seconds: float) -> PartResult:
        status = data.draw(st.sampled_from([OK, SKIPPED, FAILED, STOPPED]), part.name)
        taken = min(seconds, data.draw(st.sampled_from([1.0, 30.0, 60.0]), "seconds"))
        clock[0] += taken
        ran.append(part.name)
        return PartResult(part.name, status, taken, "" if status == OK else f"of {part.name}")

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(runner, "run_apart", apart)
        patch.setattr(runner.time, "monotonic", lambda: clock[0])
        done: dict[str, PartResult] = {}
        for _ in range(3):
            ran.clear()
            began, told = clock[0], list[int]()
            results = runner.run_parts(
                where, MADE_UP, 2, lambda found, told=told: told.append(len(found))
            )
            assert [result.name for result in results] == list(NAMES)
            assert told == list(range(1, len(NAMES) + 1))
            assert clock[0] - began <= 120
            assert not done.keys() & set(ran)
            for result in results:
                assert done.get(result.name, result) == result
                assert (result.name in ran) or result.name in done or result.status != OK
            reached = len(ran) + len(done)
            assert reached == len(NAMES) or clock[0] - began > 120 - 5
            done = {result.name: result for result in results if result.status in DONE}
        ran.clear()
        runner.run_parts(where, MADE_UP, 60, lambda found: None, again=True)
        assert ran == list(NAMES)


def test_results_of_another_device_are_not_taken(tmp_path: Path) -> None:
    (tmp_path / "parts").mkdir()
    runner.write_result(place(tmp_path), PartResult("a", OK, figures={"x": 1}))
    assert runner.read_result(place(tmp_path), MADE_UP[0]) == PartResult("a", OK, figures={"x": 1})
    assert runner.read_result(place(tmp_path, "cuda"), MADE_UP[0]) is None
    (tmp_path / "parts" / "a.json").write_text("{")
    assert runner.read_result(place(tmp_path), MADE_UP[0]) is None


@pytest.mark.slow
def test_processes_that_die_or_take_too_long(tmp_path: Path) -> None:
    for name in ("parts", "logs"):
        (tmp_path / name).mkdir()
    machine = next(part for part in PARTS if part.name == "machine")
    found = runner.run_apart(place(tmp_path), replace(machine, name="unknown"), 60)
    assert found.status == FAILED and found.error == "ended with status 1: StopIteration"
    found = runner.run_apart(place(tmp_path), machine, 0.05)
    assert found.status == STOPPED and "stopped after 0 s" in found.error


def test_what_a_part_raises_is_its_result(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "parts").mkdir()
    raised: dict[type[Exception], tuple[str, str]] = {
        PartSkipped: (SKIPPED, "why"),
        PartFailed: (FAILED, "PartFailed: why"),
        RuntimeError: (FAILED, "RuntimeError: why"),
    }
    for kind, (status, error) in raised.items():

        def raise_it(self: Part, at: Place, kind: type[Exception] = kind) -> dict[str, Any]:
            raise kind("why")

        monkeypatch.setattr(Part, "run", raise_it)
        runner.run_here(place(tmp_path), MADE_UP[0])
        found = runner.read_result(place(tmp_path), MADE_UP[0])
        assert found is not None and (found.status, found.error) == (status, error)


def test_the_report_has_all_parts_and_their_first_errors(tmp_path: Path) -> None:
    results = [
        PartResult(
            "a", OK, 2.0, figures={"speed": 1.23456, "rows": [{"x": 1}, {"x": 2, "y": "|"}]}
        ),
        PartResult("b", FAILED, 1.0, "RuntimeError: a | b\nand more"),
        PartResult("c", NOT_REACHED, error="2 minutes were over"),
    ]
    write_report(place(tmp_path), MADE_UP, results, 2)
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["is_rehearsal"] and [part["status"] for part in data["parts"]] == [
        OK, FAILED, NOT_REACHED,
    ]  # fmt: skip
    text = (tmp_path / "report.md").read_text()
    assert text == page(place(tmp_path), MADE_UP, results)
    for line in (
        "| b | What about b? | failed | 1 | RuntimeError: a \\| b and more |",
        "- speed: 1.235",
        "| x | y |",
        "| 2 | \\| |",
    ):
        assert line in text.splitlines()
    assert "rehearsal" in text and "rehearsal" not in page(
        place(tmp_path, "cuda"), MADE_UP, results
    )


def test_what_of_the_tree_is_needed_can_travel(capsys: pytest.CaptureFixture[str]) -> None:
    assert command.main(["--list"]) == 0
    said = capsys.readouterr().out
    assert all(part.title in said for part in PARTS)
    assert all((ROOT / name).exists() and name in said for name in needed())
    assert sum(command.size_of(ROOT / name) for name in needed()) < 48 << 20
    assert set(needed(tuple(p for p in PARTS if p.name in SHORT))) <= {
        "trtspec", "checkpoint_converters",
    }  # fmt: skip


@pytest.mark.slow
def test_a_rehearsal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In processes of their own, and gone on with."""
    words = ["--output", str(tmp_path), "--parts", "machine", "build", "--device", "cpu"]
    assert command.main([*words, "--minutes", "2"]) == 0
    parts = json.loads((tmp_path / "report.json").read_text())["parts"]
    assert [part["name"] for part in parts] == ["machine", "build"]
    assert parts[0]["status"] == OK and parts[0]["figures"]["python"]
    assert parts[1]["status"] in DONE
    assert command.main([*words, "--minutes", "0"]) == 0
    assert json.loads((tmp_path / "report.json").read_text())["parts"] == parts
    assert "report: " in capsys.readouterr().out


@pytest.mark.slow
def test_the_short_form(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SHORT", ("machine",))
    for flags, begin in ((["--gpu"], "# GPU bring-up"), (["--gpu", "--json"], "{")):
        assert doctor.main(flags) == 0
        assert capsys.readouterr().out.startswith(begin)


def test_parity_sees_what_differs() -> None:
    def case(*values: float) -> parity.Case:
        given = {"cpu": values[0], "other": values[1]}
        return lambda device: [torch.tensor([given[device]])]

    assert parity.compare("", case(1, 1), "other")["found"] == "equal"
    assert parity.compare("", case(1, 2), "other")["found"] == "1 values differ"
    assert parity.compare("", case(1.0, 1.001), "other")["found"] == "0.001 off"
    assert parity.compare("", case(1.0, float("nan")), "other")["found"] == "inf off"
    ends = case(-float("inf"), -float("inf"))
    assert parity.compare("", lambda d: [*ends(d), torch.ones(1)], "other")["found"] == "equal"
    assert "KeyError" in parity.compare("", case(1, 1), "third")["found"]


def test_outcomes_of_tests(tmp_path: Path) -> None:
    file = tmp_path / "tests.xml"
    file.write_text(
        '<testsuites><testsuite><testcase name="a"/><testcase name="b"><failure message="one"/>'
        '</testcase><testcase name="c"><skipped message="no GPU"/></testcase>'
        '<testcase name="d"><error message="two"/></testcase></testsuite></testsuites>'
    )
    counts, first, why = suites.outcomes(file)
    assert dict(counts) == {"passed": 1, "failed": 2, "skipped": 1}
    assert (first, why) == ("b: one", "no GPU")


@pytest.mark.ci
@pytest.mark.slow
@pytest.mark.skipif(not can_play(), reason="torch has CUDA itself")
def test_what_runs_on_a_gpu_on_a_played_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parity, figures, calls and steps, with the engine of modules in the place of a compiled
    one."""
    at = place(tmp_path, "cuda")
    scale = replace(steps.Scale.of(place(tmp_path)), batches=(2,), methods=("eagle3:2,2,5",))
    modules = next(each for each in backends().values() if not each.makes_artifacts)
    monkeypatch.setattr(steps.Scale, "of", classmethod(lambda cls, at: scale))
    monkeypatch.setattr(steps, "_default", lambda at: modules)
    monkeypatch.setattr(kernel_figures, "_CONTEXTS", (40,))
    monkeypatch.setattr(kernel_figures, "_ROWS", (1, 3))
    small = kernel_figures.linear_rates
    monkeypatch.setattr(
        kernel_figures, "linear_rates",
        lambda device, dtype, width, rows, seconds: small(device, dtype, 64, rows, 0.01),
    )  # fmt: skip
    rates = MachineRates("cuda", "float32", 1, 1e9, (LinearRate(1, 1e9, 1e9),))
    monkeypatch.setattr(steps, "measure_machine", lambda *_, **__: rates)
    with played_cuda(memory=1 << 24):
        assert parity.run(at)["cases"]
        figures = kernel_figures.run(at)
        assert [row["rows"] for row in figures["attention"]] == [1, 3]
    with played_cuda():
        assert len(steps.calls(at)["calls"]) == 2 + 2
        rows = steps.steps(at)["steps"]
    assert [row["method"] for row in rows] == ["none", *scale.methods]
    assert all(row["same tokens"] == scale.tokens for row in rows)
    json.dumps([figures, rows])
