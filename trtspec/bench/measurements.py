"""Writes MEASUREMENTS.md, the front page's tables and the picture from the result files.

    python -m trtspec.bench.measurements

To replace a result, run the command in its file again with `--output
trtspec/bench/results/<name>.json`, then this. A new result also needs a `Table` in
`measured_tables`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from string import Formatter
from textwrap import fill
from typing import Any

from trtspec.bench.pictures.speed import draw_speed
from trtspec.bench.report.measured_tables import FRONT, PAIR, SECTIONS, Table
from trtspec.bench.report.result_file import load, rows

RESULTS = Path(__file__).parent / "results"
PAGE, PICTURE = RESULTS.parent / "MEASUREMENTS.md", RESULTS / "pair.svg"
FRONT_PAGE = RESULTS.parents[2] / "README.md"
BEGIN, END = "<!--measured-->\n", "<!--/measured-->"

_HEAD = """# Measurements

What is fast, beside whom, and by which command. This page is written by `python -m
trtspec.bench.measurements` from the [result files](results/README.md), each with its command,
commit, machine and versions. Every figure is of shared virtual machines with 2 cores, but for the
H100's: such machines change their speed within seconds, so compare within a table. Tokens/s count
prefills; in brackets decoding alone. [How to measure](README.md).

![Speed of the pair by kind of question, engine and method](results/pair.svg)
"""


@dataclass(frozen=True)
class _Cell:
    """Where a figure stands."""

    line: tuple[str, ...]
    column: str
    text: str


def markdown(table: Table, result: Mapping[str, Any]) -> str:
    """A Markdown table: a line for each value of ``table.lines``, a column for each of
    ``table.across``, in the order of the rows or of ``table.columns``."""
    cells = [_cell(table, row) for row in rows(result) if table.takes(row)]
    columns = table.columns or tuple(dict.fromkeys(cell.column for cell in cells))
    found = {(cell.line, cell.column): cell.text for cell in cells}
    head = _line((*table.lines, *columns))
    rule = "|---" * (len(table.lines) + len(columns)) + "|"
    lines = [
        _line((*line, *(found.get((line, column), "-") for column in columns)))
        for line in dict.fromkeys(cell.line for cell in cells)
    ]
    return "\n".join([head, rule, *lines])


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def page() -> str:
    """MEASUREMENTS.md."""
    parts = [_HEAD]
    for title, says, tables in SECTIONS:
        parts.append(f"## {title}\n\n{_wrapped(says)}\n")
        for table in tables:
            result = load(RESULTS / f"{table.file}.json")
            parts.append(f"{_about(table, result)}\n\n{markdown(table, result)}\n")
    return "\n".join(parts)


def front_page(text: str) -> str:
    """README.md with the caption of its picture, and its tables."""
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    parts = [_wrapped(_where(load(RESULTS / f"{PAIR.file}.json")))]
    for table in FRONT:
        result = load(RESULTS / f"{table.file}.json")
        parts += [_wrapped(f"{table.title}: {_where(result)}"), markdown(table, result)]
    tables = "\n\n".join(parts)
    return f"{before}{BEGIN}{tables}\n{END}{after}"


def picture() -> str:
    """The front page's picture as SVG."""
    result = load(RESULTS / f"{PAIR.file}.json")
    machine = result["machine"]
    title = f"Tokens per second, batch 1, {machine['cores']} cores of {machine['processor']}"
    found = [row for row in rows(result) if PAIR.takes(row)]
    return draw_speed(title, found, PAIR.columns).svg()


def _cell(table: Table, row: Mapping[str, Any]) -> _Cell:
    line = tuple(", ".join(_text(row[k]) for k in key.split(", ")) for key in table.lines)
    parts = (form.format(**row) for form in table.cell if _has(form, row))
    return _Cell(line, str(row[table.across]), "".join(parts).strip())


def _has(form: str, row: Mapping[str, Any]) -> bool:
    """Whether a row has the figures of a form."""
    names = (name for _, name, _, _ in Formatter().parse(form) if name)
    return all(row.get(name.partition("[")[0]) is not None for name in names)


def _text(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else str(value)


def _about(table: Table, result: Mapping[str, Any]) -> str:
    link = f"[{table.file}](results/{table.file}.json)"
    return _wrapped(f"{table.title}: {_where(result)}, {link}")


def _where(result: Mapping[str, Any]) -> str:
    """Where and when it was measured, and the result's note."""
    machine = result["machine"]
    parts = (machine["gpu"] or machine["processor"], f"commit {result['commit']}")
    return ", ".join([*parts, result["date"][:10], *filter(None, [result.get("note")])])


def _wrapped(text: str) -> str:
    return fill(text, 100, break_long_words=False, break_on_hyphens=False)


def main() -> int:
    PAGE.write_text(page())
    FRONT_PAGE.write_text(front_page(FRONT_PAGE.read_text()))
    PICTURE.write_text(picture())
    return 0


if __name__ == "__main__":
    sys.exit(main())
