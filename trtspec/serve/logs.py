"""The server's log: readable lines, or JSON with the same fields for programs."""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Mapping
from typing import Any

from trtspec.log import logger

_FIELDS = "trtspec_fields"


def log_event(message: str, fields: Mapping[str, Any], level: int = logging.INFO) -> None:
    """Log a line; JSON lines contain the fields separately."""
    logger.log(level, "%s", message, extra={_FIELDS: dict(fields)})


class ReadableFormatter(logging.Formatter):
    """``2026-01-31 12:00:00 INFO message``."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s %(levelname)s %(message)s", "%Y-%m-%d %H:%M:%S")


class JsonFormatter(logging.Formatter):
    """One JSON object per line: time (UTC), level, logger, message, the event's fields,
    traceback."""

    def format(self, record: logging.LogRecord) -> str:
        seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
        line: dict[str, Any] = {
            "time": f"{seconds}.{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        line |= getattr(record, _FIELDS, {})
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, default=str)


def set_up_logs(as_json: bool, level: int | str = logging.INFO) -> None:
    """Send the lines of the package and of uvicorn to standard error, in one form."""
    logging.getLogger("transformers").setLevel(logging.ERROR)  # it writes lines in its own form
    handler = logging.StreamHandler()
    handler.setFormatter(JsonFormatter() if as_json else ReadableFormatter())
    for name in (logger.name, "uvicorn"):
        ours = logging.getLogger(name)
        ours.handlers = [handler]
        ours.propagate = False
        ours.setLevel(level if name == logger.name else logging.WARNING)
