"""Result files: JSON that appears whole or not at all."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from trtspec.errors import ConfigError
from trtspec.writable import check_file, write_whole


def check_output(path: Path) -> None:
    """ConfigError if a file could not be written there: found before anything is measured."""
    try:
        check_file(path)
    except OSError as error:
        raise ConfigError(f"--output {path} cannot be written: {error}") from error


def save(path: Path, result: Mapping[str, Any]) -> None:
    """Write a file, or leave the old one whole. ConfigError if that cannot be done."""
    text = json.dumps(result, indent=1, allow_nan=False) + "\n"
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error
