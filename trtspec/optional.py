"""Packages from optional extras, imported on first use."""

from __future__ import annotations

import importlib
from typing import Any

from trtspec.errors import ConfigError


def import_optional(package: str, needed_for: str, install: str) -> Any:
    """The module with this name. For packages whose import affects the whole process: ONNX Runtime,
    for example, starts threads that keep a forked child from ending.

    Raises:
        ConfigError: it is not installed. ``needed_for`` says what needs it; ``install`` is what to
            pass to pip, such as trtspec with an extra.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"{needed_for} needs {package}, which is not installed or cannot be loaded ({error}); "
            f"install it: pip install {install}"
        ) from error
