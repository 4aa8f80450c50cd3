"""The pictures of HOW_IT_WORKS.md, drawn from what the executor did in a recorded run.

python -m trtspec.bench.pictures.how_it_works
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from pathlib import Path

from trtspec.bench.pictures.recorded_lag import Span, record_lag
from trtspec.bench.pictures.recorded_step import BLOCK, RecordedStep, record
from trtspec.bench.pictures.svg import Drawing
from trtspec.executor.py_executor import PyExecutor

WIDTH = 860


def step() -> Drawing:
    """One step: two engine calls, and the host's work before, between and after them."""
    seen = record()
    drawing = Drawing(WIDTH, 262, "One step: plan, draft, verify and accept, commit and emit")
    drafted, accepted = len(seen.tree), len(seen.accepted) - 1
    freed = [block for block in seen.before if block not in seen.after]
    root, *_ = seen.rows
    stages: tuple[tuple[str, str, tuple[str, ...]], ...] = (
        (
            "plan",
            "host",
            (
                f"{len(seen.rows)} rows: the root",
                f"and {drafted} draft nodes",
                f"in blocks {_list(seen.before)}",
            ),
        ),
        (
            "draft",
            "call 1: draft",
            (f"root: “{root}”", f"a tree of {drafted} nodes,", f"{seen.tree.max_depth} deep"),
        ),
        (
            "verify",
            "call 2: target",
            (f"{len(seen.rows)} rows, one pass", "one sample per row", "walk down the tree"),
        ),
        (
            "accept",
            "result of call 2",
            (f"{accepted} of {drafted} drafts", "+ 1 bonus token", f"“{' '.join(seen.emitted)}”"),
        ),
        (
            "commit, emit",
            "host",
            (
                f"{len(seen.moves)} rows of K/V moved,",
                f"block {_list(freed)} returned,",
                f"{len(seen.emitted)} tokens emitted",
            ),
        ),
    )
    left, width, gap, top = 16, 148, 22, 66
    for index, (title, where, lines) in enumerate(stages):
        x = left + index * (width + gap)
        calls = where.startswith("call")
        drawing.box(
            x, top, width, 118, "ours-soft" if calls else "panel", "ours" if calls else "line", 6
        )
        drawing.text(x + 12, top + 24, title, bold=True, size=14)
        drawing.text(x + 12, top + 42, where, "ours" if calls else "muted", 11)
        for number, line in enumerate(lines):
            drawing.text(x + 12, top + 66 + 18 * number, line)
        if index:
            drawing.arrow((x - gap + 2, top + 59), (x - 2, top + 59))
    halves: tuple[tuple[Callable[..., object], int, int], ...] = (
        (PyExecutor.plan, 0, 0),
        (PyExecutor.launch, 1, 2),
        (PyExecutor.collect, 3, 4),
    )
    for method, first, last in halves:
        start, end = left + first * (width + gap), left + last * (width + gap) + width
        drawing.line((start, 46), (start, 40), (end, 40), (end, 46), colour="line")
        drawing.text((start + end) / 2, 30, method.__qualname__, "muted", 12, "middle", mono=True)
    here, there, below = left + 4 * (width + gap) + width / 2, left + width / 2, top + 118
    drawing.arrow((here, below), (here, below + 28), (there, below + 28), (there, below + 2))
    drawing.text(
        (here + there) / 2,
        below + 48,
        f"next root: “{seen.emitted[-1]}”",
        "muted",
        anchor="middle",
    )
    return drawing


def tree() -> Drawing:
    """A draft tree, and the mask with which its rows are verified in one call."""
    seen = record()
    drawing = Drawing(WIDTH, 318, "A draft tree and its attention mask")
    drawing.text(16, 28, "the draft tree", bold=True)
    _draw_tree(
        drawing, seen, 20, 66, dict.fromkeys(range(1, len(seen.rows)), ("ours-soft", "ours"))
    )
    left, top, cell = 500, 66, 26
    cached = len(seen.cached)
    drawing.text(
        left - 120,
        28,
        "its mask: a line for each row, a column for each cached position",
        bold=True,
    )
    for column in range(seen.sees.shape[1]):
        name = str(column) if column < cached else str(column - cached)
        drawing.text(left + cell * column + cell / 2, top - 6, name, "muted", 10, "middle")
    drawing.text(left + cell * cached / 2, top - 20, "committed", "muted", 11, "middle")
    middle = left + cell * (cached + len(seen.rows) / 2)
    drawing.text(middle, top - 20, "rows of this call", "muted", 11, "middle")
    for row, word in enumerate(seen.rows):
        y = top + cell * row
        drawing.text(left - 34, y + 17, word, size=12, anchor="end", mono=True)
        drawing.text(left - 12, y + 17, str(row), "muted", 10, "end")
        for column, is_seen in enumerate(seen.sees[row].tolist()):
            fill = ("other-soft" if column < cached else "ours") if is_seen else "page"
            drawing.box(left + cell * column, y, cell, cell, fill, "line", 0)
    drawing.text(
        left - 100,
        top + cell * len(seen.rows) + 26,
        "A row attends to what is committed, to its ancestors and to itself.",
        "muted",
    )
    return drawing


def acceptance() -> Drawing:
    """The walk through the verified tree."""
    seen = record()
    drawing = Drawing(WIDTH, 340, "Acceptance: the walk through a verified tree")
    drawing.text(16, 28, "verified: → is the target's own next token after each row", bold=True)
    colours = dict.fromkeys(range(len(seen.rows)), ("page", "line"))
    colours |= dict.fromkeys(seen.accepted, ("good-soft", "good"))
    x, y = _draw_tree(drawing, seen, 20, 66, colours, seen.said, 150, 56)[seen.accepted[-1]]
    drawing.arrow((x + 70, y), (x + 148, y), colour="bonus")
    drawing.box(x + 150, y - 14, 66, 28, "bonus-soft", "bonus", 6)
    drawing.text(x + 183, y + 4, seen.emitted[-1], anchor="middle", mono=True)
    drawing.text(x + 183, y + 30, "bonus", "bonus", 11, "middle")
    lines = (
        f"accepted “{' '.join(seen.emitted[:-1])}”, bonus “{seen.emitted[-1]}”",
        f"{len(seen.emitted)} tokens from one target call, the ones that {len(seen.emitted)} calls "
        "without drafts would have emitted",
    )
    for number, line in enumerate(lines):
        drawing.text(16, 302 + 20 * number, line, "ink" if number == 0 else "muted")
    return drawing


def cache() -> Drawing:
    """Where the step's K/V lies before and after the commit."""
    seen = record()
    drawing = Drawing(WIDTH, 290, "K/V in the target's cache during a step and after its commit")
    legend = (("committed", "other-soft"), ("accepted", "good-soft"), ("rejected", "bad-soft"))
    _draw_legend(drawing, legend)
    held = {_slot(seen.before, place): word for place, word in enumerate(seen.cached)}
    colours = dict.fromkeys(held, "other-soft")
    for row, (slot, word) in enumerate(zip(seen.slots, seen.rows, strict=True)):
        held[slot] = word
        colours[slot] = "good-soft" if row in seen.accepted else "bad-soft"
    _draw_blocks(drawing, 60, "during the step", seen.before, held, colours)
    for number, (source, wanted) in enumerate(sorted(seen.moves, key=lambda move: move[1])):
        level = 146 - 14 * number
        drawing.arrow(
            (_slot_x(source), 106), (_slot_x(source), level),
            (_slot_x(wanted), level), (_slot_x(wanted), 176), colour="good",
        )  # fmt: skip
    for source, wanted in seen.moves:
        held[wanted] = held[source]
    kept = {_slot(seen.after, place) for place in range(seen.committed[1])}
    after = {slot: held[slot] for slot in kept}
    _draw_blocks(
        drawing,
        178,
        "after commit",
        seen.before,
        after,
        dict.fromkeys(after, "other-soft"),
        seen.after,
    )
    before, now = seen.committed
    drawing.text(
        16,
        268,
        f"committed length {before} → {now}. The bonus token “{seen.emitted[-1]}” has no K/V yet: "
        "it is the root of the next step.",
        "muted",
    )
    return drawing


def lag() -> Drawing:
    """What host and device do when, with and without a lag."""
    drawing = Drawing(WIDTH, 290, "Host and device over time at lag 0 and lag 1")
    legend = (("launch", "ours-soft"), ("run", "good-soft"), ("collect", "bonus-soft"))
    _draw_legend(drawing, legend)
    runs = {number: record_lag(number, 4) for number in (0, 1)}
    longest = max(span.end for spans in runs.values() for span in spans)
    scale = (WIDTH - 110) / longest
    for number, spans in runs.items():
        top = 58 + 112 * number
        drawing.text(16, top - 8, f"lag {number}", bold=True)
        _draw_spans(drawing, top, spans, scale, dict(legend))
    drawing.text(
        16,
        276,
        "Numbers are steps; dashed: the device waits for the host. The order is the executor's; "
        "the lengths are not measured.",
        "muted",
    )
    return drawing


DRAWINGS: Mapping[str, Callable[[], Drawing]] = {
    "step": step,
    "tree": tree,
    "acceptance": acceptance,
    "cache": cache,
    "lag": lag,
}


def _draw_tree(
    drawing: Drawing,
    seen: RecordedStep,
    left: float,
    top: float,
    colours: Mapping[int, tuple[str, str]],
    said: Sequence[str] = (),
    apart: float = 92,
    down: float = 46,
) -> list[tuple[float, float]]:
    """From left to right, a column each depth; returns the middle of the left side of each row."""
    parents = seen.tree.row_parents().tolist()
    depths = [0, *seen.tree.depths.tolist()]
    leaves = [row for row in _depth_first(parents) if row not in parents]
    heights = {row: float(place) for place, row in enumerate(leaves)}
    for row in reversed(range(len(parents))):  # a parent comes before its children
        below = [heights[child] for child, parent in enumerate(parents) if parent == row]
        heights[row] = sum(below) / len(below) if below else heights[row]
    places = [
        (left + apart * depth, top + down * heights[row] + 14) for row, depth in enumerate(depths)
    ]
    for row, parent in enumerate(parents):
        x, y = places[row]
        if parent >= 0:
            x0, y0 = places[parent]
            drawing.line((x0 + 66, y0), (x - 10, y), (x, y), colour=colours[row][1])
    for row, word in enumerate(seen.rows):
        x, y = places[row]
        fill, edge = colours.get(row, ("panel", "muted"))
        drawing.box(x, y - 14, 66, 28, fill, edge, 6)
        drawing.text(x + 33, y + 4, word, anchor="middle", mono=True)
        if said:
            drawing.text(x + 33, y + 28, f"→ {said[row]}", "muted", 11, "middle", mono=True)
    return places


def _draw_legend(drawing: Drawing, legend: Sequence[tuple[str, str]]) -> None:
    """In the upper right corner."""
    for number, (name, colour) in enumerate(legend):
        x = WIDTH - 110 * (len(legend) - number)
        drawing.box(x, 16, 14, 14, colour, "line")
        drawing.text(x + 20, 28, name, "muted")


def _depth_first(parents: Sequence[int], row: int = 0) -> list[int]:
    found = [row]
    for child, parent in enumerate(parents):
        if parent == row:
            found += _depth_first(parents, child)
    return found


def _draw_blocks(
    drawing: Drawing,
    top: float,
    title: str,
    blocks: Sequence[int],
    words: Mapping[int, str],
    colours: Mapping[int, str],
    held: Sequence[int] | None = None,
) -> None:
    """``held``: the blocks that the request still has; left out, all."""
    drawing.text(16, top + 28, title, bold=True)
    for block in blocks:
        is_held = held is None or block in held
        x = _slot_x(block * BLOCK) - 28
        name = f"block {block}" if is_held else f"block {block}: returned"
        drawing.text(x, top - 6, name, "muted", 11)
        for slot in range(block * BLOCK, (block + 1) * BLOCK):
            drawing.box(
                _slot_x(slot) - 28, top, 56, 44, colours.get(slot, "page"), "line", 2, not is_held
            )
            drawing.text(
                _slot_x(slot), top + 20, words.get(slot, ""), size=11, anchor="middle", mono=True
            )
            drawing.text(_slot_x(slot), top + 37, str(slot), "muted", 9, "middle")


def _slot_x(slot: int) -> float:
    """The middle of a slot."""
    return 150 + slot % BLOCK * 56 + slot // BLOCK * (BLOCK * 56 + 14) + 28


def _slot(blocks: Sequence[int], position: int) -> int:
    return blocks[position // BLOCK] * BLOCK + position % BLOCK


def _draw_spans(
    drawing: Drawing, top: float, spans: Sequence[Span], scale: float, colours: Mapping[str, str]
) -> None:
    for number, lane in enumerate(("host", "device")):
        drawing.text(16, top + 20 + 38 * number, lane, "muted")
    runs = [span for span in spans if span.lane == "run"]
    for earlier, later in pairwise(runs):
        if later.start > earlier.end:
            width = scale * (later.start - earlier.end)
            drawing.box(80 + scale * earlier.end, top + 38, width, 28, "page", "muted", 3, True)
    for span in spans:
        y = top + 38 * (span.lane == "run")
        x, width = 80 + scale * span.start, scale * (span.end - span.start)
        drawing.box(x, y, width, 28, colours[span.lane], "line", 3)
        drawing.text(x + width / 2, y + 18, str(span.step), size=11, anchor="middle")


def _list(numbers: Sequence[int]) -> str:
    return ", ".join(map(str, numbers))


if __name__ == "__main__":
    for name, draw in DRAWINGS.items():
        (Path(__file__).parent / f"{name}.svg").write_text(draw().svg())
