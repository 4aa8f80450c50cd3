"""Runs parts, each in a process of its own, within a budget of time; what is done stays done."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from trtspec.bench.gpu_bringup.part import (
    DONE,
    FAILED,
    NOT_REACHED,
    OK,
    SKIPPED,
    STOPPED,
    Part,
    PartResult,
    PartSkipped,
    Place,
)
from trtspec.child_python import python_command, python_environment

MODULE = "trtspec.bench.gpu_bringup"
_LEAST_SECONDS = 5.0
_TAIL = 2000
"""Characters of a log in which its last words are looked for."""


def run_parts(
    place: Place,
    parts: Sequence[Part],
    minutes: float,
    after: Callable[[list[PartResult]], None],
    again: bool = False,
) -> list[PartResult]:
    """What became of each, whether or not one before it failed.

    ``after``: is told all results so far, whenever there is a new one. ``again``: repeat what an
    earlier run in the same output folder has done, too. A broken kernel ends the process that ran
    it, so that nothing behind it could be trusted: hence the processes.
    """
    deadline = time.monotonic() + 60 * minutes
    for name in ("parts", "logs", "cache"):
        (place.output / name).mkdir(parents=True, exist_ok=True)
    results: list[PartResult] = []
    for part in parts:
        left = deadline - time.monotonic()
        known = None if again else read_result(place, part)
        if known is not None and known.status in DONE:
            results.append(known)
        elif left < _LEAST_SECONDS:
            said = f"{minutes:g} minutes were over; run the same command again to go on"
            results.append(known or PartResult(part.name, NOT_REACHED, error=said))
        else:
            results.append(run_apart(place, part, min(part.seconds, left)))
            write_result(place, results[-1])
        after(results)
    return results


def run_apart(place: Place, part: Part, seconds: float) -> PartResult:
    """Run a part in a child process, and stop it, and all that it started, after so long."""
    result = _result_file(place, part.name)
    result.unlink(missing_ok=True)
    log = place.output / "logs" / f"{part.name}.txt"
    command = python_command("-m", MODULE, "--output", str(place.output), "--part", part.name)
    environment = python_environment(
        TRTSPEC_CACHE_DIR=str(place.output / "cache"), PYTHONUNBUFFERED="1"
    )
    began = time.monotonic()
    with log.open("w") as file:
        child = subprocess.Popen(
            [*command, "--device", place.device],
            stdout=file,
            stderr=subprocess.STDOUT,
            env=environment,
            start_new_session=True,
        )
        try:
            child.wait(seconds)
            stopped = False
        except subprocess.TimeoutExpired:
            stopped = True
        finally:
            with suppress(ProcessLookupError):
                os.killpg(child.pid, signal.SIGKILL)
            child.wait()
    taken = time.monotonic() - began
    if stopped:
        said = f"stopped after {taken:.0f} s ({_last_words(log)})"
        return PartResult(part.name, STOPPED, taken, said)
    found = read_result(place, part)
    if found is None:  # it died before it could say anything
        said = f"ended with status {child.returncode}: {_last_words(log)}"
        return PartResult(part.name, FAILED, taken, said)
    return found


def run_here(place: Place, part: Part) -> PartResult:
    """What the child process does: run the part, and leave its result for the parent."""
    began = time.monotonic()
    try:
        status, error, figures = OK, "", dict(part.run(place))
    except PartSkipped as reason:
        status, error, figures = SKIPPED, str(reason), {}
    except Exception as failure:
        status, error, figures = FAILED, f"{type(failure).__name__}: {failure}", {}
    result = PartResult(part.name, status, time.monotonic() - began, error, figures)
    write_result(place, result)
    return result


def read_result(place: Place, part: Part) -> PartResult | None:
    """What a run in this output folder, on this kind of device, left of a part."""
    try:
        data = json.loads(_result_file(place, part.name).read_text())
    except (OSError, ValueError):
        return None
    if data.pop("device", None) != place.device:
        return None
    return PartResult(**data)


def write_result(place: Place, result: PartResult) -> None:
    """Keep it; whole or not at all."""
    file = _result_file(place, result.name)
    scratch = file.with_suffix(".new")
    scratch.write_text(json.dumps({**result.to_dict(), "device": place.device}, indent=1))
    scratch.replace(file)


def _result_file(place: Place, name: str) -> Path:
    return place.output / "parts" / f"{name}.json"


def _last_words(log: Path) -> str:
    lines = [line for line in log.read_text(errors="replace")[-_TAIL:].splitlines() if line.strip()]
    return lines[-1].strip() if lines else "it printed nothing"
