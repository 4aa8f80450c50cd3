"""The report of a bring-up: a JSON file, and a page to read."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from typing import Any

from trtspec.bench.gpu_bringup.journal import Journal, PartResult
from trtspec.bench.gpu_bringup.part import Part, Place
from trtspec.bench.report.result_file import make_result
from trtspec.writable import write_whole

FORMAT, FORMAT_VERSION = "trtspec gpu bring-up", 2
JSON_NAME, PAGE_NAME = "report.json", "report.md"
_ERROR_LENGTH = 400
_REHEARSAL = (
    "**There is no GPU here: a rehearsal on the CPU, of small cases and fakes. Its figures say "
    "nothing about a GPU.**"
)


def write_report(
    place: Place, parts: Sequence[Part], journal: Journal, argv: Sequence[str]
) -> None:
    """Write both files, with everything that the journal has on these parts."""
    found = {part: journal.result(part.name) for part in parts}
    body = {
        "command": shlex.join(["python", "-m", "trtspec.bench.gpu_bringup", *argv]),
        "device": place.device,
        "parts": [
            {
                "name": part.name,
                **{key: getattr(result, key) for key in ("status", "seconds", "total", "error")},
                "rows": list(result.rows.values()),
            }
            for part, result in found.items()
        ],
    }
    data = make_result(FORMAT, FORMAT_VERSION, argv, ("torch", "triton"), body)
    write_whole(place.output / JSON_NAME, (json.dumps(data, indent=1) + "\n").encode())
    write_whole(place.output / PAGE_NAME, page(place, data, found).encode())


def page(place: Place, head: Mapping[str, Any], found: Mapping[Part, PartResult]) -> str:
    """Markdown: the outcome of each part, with its first error, followed by the figures."""
    machine = head["machine"]["gpu"] or head["machine"]["processor"]
    where = f"{machine}, torch {head['versions']['torch']}, commit {head['commit'] or '-'}"
    lines = ["# GPU bring-up", "", *([_REHEARSAL, ""] if place.is_rehearsal else [])]
    lines += [f"{where}, {head['date']}: `{head['command']}`", ""]
    outcomes = [
        {
            "part": part.name,
            "question": part.title,
            "result": result.status,
            "cases": f"{result.num_done} of {result.total or '?'}",
            "s": f"{result.seconds:.0f}",
            "first error, or why not": result.error[:_ERROR_LENGTH],
        }
        for part, result in found.items()
    ]
    lines += table(outcomes)
    for part, result in found.items():
        if result.rows:
            lines += ["", f"## {part.title}", *figures(result.rows.values())]
    return "\n".join([*lines, ""])


def figures(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Rows with the same columns as a table, whatever is between them."""
    flat = [
        {**row["key"], **row.get("figures", {"error": row.get("error", "")[:_ERROR_LENGTH]})}
        for row in rows
    ]
    alike = groupby(sorted(flat, key=list), key=list)
    return [line for _, group in alike for line in ("", *table(list(group)))]


def table(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """A Markdown table of rows with the same keys."""
    cells = [list(rows[0]), *([_text(value) for value in row.values()] for row in rows)]
    lines = [f"| {' | '.join(cell.replace('|', '/') for cell in row)} |" for row in cells]
    return [lines[0], "|" + " --- |" * len(rows[0]), *lines[1:]]


def _text(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}"
    text = ", ".join(map(str, value)) if isinstance(value, list) else str(value)
    return " ".join(text.split())
