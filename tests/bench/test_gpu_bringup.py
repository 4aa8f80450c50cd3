"""The bring-up of a GPU: budgets, resumption, packages and report with made-up parts; the real ones
on the CPU, and on a device that is played there."""

from __future__ import annotations

import asyncio
import json
import os
import selectors
import subprocess
import time
from collections.abc import Callable, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.backends.registry import ENTRY_POINTS, backends
from trtspec.bench import floor
from trtspec.bench.gpu_bringup import attention, engines, latency, packages, products, steps, suites
from trtspec.bench.gpu_bringup.bring_up import ROOT, bring_up
from trtspec.bench.gpu_bringup.journal import (
    FAILED,
    GOES_ON,
    NOT_REACHED,
    OK,
    SKIPPED,
    STOPPED,
    Journal,
    PartResult,
)
from trtspec.bench.gpu_bringup.part import Part, PartFailed, Place
from trtspec.bench.gpu_bringup.parts import PARTS
from trtspec.bench.gpu_bringup.report import figures, write_report
from trtspec.bench.gpu_bringup.runner import run_parts
from trtspec.bench.gpu_bringup.step_profile import Stopwatch, device_figures
from trtspec.bench.synthetic import engine as synthetic
from trtspec.builder.graph_cache import kept_graphs
from trtspec.builder.plan import BuildPlan
from trtspec.child_python import python_command, python_environment
from trtspec.commands import doctor
from trtspec.engine.graphs import graph_names

from ..fake_cuda import can_play, played_cuda
from ..other_package import installer

# -- budgets ------------------------------------------------------------------------------------


class Leaps(selectors.DefaultSelector):
    """Waiting takes no time: a clock of its own leaps."""

    now = 0.0

    def select(self, timeout: float | None = None) -> Any:
        self.now += timeout or 0.0
        return super().select(0)


def leap(run: Coroutine[Any, Any, None]) -> float:
    """Run on a clock that leaps; the seconds that it took."""
    selector = Leaps()
    loop = asyncio.SelectorEventLoop(selector)
    loop.time = lambda: selector.now  # type: ignore[method-assign]
    loop.run_until_complete(run)
    loop.close()
    return selector.now


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_parts_run_once_done_in_order_within_the_budget(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Run after run: what is done is kept, what failed or was not reached is tried again, nothing
    begins before what it waits for, and nothing runs when the time is over."""
    names = "abcdef"
    parts = [
        Part(
            name,
            name,
            "",
            data.draw(st.sampled_from([20.0, 60.0]), "seconds"),
            data.draw(st.sampled_from(["", *names[:i]]), "after"),
            behind=data.draw(st.booleans(), "behind"),
            again=name == "a",
        )
        for i, name in enumerate(names)
    ]
    journal = Journal(tmp_path_factory.mktemp("runs"), "cpu")
    running: set[str] = set()
    ran: list[str] = []

    async def apart(part: Part, seconds: float) -> None:
        assert not part.after or journal.result(part.after).status == OK
        assert not any(each.behind == part.behind for each in parts if each.name in running)
        assert 0 < seconds <= part.seconds
        running.add(part.name)
        ran.append(part.name)
        await asyncio.sleep(min(seconds, data.draw(st.sampled_from([1.0, 30.0]), "takes")))
        running.remove(part.name)
        status = data.draw(st.sampled_from([OK, FAILED, STOPPED]), part.name)
        journal.add(part.name, status=status, error="" if status == OK else "why")

    for _ in range(3):
        done = {name for name in names if journal.result(name).status == OK} - {"a"}
        ran.clear()
        taken = leap(run_parts(parts, journal, 90, apart))
        assert taken <= 90 and len(ran) == len(set(ran)) and not done & set(ran)
        for part in parts:
            result = journal.result(part.name)
            if part.name not in ran and part.name not in done:
                unmet = part.after and journal.result(part.after).status != OK
                assert result.status == (SKIPPED if unmet else NOT_REACHED) or taken > 85
                assert result.error


# -- processes ----------------------------------------------------------------------------------

MADE_UP = """
import json, os, time
from pathlib import Path
from trtspec.bench.gpu_bringup.part import Case, PartSkipped

def skipped(place):
    raise PartSkipped("nothing to do")

def broken(place):
    raise ValueError("no cases")

def cases(place):
    plan = json.loads((place.output / "plan.json").read_text())
    def measure(name):
        with (place.output / "ran.txt").open("a") as file:
            print(name, file=file)
        print("to the log:", name, flush=True)
        if plan[name]:
            BAD[plan[name]]()
        return {"process": os.getpid()}
    for name in plan:
        yield Case({"name": name}, lambda name=name: measure(name))

def fail():
    raise ValueError("too small")

def lose():
    raise RuntimeError("CUDA error: lost")

BAD = {
    "raises": fail,
    "loses its device": lose,
    "dies": lambda: os.kill(os.getpid(), 9),
    "hangs": lambda: time.sleep(60),
}
"""


@pytest.fixture
def made_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Parts that child processes can import; the folder of their output."""
    (tmp_path / "made_up_parts.py").write_text(MADE_UP)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path / "report"


def run_made_up(
    output: Path, plan: dict[str, str], function: str = "cases", seconds: float = 60
) -> tuple[PartResult, list[str]]:
    """The result of one part, and the cases that ran now, in their order."""
    output.mkdir(exist_ok=True)
    (output / "plan.json").write_text(json.dumps(plan))
    (output / "ran.txt").write_text("")
    part = Part("made_up", "What becomes of it?", f"made_up_parts:{function}", seconds)
    result = bring_up(output, [part], 100, "cpu")["made_up"]
    return result, (output / "ran.txt").read_text().split()


def test_a_part_goes_on_behind_cases_that_fail_and_processes_that_die(made_up: Path) -> None:
    bad = {"c": "raises", "e": "loses its device", "g": "dies"}
    plan = {name: bad.get(name, "") for name in "bcdefgh"}
    result, ran = run_made_up(made_up, plan)
    assert (result.status, result.total, ran) == (FAILED, 7, [*plan])
    found = {row["key"]["name"]: row for row in result.rows.values()}
    errors = [found[name]["error"].partition(" (")[0] for name in bad]
    assert errors == [
        "ValueError: too small", "RuntimeError: CUDA error: lost", "the process ended",
    ]  # fmt: skip
    assert result.error == found["c"]["error"]
    b, d, f, h = (found[name]["figures"]["process"] for name in "bdfh")
    assert b == d and len({d, f, h}) == 3
    assert "to the log: c" in (made_up / "log.txt").read_text()
    # The next run tries what failed, and what is new before that.
    result, ran = run_made_up(made_up, dict.fromkeys("abcdefgh", ""))
    assert (result.status, ran) == (OK, ["a", *bad])
    assert all("error" not in row for row in result.rows.values())
    assert run_made_up(made_up, plan)[1] == []


def test_a_part_that_hangs_is_stopped_and_keeps_its_rows(made_up: Path) -> None:
    result, _ = run_made_up(made_up, {"a": "", "hangs": "hangs", "b": ""}, seconds=6)
    assert result.status == STOPPED and "6 s were over, 1 of 3 cases done" in result.error
    saved = json.loads((made_up / "report.json").read_text())["parts"][0]
    assert [row["key"]["name"] for row in saved["rows"]] == ["a", "hangs"]
    result, ran = run_made_up(made_up, {"a": "", "hangs": "", "b": ""})
    assert (result.status, ran) == (OK, ["b", "hangs"])


def test_a_run_that_is_ended_from_outside_is_gone_on_with(made_up: Path) -> None:
    made_up.mkdir()
    (made_up / "plan.json").write_text(json.dumps({"a": "", "b": "hangs", "c": ""}))
    code = (
        "from pathlib import Path; from trtspec.bench.gpu_bringup.bring_up import bring_up;"
        "from trtspec.bench.gpu_bringup.part import Part;"
        "part = Part('made_up', '', 'made_up_parts:cases', 60);"
        f"bring_up(Path({str(made_up)!r}), [part], 90, 'cpu')"
    )
    run = subprocess.Popen(python_command("-c", code), env=python_environment())
    ran = made_up / "ran.txt"
    while not ran.exists() or len(ran.read_text().split()) < 2:
        assert run.poll() is None
        time.sleep(0.05)
    run.kill()
    run.wait()
    with (made_up / "journal.jsonl").open("a") as file:
        file.write('{"part": "made\n')  # as much of a line as was written
    result, now = run_made_up(made_up, {"a": "", "b": "", "c": ""})
    assert (result.status, now) == (OK, ["b", "c"])


def test_parts_without_cases(made_up: Path) -> None:
    result, _ = run_made_up(made_up, {}, "skipped")
    assert (result.status, result.error) == (SKIPPED, "nothing to do")
    result, _ = run_made_up(made_up, {}, "broken")
    assert result.status == FAILED and result.error.endswith("ValueError: no cases")


# -- packages and report ------------------------------------------------------------------------


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
    journal.add("b", status=FAILED, error="RuntimeError: a | b\nand more", seconds=1.0)
    write_report(place, parts, journal, ["--device", "cpu"])
    data = json.loads((tmp_path / "report.json").read_text())
    assert data["command"].endswith("gpu_bringup --device cpu") and data["machine"]["cores"]
    assert [part["status"] for part in data["parts"]] == [NOT_REACHED, FAILED, NOT_REACHED]
    lines = (tmp_path / "report.md").read_text().splitlines()
    assert "| b | What about b? | failed | 0 of ? | 1 | RuntimeError: a / b and more |" in lines
    at = lines.index("| x | us |")
    assert lines[at + 2 : at + 4] == ["| 1 | 1.235 |", "| 2 | p, q/r |"]
    assert any("rehearsal" in line for line in lines)
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
@pytest.mark.skipif(not can_play(), reason="torch has CUDA itself")
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
        latency.cases: 1 + 3 + 4 + 2, products.cases: 3, attention.cases: 9,
    }  # fmt: skip
    for cases, count in given.items():
        with played_cuda(memory=1 << 24):
            rows = [dict(case.measure()) for case in cases(at)]
        assert len(rows) == count and all(rows)
        json.dumps(rows)
    assert tiles == [tile for tile in attention.TILES for _ in range(3)]
    with played_cuda():
        rows = [dict(case.measure()) for case in steps.chains(at)]
    assert len(rows) == 2 * (3 + 1) and rows[0]["text"] == rows[4]["text"]


@pytest.mark.skipif(not can_play(), reason="torch has CUDA itself")
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
    with pytest.raises(PartFailed, match=r"FAILED test_two.py::test_b.*; 1 failed, 1 passed"):
        suites.run_tests(place, ["test_two.py"])


def test_tables_of_rows() -> None:
    assert figures([{"key": {"a": 1}, "error": "x" * 999}])[-1] == f"| 1 | {'x' * 400} |"
