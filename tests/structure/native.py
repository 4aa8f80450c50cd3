"""Who names a method, a backend, a weight format or a family in C++: by a literal that spells it.

C++ reads what it asks of an engine out of the folder's facts, so it needs few names. One is at home
in files and folders that begin with it (``ngram_drafter.hpp``, ``plugins/tensorrt/``), or where
`ALLOWED` says so. Tests name what they like.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Set
from pathlib import PurePosixPath

from .spellings import KINDS, Spelling, fold
from .violation import Violation
from .walk import Tree

ALLOWED: Mapping[str, Set[str]] = {
    # The registry: each name once.
    "cpp/include/trtspec/runtime/backend.hpp": {"aoti", "onnx", "tensorrt"},
    # A library beside others, by the key of its version and the flag of its path.
    "cpp/src/runtime/engine_folder.cpp": {"tensorrt"},
    "cpp/benchmarks/options.cpp": {"tensorrt"},
    # The dtype of a buffer of a cache, which is spelled like a weight format.
    "cpp/src/runtime/session_engine.cpp": {"int8"},
    "cpp/benchmarks/report.cpp": {"tensorrt"},
}

_TOKENS = re.compile(
    r"""//[^\n]*|/\*.*?\*/                  # comments, which name nothing
    |R"(?P<mark>[^\s()\\]*)\((?P<raw>.*?)\)(?P=mark)"
    |(?<![0-9A-Fa-f])'(?:\\.|[^'\\\n])*'    # characters, not the marks between digits
    |"(?P<text>(?:\\.|[^"\\\n])*)"
    """,
    re.DOTALL | re.VERBOSE,
)


def native_names(tree: Tree) -> Iterator[Violation]:
    """Every literal in C++ that names one of a kind where it is not at home, and every entry of
    `ALLOWED` that is needed no longer."""
    for path in tree.code:
        name = path.relative_to(tree.root).as_posix()
        if path.suffix == ".py" or "tests" in PurePosixPath(name).parts:
            continue
        unused = set(ALLOWED.get(name, ()))
        for text, line in _literals(path.read_text()):
            for spelling in _spelled(text):
                unused.discard(spelling.name)
                if spelling.name not in ALLOWED.get(name, ()) and not _at_home(spelling, name):
                    yield Violation("native-name", name, spelling.name, line)
        for spelling_name in unused:
            yield Violation("native-name", name, f"{spelling_name}, allowed and not there")


def _literals(source: str) -> Iterator[tuple[str, int]]:
    """The strings of a source, with their lines."""
    for found in _TOKENS.finditer(source):
        text = found["text"] if found["text"] is not None else found["raw"]
        if text is not None:
            yield text, source.count("\n", 0, found.start()) + 1


def _spelled(text: str) -> list[Spelling]:
    found = (kind.literals.get(fold(text)) for kind in KINDS)
    return [spelling for spelling in found if spelling is not None]


def _at_home(spelling: Spelling, name: str) -> bool:
    own = (spelling.name, spelling.owner)
    return any(
        part == each or part.startswith((f"{each}_", f"{each}."))
        for part in PurePosixPath(name).parts
        for each in own
    )
