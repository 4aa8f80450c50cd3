"""What the parts of a layer's spec share."""

from __future__ import annotations

from trtspec.errors import ConfigError


def check_sizes(spec: object, *names: str) -> None:
    """ConfigError for a size below 1."""
    for name in names:
        if getattr(spec, name) < 1:
            raise ConfigError(f"{name} is {getattr(spec, name)}; it must be at least 1")
