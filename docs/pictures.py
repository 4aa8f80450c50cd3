"""Pictures of the methods: what one drafts from, in how many calls, and what becomes of it."""

from __future__ import annotations

import io
from dataclasses import dataclass

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Circle, FancyBboxPatch

ROOT, ACCEPTED, REJECTED, BONUS, CALL = "#37474f", "#43a047", "#b0bec5", "#1e88e5", "#ffb300"
CHAIN = (-1, 0, 1, 2)
TREE = (-1, -1, 0, 0, 1, 2, 2, 4)
BEST_FIRST = (-1, 0, 1, 2, -1, 4, 1, 0)
NUM_ACCEPTED = 2
"""Nodes that the target accepts in all pictures."""


@dataclass(frozen=True)
class Picture:
    """How a method drafts. reads: what it drafts from. calls: ``index`` (none), ``pass`` (one a
    depth) or ``block`` (one for all). parents: the parent of each node, -1 for the root."""

    reads: str
    calls: str
    parents: tuple[int, ...] = CHAIN


_STATES = "the target's hidden states"
PICTURES = {
    "ngram": Picture("the request's own text", "index"),
    "suffix": Picture("this text and earlier answers", "index", TREE),
    "draft_model": Picture("the text, by a small model", "pass"),
    "self": Picture("the text, by a 4-bit copy of the target", "pass"),
    "eagle": Picture(_STATES, "pass", TREE),
    "eagle3": Picture(f"{_STATES} of several layers", "pass", TREE),
    "mtp": Picture(f"{_STATES}, by modules of its own", "pass"),
    "assistant": Picture("the target's K/V", "pass"),
    "medusa": Picture("the target's newest hidden state, by a head a depth", "block", TREE),
    "pard": Picture("the text and mask tokens, by a small model", "block"),
    "pard2": Picture(f"the text, mask tokens and {_STATES}", "block"),
    "p_eagle": Picture(f"{_STATES} and mask tokens", "block"),
    "dflash": Picture(f"{_STATES} and a block of mask tokens", "block"),
    "dflash2": Picture(f"{_STATES} and a block; a walk over its candidates", "block"),
    "dspark": Picture(f"{_STATES} and a block; guesses depend on the path", "block"),
    "ddtree": Picture(f"{_STATES} and a block; its most probable paths", "block", BEST_FIRST),
    "jetspec": Picture(f"{_STATES} and a causal block; its best paths", "block", BEST_FIRST),
    "hybrid": Picture("what each of its drafters reads", "union", TREE),
    "auto": Picture("the text by an index, and a draft where it pays", "union", TREE),
    "extract_hidden_states": Picture("nothing: hidden states are written to files", "index", ()),
}
"""By the method's name; a new method needs its line."""


def svg(picture: Picture) -> str:
    """The picture as SVG, the same bytes each time."""
    depths = _depths(picture.parents)
    places = _places(picture.parents, depths)
    width, height = 4 + max(depths, default=0), 2 + max((-y for _, y in places), default=0)
    figure = Figure(figsize=(1.15 * width, 1.15 * height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set(xlim=(-1.8, width - 1.8), ylim=(1.4 - height, 1.4), aspect="equal")
    axes.axis("off")
    _calls(axes, picture, depths, places)
    path = _accepted(picture.parents)
    for index, (x, y) in enumerate(places):
        parent = picture.parents[index]
        from_x, from_y = (0.0, 0.0) if parent < 0 else places[parent]
        colour = ACCEPTED if index in path else REJECTED
        axes.plot((from_x, x), (from_y, y), color=colour, linewidth=1.6, zorder=1)
        _node(axes, x, y, colour, "✓" if index in path else "")
    last = places[path[-1]] if path else (0.0, 0.0)
    _node(axes, 0, 0, ROOT, "root")
    if picture.parents:
        bonus = (last[0] + 0.55, last[1] + 0.6)
        axes.plot((last[0], bonus[0]), (last[1], bonus[1]), color=BONUS, linestyle=":", zorder=1)
        _node(axes, *bonus, BONUS, "+1")
    axes.text(-1.7, 1.15, f"reads {picture.reads}", fontsize=9, color=ROOT)
    file = io.StringIO()
    with rc_context({"svg.fonttype": "none", "svg.hashsalt": "trtspec"}):
        figure.savefig(file, format="svg", transparent=True, metadata={"Date": None})
    return file.getvalue()


def _depths(parents: tuple[int, ...]) -> list[int]:
    depths: list[int] = []
    for parent in parents:
        depths.append(1 if parent < 0 else depths[parent] + 1)
    return depths


def _places(parents: tuple[int, ...], depths: list[int]) -> list[tuple[float, float]]:
    """Of each node: its depth to the right, each further branch lower."""
    used: dict[int, int] = {}
    places: list[tuple[float, float]] = []
    for parent, depth in zip(parents, depths, strict=True):
        row = max(used.get(depth, 0), 0 if parent < 0 else round(-places[parent][1] / 0.75))
        used[depth] = row + 1
        places.append((float(depth), -0.75 * row))
    return places


def _accepted(parents: tuple[int, ...]) -> list[int]:
    """The first path of the tree, as deep as the target accepts it."""
    path: list[int] = []
    while len(path) < NUM_ACCEPTED and (path[-1] if path else -1) in parents:
        path.append(parents.index(path[-1] if path else -1))
    return path


def _calls(
    axes: Axes, picture: Picture, depths: list[int], places: list[tuple[float, float]]
) -> None:
    """A frame around what one call of the draft guesses."""
    deepest = max(depths, default=0)
    if picture.calls == "index" or not deepest:
        return
    each = range(1, deepest + 1)
    groups = [list(each)] if picture.calls == "block" else [[depth] for depth in each]
    for number, group in enumerate(groups, start=1):
        rows = [y for (_, y), depth in zip(places, depths, strict=True) if depth in group]
        low = min(rows) - 0.33
        frame = FancyBboxPatch(
            (min(group) - 0.36, low), max(group) - min(group) + 0.72, 0.33 - low,
            boxstyle="round,pad=0.02", fill=False, edgecolor=CALL, linestyle="--",
        )  # fmt: skip
        axes.add_patch(frame)
        axes.text(
            max(group) + 0.33, low - 0.2, f"call {number}", fontsize=7, ha="right", color=CALL
        )


def _node(axes: Axes, x: float, y: float, colour: str, text: str) -> None:
    axes.add_patch(Circle((x, y), 0.25, color=colour, zorder=2))
    axes.text(x, y, text, ha="center", va="center", fontsize=8, color="white", zorder=3)
