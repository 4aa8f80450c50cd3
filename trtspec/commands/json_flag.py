"""Flags whose value is JSON."""

from __future__ import annotations

import json
from typing import Any

from trtspec.errors import ConfigError


def read_json(text: str, flag: str) -> Any:
    """Parse the value; ConfigError names the flag if it is not JSON."""
    try:
        return json.loads(text)
    except ValueError as error:
        raise ConfigError(f"{flag} is not JSON: {error}") from error
