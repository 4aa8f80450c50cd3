"""Programs log to standard error; no test may inherit the stream of another."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest

from trtspec.log import logger


@pytest.fixture(autouse=True)
def own_log() -> Iterator[None]:
    yield
    logger.handlers = []
    logger.setLevel(logging.NOTSET)
