"""How the parts of a bring-up are run: within a budget, in processes that may die, and gone on
with; by parts that are made up."""

from __future__ import annotations

import asyncio
import json
import selectors
import subprocess
import time
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.bench.gpu_bringup.bring_up import bring_up
from trtspec.bench.gpu_bringup.journal import (
    FAILED,
    NOT_REACHED,
    OK,
    SKIPPED,
    STOPPED,
    Journal,
    PartResult,
)
from trtspec.bench.gpu_bringup.part import Part
from trtspec.bench.gpu_bringup.runner import run_parts
from trtspec.child_python import python_command, python_environment

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
