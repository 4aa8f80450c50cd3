"""Part: one thing that a bring-up does, as data; and what became of it."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

OK, FAILED, SKIPPED, STOPPED, NOT_REACHED = "ok", "failed", "skipped", "stopped", "not reached"
DONE = (OK, SKIPPED)
"""What a later run does not repeat."""


class PartFailed(Exception):
    """A part found something wrong; the text is what is reported of it."""


class PartSkipped(Exception):
    """A part has nothing to do here; the text says why."""


@dataclass(frozen=True)
class Place:
    """Where a bring-up runs. output: its folder. root: the source tree, or what trtspec is
    installed in. device: cuda; or cpu, where all of it is rehearsed, small, on emulators and
    fakes."""

    output: Path
    root: Path
    device: str

    @property
    def is_rehearsal(self) -> bool:
        return self.device == "cpu"

    def require(self, *names: str) -> list[Path]:
        """Files or folders of the source tree; PartSkipped if one is not there."""
        paths = [self.root / name for name in names]
        missing = [str(path) for path in paths if not path.exists()]
        if missing:
            raise PartSkipped(f"{', '.join(missing)} is not here: run it from a source tree")
        return paths


@dataclass(frozen=True)
class Part:
    """name: of its files. title: what it answers. does: ``module:function``, called with the
    `Place` in a process of its own, where it may import what other parts build; it returns figures
    as plain JSON values, lists of rows among them. needs: of the source tree. seconds: after which
    it is stopped."""

    name: str
    title: str
    does: str
    needs: tuple[str, ...]
    seconds: float

    def run(self, place: Place) -> Mapping[str, Any]:
        """Its figures. Whatever it raises is its failure."""
        module, _, function = self.does.partition(":")
        made: Mapping[str, Any] = getattr(importlib.import_module(module), function)(place)
        return made


@dataclass(frozen=True)
class PartResult:
    """status: one of the module's. error: the first one, or why it was skipped."""

    name: str
    status: str
    seconds: float = 0.0
    error: str = ""
    figures: Mapping[str, Any] = field(default_factory=dict)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return asdict(self)
