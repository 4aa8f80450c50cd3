"""The report of a bring-up: one JSON, and one page to read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from trtspec.bench.gpu_bringup.part import Part, PartResult, Place
from trtspec.writable import write_whole

FORMAT, FORMAT_VERSION = "trtspec gpu bring-up", 1
JSON_NAME, PAGE_NAME = "report.json", "report.md"
_ERROR_LENGTH = 400
_REHEARSAL = (
    "**There is no GPU here: a rehearsal on the CPU, of small cases, emulators and fakes. Its "
    "figures say nothing about a GPU.**"
)


def write_report(
    place: Place, parts: Sequence[Part], results: Sequence[PartResult], minutes: float
) -> None:
    """Write both files, from results of the first of these parts."""
    data = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": place.device,
        "is_rehearsal": place.is_rehearsal,
        "minutes": minutes,
        "parts": [result.to_dict() for result in results],
    }
    write_whole(place.output / JSON_NAME, (json.dumps(data, indent=1) + "\n").encode())
    write_whole(place.output / PAGE_NAME, page(place, parts, results).encode())


def page(place: Place, parts: Sequence[Part], results: Sequence[PartResult]) -> str:
    """Markdown: what became of each part, with its first error, and then the figures."""
    titles = {part.name: part.title for part in parts}
    lines = ["# GPU bring-up", ""]
    if place.is_rehearsal:
        lines += [_REHEARSAL, ""]
    head = ["part", "", "result", "s", "first error, or why not"]
    rows = [
        [
            result.name,
            titles[result.name],
            result.status,
            f"{result.seconds:.0f}",
            " ".join(result.error.split())[:_ERROR_LENGTH],
        ]
        for result in results
    ]
    lines += [*_table(head, rows), ""]
    for result in results:
        if result.figures:
            lines += [f"## {titles[result.name]}", "", *_figures(result.figures), ""]
    return "\n".join(lines)


def _figures(figures: Mapping[str, Any]) -> list[str]:
    """Single values as a list, and each list of rows as a table."""
    lines: list[str] = []
    for name, value in figures.items():
        is_rows = isinstance(value, list) and value and isinstance(value[0], Mapping)
        if not is_rows:
            lines.append(f"- {name}: {_text(value)}")
            continue
        head = list(dict.fromkeys(key for row in value for key in row))
        rows = [[_text(row.get(key, "")) for key in head] for row in value]
        lines += ["", f"{name}:", "", *_table(head, rows)]
    return lines


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    cells = [[cell.replace("|", "\\|") for cell in row] for row in (head, *rows)]
    lines = [f"| {' | '.join(row)} |" for row in cells]
    return [lines[0], "|" + " --- |" * len(head), *lines[1:]]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    return ", ".join(map(str, value)) if isinstance(value, list) else str(value)
