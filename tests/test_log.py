"""What programs print of the log."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import suppress

import pytest

from trtspec import log
from trtspec.log import log_to_stderr, logger


@pytest.fixture(autouse=True)
def own_handlers() -> Iterator[None]:
    before, level = list(logger.handlers), logger.level
    logger.handlers = []
    yield
    logger.handlers = before
    logger.setLevel(level)


@pytest.mark.parametrize("repeats", [False, True])
def test_a_plan_is_printed_once(repeats: bool, capsys: pytest.CaptureFixture[str]) -> None:
    """In every round the same one is logged; another one is news."""
    log_to_stderr(repeats=repeats)
    for plan in ("one", "one", "another", "one"):
        logger.info("plan\n%s", plan)
    found = capsys.readouterr().err.splitlines()
    assert found.count("one") == (3 if repeats else 1) and found.count("another") == 1


def test_a_script_without_logging_sees_warnings_alone() -> None:
    said = (
        "from trtspec.log import logger;"
        "logger.warning('this draft is doubted'); logger.info('compiling')"
    )
    ran = subprocess.run([sys.executable, "-c", said], capture_output=True, text=True, check=True)
    assert ran.stderr == "this draft is doubted\n"


PROGRAM = """
import logging, time
from trtspec import log

log.SHOWN_AFTER = {True: 0.0, False: 0.1}
log.HEARTBEAT_SECONDS = 0.2
%s
with log.progress("compile", " (once)"):
    time.sleep(0.5)
with log.progress("seldom long", is_long=False):
    pass
with log.progress("short"):
    pass
"""
LINES = ["compile ... (once)", "compile: still working", "compile: 0."]


def told(setup: str, terminal: bool = False) -> list[str]:
    """The beginnings of what a program prints, of lines that are not the same each time."""
    command = [sys.executable, "-c", PROGRAM % setup]
    if terminal:
        ours, theirs = os.openpty()
        subprocess.run(command, stderr=theirs, check=True)
        os.close(theirs)
        printed = ""
        with open(ours, closefd=True) as stream, suppress(OSError):  # its end is an error
            while line := stream.readline():
                printed += line
    else:
        printed = subprocess.run(command, capture_output=True, text=True, check=True).stderr
    lines = [line.removeprefix("[trtspec] ") for line in printed.splitlines()]
    return [next((known for known in LINES if line.startswith(known)), line) for line in lines]


@pytest.mark.parametrize(
    "setup",
    [
        "",
        "logging.basicConfig()",
        "log.log_to_stderr('WARNING')",
    ],
)
def test_a_long_step_is_told_where_no_log_tells_it(setup: str) -> None:
    assert list(dict.fromkeys(told(setup))) == LINES


def test_a_terminal_is_told_at_once() -> None:
    assert list(dict.fromkeys(told("log.SHOWN_AFTER[False] = 99", terminal=True)))[:3] == LINES


@pytest.mark.parametrize(
    ("setup", "count"),
    [
        ("log._shows.set(False)", 0),
        ("log.log_to_stderr()", 1),
        ("import sys; sys.stderr.close(); sys.stderr = None", 0),
    ],
)
def test_a_step_is_told_once(setup: str, count: int) -> None:
    assert told(setup).count(LINES[0]) == count


def test_what_is_shown_can_be_turned_off(capsys: pytest.CaptureFixture[str]) -> None:
    before = dict(log.SHOWN_AFTER)
    log.SHOWN_AFTER[False] = 0.0
    try:
        for shown in (True, False):
            with log.progress_shown(shown), log.progress("compile"):
                time.sleep(0.05)
    finally:
        log.SHOWN_AFTER.update(before)
    assert capsys.readouterr().err.count("compile ...") == 1
