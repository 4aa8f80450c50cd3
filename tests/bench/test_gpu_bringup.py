"""The bring-up of a GPU: its packages and report; its parts on the CPU, and on a device that is
faked there."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from trtspec.backends.registry import ENTRY_POINTS, backends
from trtspec.bench.gpu_bringup import (
    ahead,
    attention,
    engines,
    few_rows,
    latency,
    packages,
    products,
    steps,
    suites,
)
from trtspec.bench.gpu_bringup.bring_up import ROOT, bring_up
from trtspec.bench.gpu_bringup.journal import (
    FAILED,
    GOES_ON,
    NOT_REACHED,
    OK,
    SKIPPED,
    Journal,
)
from trtspec.bench.gpu_bringup.part import Part, PartFailed, Place
from trtspec.bench.gpu_bringup.parts import PARTS
from trtspec.bench.gpu_bringup.report import write_report
from trtspec.bench.gpu_bringup.step_profile import Stopwatch, device_figures
from trtspec.bench.report import floor
from trtspec.bench.synthetic import engine as synthetic
from trtspec.builder.graph_cache import kept_graphs
from trtspec.builder.plan import BuildPlan
from trtspec.child_python import python_command
from trtspec.commands import doctor
from trtspec.engine.graphs import graph_names

from ..fake_cuda import can_fake, played_cuda
from ..other_package import installer


def test_packages_come_back_in_pieces(tmp_path: Path) -> None:
    files = [tmp_path / name for name in ("target.pt2", "rollout.pt2")]
    for file in files:
        file.write_bytes(os.urandom(700))
    output = tmp_path / "report"
    output.mkdir()
    size = packages.keep(files, output, 1000)
    pieces = sorted(output.iterdir())
    assert [piece.stat().st_size for piece in pieces] == [1000, size - 1000]
    back = tmp_path / "cache" / "compiled"
    assert sorted(packages.restore(output, back)) == ["rollout.pt2", "target.pt2"]
    assert all((back / file.name).read_bytes() == file.read_bytes() for file in files)
    with pytest.raises(PartFailed, match="exceed the 2 pieces"):
        packages.keep(files, output, 500)
    assert sorted(output.iterdir()) == pieces
    pieces[1].unlink()
    assert packages.restore(output, tmp_path / "other") == []
    assert packages.restore(tmp_path, tmp_path / "other") == []


@pytest.mark.slow
def test_a_next_machine_compiles_nothing_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a backend whose artifacts say which process made them."""
    installer(tmp_path / "site", monkeypatch, ENTRY_POINTS, backends.cache_clear)(
        "tests.backends.toy_backend:TOY"
    )
    place = Place(tmp_path / "report", ROOT, "cpu")
    place.output.mkdir()
    small = replace(engines.Scale.of(place), backend="toy")
    monkeypatch.setattr(engines.Scale, "of", lambda at: small)
    made: list[dict[str, str]] = []
    for machine in ("first", "second"):
        monkeypatch.setenv("TRTSPEC_CACHE_DIR", str(tmp_path / machine))
        for compiling in (engines.compile_chains, engines.compile_trees):
            (case,) = compiling(place)
            case.measure()
        compiled = (tmp_path / machine / "compiled").iterdir()
        made.append({file.name: file.read_text() for file in compiled if file.is_file()})
    assert made[0] == made[1]
    assert len(made[0]) == 1 + 2 + 2, "a target; a rollout and a first step of chains and of trees"
    monkeypatch.undo()
    backends.cache_clear()


def test_the_report_has_all_parts_and_their_first_errors(tmp_path: Path) -> None:
    parts = [Part(name, f"What about {name}?", "", 60) for name in "abc"]
    place, journal = Place(tmp_path, ROOT, "cpu"), Journal(tmp_path, "cpu")
    journal.add("a", begins=GOES_ON)
    journal.add("a", key={"x": 1}, figures={"us": 1.23456})
    journal.add("a", key={"y": 1}, figures={})
    journal.add("a", key={"x": 2}, figures={"us": ["p", "q|r"]})
    journal.add("a", key={"x": 3}, error="x" * 999)
    journal.add("b", status=FAILED, error="RuntimeError: a | b\nand more", seconds=1.0)
    write_report(place, parts, journal, ["--device", "cpu"])
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["command"].endswith("gpu_bringup --device cpu") and data["machine"]["cores"]
    assert [part["status"] for part in data["parts"]] == [NOT_REACHED, FAILED, NOT_REACHED]
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert "| b | What about b? | failed | 0 of ? | 1 | RuntimeError: a / b and more |" in lines
    at = lines.index("| x | us |")
    assert lines[at + 2 : at + 4] == ["| 1 | 1.235 |", "| 2 | p, q/r |"]
    assert any("rehearsal" in line for line in lines) and f"| 3 | {'x' * 400} |" in lines
    assert Journal(tmp_path, "cuda").results() == {}, "another device has figures of its own"


def test_what_a_step_consists_of() -> None:
    class Work:
        def outer(self) -> None:
            self.inner()

        def inner(self) -> None:
            sum(range(10000))

    watch = Stopwatch()
    with watch.watching([("outer", Work, "outer"), ("inner", Work, "inner")]):
        Work().outer()
    assert watch.ns["inner"] > watch.ns["outer"] > 0 and watch.ns["between"] > 0
    before = dict(watch.ns)
    Work().outer()
    assert watch.ns == before
    kernels = [("b", 10.0, 14.0), ("a", 0.0, 8.0), ("c", 2.0, 4.0), ("b", 20.0, 24.0)]
    assert device_figures(kernels, 2) == {
        "kernels": 2.0, "kernels us": 9.0, "gaps us": 4.0,
        "longest": ["a 44%", "b 44%", "c 11%"],
    }  # fmt: skip
    assert device_figures([], 2)["gaps us"] == 0


# -- the real parts -----------------------------------------------------------------------------


@pytest.mark.slow
def test_a_rehearsal(tmp_path: Path) -> None:
    """All parts on the CPU, in processes of their own; a second run has nothing left to do but what
    each machine needs."""
    results = bring_up(tmp_path, PARTS, 300, "cpu")
    allowed = {"latency": (SKIPPED,), "memory": (OK, SKIPPED)}
    for name, result in results.items():
        assert result.status in allowed.get(name, (OK,)), (name, result.error)
    assert len(results["chains"].rows) == 2 * (6 + 2)
    point = {"batch": 1, "temperature": 0.0, "context": 0}
    texts = {
        row["figures"]["text"]
        for name in ("chains", "trees")
        for row in results[name].rows.values()
        if row["key"] == {"method": row["key"].get("method"), **point}
    }
    assert len(texts) == 1
    files = sorted(file.name for file in tmp_path.iterdir())
    assert files == ["journal.jsonl", "log.txt", "report.json", "report.md"]


@pytest.mark.slow
def test_the_short_form(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(doctor, "SHORT", ("latency",))
    for flags, begin in ((["--gpu"], "# GPU bring-up"), (["--gpu", "--json"], "{")):
        assert doctor.main(flags) == 0
        assert capsys.readouterr().out.startswith(begin)


@pytest.mark.slow
@pytest.mark.skipif(not can_fake(), reason="torch has CUDA itself")
def test_what_runs_on_a_gpu_on_a_played_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Figures and steps, with the engine of modules in the place of a compiled one."""
    at, rehearsed = Place(tmp_path, ROOT, "cuda"), Place(tmp_path, ROOT, "cpu")
    monkeypatch.setattr(attention, "CONTEXTS", (40,))
    monkeypatch.setattr(attention, "ROWS", (1, 3))
    tiles = list[str]()
    monkeypatch.setattr(attention, "force", tiles.append)
    monkeypatch.setattr(products, "SHAPES", ((64, 32),))
    monkeypatch.setattr(floor, "FOOTPRINT", 1 << 10)
    monkeypatch.setattr(latency, "_TIMES", 3)
    small = replace(engines.Scale.of(rehearsed), batches=(2,))
    monkeypatch.setattr(engines.Scale, "of", lambda at: small)
    given: dict[Callable[..., Any], int] = {
        latency.cases: 1 + 3 + 4 + 2,
        products.cases: 3,
        few_rows.cases: 7,
        attention.cases: 3 * len(attention.TILES),
    }
    for cases, count in given.items():
        with played_cuda(memory=1 << 24):
            rows = [dict(case.measure()) for case in cases(at)]
        assert len(rows) == count and all(rows)
        json.dumps(rows)
    assert tiles == [*attention.TILES] * 3
    with played_cuda():
        rows = [dict(case.measure()) for case in steps.chains(at)]
        launched = [dict(case.measure()) for case in ahead.cases(at)]
    assert len(rows) == 2 * (3 + 1) and rows[0]["text"] == rows[4]["text"]
    texts = [row["text"] for row in launched[::2]]  # the others profile
    assert len(launched) == 2 * 2 * (1 + 1) and texts == [rows[0]["text"]] * 4


@pytest.mark.skipif(not can_fake(), reason="torch has CUDA itself")
def test_engines_of_a_gpu_can_be_planned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both of the sizes that a GPU gets, and they share the target, whose compilation takes
    longest."""
    plans: list[BuildPlan] = []
    monkeypatch.setattr(synthetic, "build_engine", lambda plan, *_, **__: plans.append(plan))
    at = Place(tmp_path, ROOT, "cuda")
    with played_cuda(memory=139 << 30):
        for family in (engines.CHAINS, engines.TREES):
            engines.engine_of(at, family)
        graphs = [kept_graphs(plan.engine, graph_names(plan.engine)) for plan in plans]
    assert [plan.engine.target.vocab_size for plan in plans] == [128256] * 2
    assert [plan.engine.drafts[0].network.draft_vocab_size for plan in plans] == [32768] * 2
    assert len(set().union(*(each.values() for each in graphs))) == 1 + 2 + 2


def test_outcomes_of_tests(tmp_path: Path) -> None:
    (tmp_path / "test_two.py").write_text("def test_a(): pass\ndef test_b(): assert 1 == 2\n")
    place = Place(tmp_path, tmp_path, "cpu")
    command = python_command(*suites._PYTEST, "test_two.py")
    with pytest.raises(PartFailed, match=r"FAILED test_two.py::test_b.*; 1 failed, 1 passed"):
        suites.run(place, command)
    said = ["COMPUTE-SANITIZER", "Invalid read of 4 bytes", "    at walk", "ERROR SUMMARY: 1 error"]
    code = f"print(*('=' * 9 + ' ' + line for line in {said}), sep=chr(10)); exit(9)"
    with pytest.raises(PartFailed, match=r"^Invalid read of 4 bytes; ERROR SUMMARY: 1 error$"):
        suites.run(place, python_command("-c", code))
