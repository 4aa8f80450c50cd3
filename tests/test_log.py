"""What programs print of the log."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

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
