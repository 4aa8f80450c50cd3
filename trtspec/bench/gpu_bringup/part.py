"""Part: a piece of a bring-up, as data: cases, each measured separately."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class PartFailed(Exception):
    """A case found a problem, described by the text."""


class PartSkipped(Exception):
    """A part has nothing to do here, for the reason in the text."""


@dataclass(frozen=True)
class Place:
    """Where a bring-up runs. output: its folder, which comes back from a lent machine. root: the
    source tree, or where trtspec is installed. device: cuda; or cpu, for a small rehearsal."""

    output: Path
    root: Path
    device: str

    @property
    def is_rehearsal(self) -> bool:
        return self.device == "cpu"


@dataclass(frozen=True)
class Case:
    """key: identifies it among the others of its part, plain JSON values. measure: returns its
    figures, likewise; what it raises is its error."""

    key: Mapping[str, Any]
    measure: Callable[[], Mapping[str, Any]]


@dataclass(frozen=True)
class Part:
    """title: the question it answers. does: ``module:function``, called with the `Place` in a
    separate process; it lists the cases, or raises `PartSkipped`. seconds: after which it is
    stopped. after: a part that must have succeeded before. behind: whether it runs beside the
    others, one of its kind at a time, as it leaves the GPU to them. again: whether a later run
    repeats it, because its products stay on the machine."""

    name: str
    title: str
    does: str
    seconds: float
    after: str = ""
    behind: bool = False
    again: bool = False

    def cases(self, place: Place) -> list[Case]:
        module, _, function = self.does.partition(":")
        made: Iterable[Case] = getattr(importlib.import_module(module), function)(place)
        return list(made)
