"""Runs parts, each in separate processes, within a time budget; finished work is kept.

A broken kernel ends the process that ran it, or leaves it without a device: hence the processes.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import tempfile
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import asdict

from trtspec.bench.gpu_bringup.journal import (
    ANEW,
    FAILED,
    GOES_ON,
    NOT_REACHED,
    OK,
    SKIPPED,
    STOPPED,
    Journal,
)
from trtspec.bench.gpu_bringup.part import Part, Place
from trtspec.child_python import python_command, python_environment

LEAST_SECONDS = 5.0
"""With less time than this a part does not begin: importing torch takes most of it."""
LOG_NAME = "log.txt"
_KEPT = 1 << 18
"""How many of the last bytes of a process's output are kept: a log must come back whole."""

Apart = Callable[[Part, float], Awaitable[None]]
"""Runs a part for at most that many seconds; its outcome is in the journal then."""


async def run_parts(parts: Sequence[Part], journal: Journal, seconds: float, apart: Apart) -> None:
    """Run the unfinished parts, in order, as far as time permits: one at a time, and one of those
    ``behind`` beside it. A part that waits for another lets later ones pass."""
    loop = asyncio.get_running_loop()
    deadline = loop.time() + seconds
    waiting = [part for part in parts if part.again or journal.result(part.name).status != OK]
    running: dict[asyncio.Task[None], Part] = {}

    async def run(part: Part) -> None:
        if part.after in {each.name for each in parts} and journal.result(part.after).status != OK:
            journal.add(part.name, status=SKIPPED, error=f"{part.after} did not go well")
            return
        began = loop.time()
        await apart(part, min(part.seconds, deadline - began))
        journal.add(part.name, seconds=loop.time() - began)

    while True:
        for behind in (False, True):
            unfinished = {part.name for part in (*waiting, *running.values())}
            ready = (p for p in waiting if p.behind == behind and p.after not in unfinished)
            part = next(ready, None)
            is_free = all(other.behind != behind for other in running.values())
            if part is not None and is_free and deadline - loop.time() >= LEAST_SECONDS:
                waiting.remove(part)
                running[asyncio.create_task(run(part))] = part
        if not running:
            break
        done, _ = await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            running.pop(task)
            task.result()
    for part in waiting:
        said = f"{seconds:g} s were over; run the same command again to go on"
        error = journal.result(part.name).first_error or said
        journal.add(part.name, status=NOT_REACHED, error=error)


async def run_apart(place: Place, journal: Journal, part: Part, seconds: float) -> None:
    """An `Apart`: process after process, as long as each reaches another case."""
    name, said = part.name, ""
    journal.add(name, begins=ANEW if part.again else GOES_ON)
    try:
        async with asyncio.timeout(seconds):
            tried = -1
            while tried < len(journal.result(name).tried) and not journal.result(name).is_over:
                tried = len(journal.result(name).tried)
                said = await _process(place, journal, part)
    except TimeoutError:
        found = journal.result(name)
        done = f"{found.num_done} of {found.total or '?'} cases done"
        journal.add(name, status=STOPPED, error=f"its {seconds:.0f} s were over, {done}")
        return
    found = journal.result(name)
    if found.status != SKIPPED:
        error = found.first_error or ("" if found.is_over else said)
        journal.add(name, status=FAILED if error else OK, error=error)


async def _process(place: Place, journal: Journal, part: Part) -> str:
    """Run a process of a part; returns how it ended, with its last output."""
    where = {"output": str(place.output), "root": str(place.root), "device": place.device}
    job = json.dumps({"part": asdict(part), **where})
    with tempfile.TemporaryFile() as log:
        process = await asyncio.create_subprocess_exec(
            *python_command("-m", "trtspec.bench.gpu_bringup.child", job),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env=python_environment(),
            start_new_session=True,
        )
        ended = "its time was over"
        try:
            ended = f"the process ended ({await process.wait()})"
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            await process.wait()
            log.seek(max(0, os.fstat(log.fileno()).st_size - _KEPT))
            text = log.read().decode(errors="replace").strip()
            with (place.output / LOG_NAME).open("a") as file:
                file.write(f"== {part.name}\n{text}\n")
            said = f"{ended}: {text.rpartition(chr(10))[2] or 'it printed nothing'}"
            under_way = journal.result(part.name).under_way
            if under_way is not None:
                journal.add(part.name, key=under_way, error=said)
    return said
