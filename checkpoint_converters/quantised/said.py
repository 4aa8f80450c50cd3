"""Said: the quantisation settings in a checkpoint's config."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.errors import CheckpointError

_NONE: Any = object()


@dataclass(frozen=True)
class Said:
    """The object under ``key`` in a file."""

    file: Path
    key: str
    values: Mapping[str, Any]

    def get(self, name: str, default: Any = None) -> Any:
        """A value; JSON's null counts as absent."""
        value = self.values.get(name)
        return default if value is None else value

    def choice(self, name: str, allowed: tuple[Any, ...], default: Any = _NONE) -> Any:
        """A value that is one of ``allowed``; CheckpointError for others."""
        value = self.get(name, default)
        if value is _NONE:
            raise self.refuse(f"does not say {name}; it must be {_listed(allowed)}")
        if isinstance(value, (bool, list, dict)) or value not in allowed:
            raise self.refuse(f"{name} {value!r} is not supported; supported: {_listed(allowed)}")
        return value

    def group_size(self, *names: str) -> int | None:
        """The number of input features that share a scale, under the first of these names that is
        present; 0: all of them, which files write as -1. None: not given."""
        name = next((each for each in names if self.get(each) is not None), None)
        if name is None:
            return None
        size = self.get(name)
        if isinstance(size, bool) or not isinstance(size, int) or size < -1:
            raise self.refuse(
                f"{name} {size!r} is not supported; supported: so many input features, or -1 for "
                "all of them"
            )
        return max(size, 0)

    def pair(self, name: str) -> tuple[int, int]:
        """Two positive numbers, of outputs and inputs; CheckpointError for anything else."""
        value = self.get(name)
        sizes = value if isinstance(value, list) else []
        if len(sizes) != 2 or not all(type(size) is int and size > 0 for size in sizes):
            raise self.refuse(f"{name} {value!r} must be two numbers, of outputs and inputs")
        return sizes[0], sizes[1]

    def refuse_set(self, name: str, meaning: str) -> None:
        """Raise CheckpointError if a key has a value."""
        if self.get(name):
            raise self.refuse(f"{name} ({meaning}) is not supported; supported: without it")

    def refuse(self, message: str) -> CheckpointError:
        """An error about the settings, to raise."""
        return CheckpointError(f"{self.file}: {self.key} {message}")


def _listed(values: tuple[Any, ...]) -> str:
    return ", ".join(map(str, values))
