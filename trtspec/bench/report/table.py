"""Tables on a terminal: with rich where the extra ``trtspec[bench]`` brought it, else as text.

The only module that imports rich.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib.util import find_spec

if HAS_RICH := find_spec("rich") is not None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

WIDE = 240
"""Columns of a non-terminal, so that nothing is cut or folded in a file."""


def print_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """One line per row; the first column is left-aligned, figures are right-aligned."""
    if not HAS_RICH:
        print(text_table(title, headers, rows))
        return
    console = Console()
    if not console.is_terminal:
        console = Console(width=WIDE)
    # Text: a name may hold brackets, which rich would read as its markup.
    table = Table(title=Text(title), title_justify="left")
    for i, header in enumerate(headers):
        table.add_column(Text(header), justify="right" if i else "left", no_wrap=not i)
    for row in rows:
        table.add_row(*map(Text, row))
    console.print(table)


def text_table(title: str, headers: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """The same in plain characters."""
    lines = [headers, *rows]
    widths = [max(len(line[i]) for line in lines) for i in range(len(headers))]
    formatted = [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    ]
    return "\n".join([title, *formatted])
