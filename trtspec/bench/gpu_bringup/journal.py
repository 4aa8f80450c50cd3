"""Journal: the findings of a bring-up, one line per event, written immediately, so that the next
run continues from there however this one ends."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

OK, FAILED, SKIPPED, STOPPED, NOT_REACHED = "ok", "failed", "skipped", "stopped", "not reached"
ANEW, GOES_ON = "anew", "with what is there"
"""How a run of a part begins."""
JOURNAL_NAME = "journal.jsonl"


@dataclass(frozen=True)
class PartResult:
    """The outcome of a part. status: one of the module's. seconds, total: of the last run, and its
    cases. error: the first one, or why there is no more. rows: the cases by their keys as text,
    each with its key, and figures or an error. tried: the finished cases of the last run.
    under_way: the key of an unfinished one. is_over: whether none is left."""

    status: str = NOT_REACHED
    seconds: float = 0.0
    total: int = 0
    error: str = ""
    rows: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tried: frozenset[str] = frozenset()
    under_way: Mapping[str, Any] | None = None
    is_over: bool = False

    @property
    def first_error(self) -> str:
        return next((row["error"] for row in self.rows.values() if "error" in row), "")

    @property
    def num_done(self) -> int:
        return sum("error" not in row for row in self.rows.values())


class Journal:
    """The file in an output folder, which several processes append to."""

    def __init__(self, output: Path, device: str) -> None:
        self._path, self._device = output / JOURNAL_NAME, device

    def add(self, part: str, **line: Any) -> None:
        """Append a line about a part."""
        text = json.dumps({"part": part, "device": self._device, **line})
        with self._path.open("a") as file:
            file.write(text + "\n")

    def results(self) -> dict[str, PartResult]:
        """By part, what was found on this kind of device; an incomplete line is ignored."""
        found: dict[str, PartResult] = {}
        text = self._path.read_text() if self._path.is_file() else ""
        for each in text.splitlines():
            try:
                line = json.loads(each)
            except ValueError:
                continue
            name = line.pop("part")
            if line.pop("device") == self._device:
                found[name] = _with(found.get(name) or PartResult(), line)
        return found

    def result(self, part: str) -> PartResult:
        """What was found of a part."""
        return self.results().get(part) or PartResult()


def _with(known: PartResult, line: Mapping[str, Any]) -> PartResult:
    """A result behind a line more."""
    if "begins" in line:
        return PartResult(rows={} if line["begins"] == ANEW else known.rows)
    if "key" not in line:
        return replace(known, **line)
    text = key_text(line["key"])
    others = {at: row for at, row in known.rows.items() if at != text}
    rows, tried = {**others, text: {**line}}, known.tried | {text}
    return replace(known, rows=rows, tried=tried, under_way=None)


def key_text(key: Mapping[str, Any]) -> str:
    """A case's key as a string, the same in every process."""
    return json.dumps(key, sort_keys=True)
