"""Flags whose value is JSON."""

from __future__ import annotations

import json
from typing import Any

from trtspec.errors import ConfigError


def read_json(text: str, flag: str) -> Any:
    """The value; ConfigError naming the flag for anything that is not JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{flag} is not JSON: {error}") from error
