"""Part: something that a bring-up does, as data: cases, each measured apart."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class PartFailed(Exception):
    """A case found something wrong; the text is what is reported of it."""


class PartSkipped(Exception):
    """A part has nothing to do here; the text says why."""


@dataclass(frozen=True)
class Place:
    """Where a bring-up runs. output: its folder; what lies in it comes back from a machine that is
    lent. root: the source tree, or what trtspec is installed in. device: cuda; or cpu, where all of
    it is rehearsed, small."""

    output: Path
    root: Path
    device: str

    @property
    def is_rehearsal(self) -> bool:
        return self.device == "cpu"


@dataclass(frozen=True)
class Case:
    """key: what tells it from the others of its part, plain JSON values. measure: gives its
    figures, likewise; what it raises is its error."""

    key: Mapping[str, Any]
    measure: Callable[[], Mapping[str, Any]]


@dataclass(frozen=True)
class Part:
    """title: what it answers. does: ``module:function``, called with the `Place` in a process of
    its own; it lists the cases, or raises `PartSkipped`. seconds: after which it is stopped. after:
    a part that must have gone well before. behind: whether it runs behind the others, one of its
    kind at a time, as it leaves the GPU to them. again: whether a later run repeats it: what it
    makes lies on the machine."""

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
