"""The front page's picture: tokens/s by kind of text, engine and method."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trtspec.bench.pictures.svg import Drawing

OURS = "trtspec"
PLAIN = "plain"
_WIDTH, _LEFT, _TOP, _LINE, _GAP = 860, 236, 64, 24, 10


def draw_speed(title: str, rows: Sequence[Mapping[str, Any]], kinds: Sequence[str]) -> Drawing:
    """A column for each of ``kinds``, a line for each engine and method in the order of ``rows``,
    which have an `engine`, a `method`, a `category` and `tokens_per_second`; one scale for all."""
    methods: dict[str, dict[str, dict[str, float]]] = {}
    for row in rows:
        speeds = methods.setdefault(row["engine"], {}).setdefault(row["method"], {})
        speeds[row["category"]] = row["tokens_per_second"]
    num_lines = sum(map(len, methods.values()))
    drawing = Drawing(_WIDTH, _TOP + _LINE * num_lines + _GAP * len(methods) + 4, title)
    drawing.text(16, 28, title, bold=True)
    column = (_WIDTH - _LEFT - 8) / len(kinds)
    scale = (column - 46) / max(row["tokens_per_second"] for row in rows)
    for number, kind in enumerate(kinds):
        drawing.text(_LEFT + column * number, _TOP - 10, kind, "muted", bold=True)
    y = _TOP
    for engine, of_engine in methods.items():
        is_ours = engine == OURS
        drawing.text(16, y + 14, engine, bold=is_ours)
        for method, speeds in of_engine.items():
            colour = f"{'ours' if is_ours else 'other'}{'-soft' if method == PLAIN else ''}"
            drawing.text(_LEFT - 12, y + 14, method, "muted", anchor="end")
            for number, kind in enumerate(kinds):
                x, speed = _LEFT + column * number, speeds.get(kind, 0.0)
                drawing.box(x, y, scale * speed, _LINE - 6, colour)
                label = f"{speed:.0f}" if kind in speeds else "-"
                drawing.text(x + scale * speed + 6, y + 14, label, size=11, bold=is_ours)
            y += _LINE
        y += _GAP
    return drawing
