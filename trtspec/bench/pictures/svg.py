"""Drawing: a picture as SVG, readable on light and on dark pages."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

LIGHT = {
    "page": "#ffffff",
    "ink": "#1f2328",
    "muted": "#656d76",
    "line": "#d0d7de",
    "panel": "#f6f8fa",
    "ours": "#0969da",
    "ours-soft": "#b6d7ff",
    "other": "#8c959f",
    "other-soft": "#d0d7de",
    "good": "#1a7f37",
    "good-soft": "#c6efce",
    "bad": "#cf222e",
    "bad-soft": "#ffdcd7",
    "bonus": "#9a6700",
    "bonus-soft": "#ffefb8",
}
DARK = {
    "page": "#0d1117",
    "ink": "#e6edf3",
    "muted": "#9198a1",
    "line": "#3d444d",
    "panel": "#161b22",
    "ours": "#4493f8",
    "ours-soft": "#1f4a80",
    "other": "#9198a1",
    "other-soft": "#444c56",
    "good": "#3fb950",
    "good-soft": "#164a26",
    "bad": "#f85149",
    "bad-soft": "#5a2326",
    "bonus": "#d29922",
    "bonus-soft": "#4f3a08",
}
MONO = "ui-monospace, SFMono-Regular, Menlo, Consolas, DejaVu Sans Mono, monospace"
SANS = "system-ui, -apple-system, Segoe UI, Helvetica, Arial, DejaVu Sans, sans-serif"


class Drawing:
    """Shapes and texts, in pixels from the upper left corner; colours are names of `LIGHT`.

    The viewer's colour scheme chooses the palette. The background is part of the picture, so that
    it is readable on any page."""

    def __init__(self, width: int, height: int, title: str) -> None:
        """``title``: for screen readers."""
        self._size = width, height
        self._title = title
        self._shapes: list[str] = []
        self.box(0, 0, width, height, "page", radius=8)

    def box(
        self,
        x: float,
        y: float,
        width: float,
        height: float,
        fill: str,
        edge: str = "",
        radius: float = 3,
        dashed: bool = False,
    ) -> None:
        """A rectangle; an empty ``edge`` draws no border."""
        frame = f"{x:g}", f"{y:g}", f"{width:g}", f"{height:g}", f"{radius:g}"
        names = zip(("x", "y", "width", "height", "rx"), frame, strict=True)
        shape = " ".join(f'{name}="{value}"' for name, value in names)
        dash = ' stroke-dasharray="3 3"' if dashed else ""
        self._shapes.append(f'<rect {shape} class="f-{fill} {_stroke(edge)}"{dash}/>')

    def text(
        self,
        x: float,
        y: float,
        text: str,
        colour: str = "ink",
        size: float = 12,
        anchor: str = "start",
        bold: bool = False,
        mono: bool = False,
    ) -> None:
        """A line of text, y its base line; ``anchor``: start, middle or end is at x."""
        font = f' class="f-{colour} mono"' if mono else f' class="f-{colour}"'
        weight = ' font-weight="600"' if bold else ""
        place = f'x="{x:g}" y="{y:g}" font-size="{size:g}" text-anchor="{anchor}"'
        self._shapes.append(f"<text {place}{font}{weight}>{escape(text)}</text>")

    def line(self, *points: tuple[float, float], colour: str = "muted", width: float = 1.5) -> None:
        """A line through points."""
        path = " ".join(f"{x:g},{y:g}" for x, y in points)
        self._shapes.append(
            f'<polyline points="{path}" fill="none" class="{_stroke(colour)}" '
            f'stroke-width="{width:g}"/>'
        )

    def arrow(self, *points: tuple[float, float], colour: str = "muted") -> None:
        """A line with a head at its last point, whose last part is horizontal or vertical."""
        (x0, y0), (x, y) = points[-2:]
        dx, dy = (x > x0) - (x < x0), (y > y0) - (y < y0)
        self.line(*points[:-1], (x - 5 * dx, y - 5 * dy), colour=colour)
        head = (
            (x, y),
            (x - 8 * dx + 4 * dy, y - 8 * dy + 4 * dx),
            (
                x - 8 * dx - 4 * dy,
                y - 8 * dy - 4 * dx,
            ),
        )
        path = " ".join(f"{x:g},{y:g}" for x, y in head)
        self._shapes.append(f'<polygon points="{path}" class="f-{colour}"/>')

    def svg(self, dark: bool = False) -> str:
        """The file's text. ``dark``: the dark palette under any colour scheme."""
        width, height = self._size
        first = DARK if dark else LIGHT
        style = f"text {{font-family: {SANS}}} text.mono {{font-family: {MONO}}}\n{_rules(first)}"
        return (
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}" '
            f'viewBox="0 0 {width} {height}" role="img">\n<title>{escape(self._title)}</title>\n'
            f"<style>\n{style}@media (prefers-color-scheme: dark) {{\n{_rules(DARK)}}}\n</style>\n"
            + "\n".join(self._shapes)
            + "\n</svg>\n"
        )


def _stroke(colour: str) -> str:
    return f"s-{colour}" if colour else ""


def _rules(palette: Mapping[str, str]) -> str:
    return "".join(
        f".f-{name} {{fill: {value}}} .s-{name} {{stroke: {value}}}\n"
        for name, value in palette.items()
    )
