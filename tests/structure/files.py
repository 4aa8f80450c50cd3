"""Rules for files: small enough to read, and a README where a reader arrives."""

from __future__ import annotations

from collections.abc import Iterator

from .violation import Violation
from .walk import Tree

MAX_LINES = 400


def sizes(tree: Tree) -> Iterator[Violation]:
    """Python, C++ and CUDA, tests included; counted in lines above the limit."""
    for path in tree.code:
        lines = len(path.read_text().splitlines())
        if lines > MAX_LINES:
            name = path.relative_to(tree.root).as_posix()
            yield Violation("file-size", name, f"lines above {MAX_LINES}", 0, lines - MAX_LINES)


def readmes(tree: Tree) -> Iterator[Violation]:
    """A README.md in every folder of the first two levels."""
    for folder in tree.folders:
        if not (tree.root / folder / "README.md").is_file():
            yield Violation("readme", folder, "README.md")
