"""Packages that only an extra installs, imported when they are first needed."""

from __future__ import annotations

import importlib
from typing import Any

from trtspec.errors import ConfigError


def import_optional(package: str, needed_for: str, install: str) -> Any:
    """The module of that name. For packages whose mere import has effects on the whole process, so
    that those who do not use them are spared: ONNX Runtime starts threads that keep a forked child
    from ending.

    Raises:
        ConfigError: it is not installed; ``needed_for`` says for what, ``install`` is what pip
            installs: trtspec with an extra.
    """
    try:
        return importlib.import_module(package)
    except ImportError as error:
        raise ConfigError(
            f"{needed_for} needs {package}, which is not installed or cannot be loaded ({error}); "
            f"install it: pip install {install}"
        ) from error
