"""Trace: what is known about one HTTP request, from the first middleware to the log line."""

from __future__ import annotations

import re
import time
import uuid
from collections.abc import MutableMapping
from dataclasses import dataclass, field
from typing import Any

_KEY = "trtspec.trace"
_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
CLIENT_GONE = 499
"""Logged as the status of a request whose client disconnected; nobody receives it."""


@dataclass
class Trace:
    """`arrival` is a time of `time.monotonic`; `fields` go into the log line."""

    request_id: str
    arrival: float = field(default_factory=time.monotonic)
    status: int | None = None
    fields: dict[str, Any] = field(default_factory=dict)

    @classmethod
    def begin(cls, scope: MutableMapping[str, Any], wanted: str | None) -> Trace:
        """A trace for the request of an ASGI scope, with the client's own id if it is harmless."""
        usable = wanted is not None and _SAFE_ID.fullmatch(wanted)
        trace = cls(wanted if usable and wanted else uuid.uuid4().hex)
        scope[_KEY] = trace
        return trace

    @staticmethod
    def of(scope: MutableMapping[str, Any]) -> Trace:
        trace = scope[_KEY]
        assert isinstance(trace, Trace)
        return trace

    @property
    def seconds(self) -> float:
        """Seconds since arrival."""
        return time.monotonic() - self.arrival
