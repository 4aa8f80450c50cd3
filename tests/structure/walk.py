"""The files of a tree, each read and parsed once, with what they import."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

PACKAGES = ("trtspec", "checkpoint_converters")  # their Python is parsed
# Run by the Pythons of other engines: these import no trtspec, so they can ask no registry of ours.
WORKERS = "trtspec/bench/peers/workers/"
CODE = {".py", ".c", ".cc", ".cpp", ".cu", ".cuh", ".h", ".hpp"}
GENERATED = {"__pycache__", "build", "dist", "lib"}
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)


@dataclass(frozen=True)
class Import:
    """module: the dotted module of the statement. name: what is taken from it; None for
    ``import module``. in_function: below a function, `importlib.import_module` included, but not
    `import_optional`. level: dots of a relative import."""

    line: int
    module: str
    name: str | None
    in_function: bool
    level: int = 0

    @property
    def package(self) -> str:
        return self.module.split(".")[0]

    @property
    def part(self) -> str | None:
        """The folder (or single module) of trtspec that is imported from; None for others."""
        pieces = [*self.module.split("."), *([self.name] if self.name else [])]
        return pieces[1] if pieces[0] == "trtspec" and len(pieces) > 1 else None


@dataclass(frozen=True)
class SourceFile:
    """A Python file. name: its path from the root."""

    name: str
    tree: ast.Module

    @property
    def module(self) -> str:
        return self.name.removesuffix(".py").removesuffix("/__init__").replace("/", ".")

    def inside(self, place: str) -> bool:
        """Whether this is the file `place`, or lies in the folder `place` (which ends in a "/")."""
        return self.name == place or (place.endswith("/") and self.name.startswith(place))

    @cached_property
    def nodes(self) -> list[ast.AST]:
        return list(ast.walk(self.tree))

    @cached_property
    def parents(self) -> dict[ast.AST, ast.AST]:
        return {child: node for node in self.nodes for child in ast.iter_child_nodes(node)}

    def above(self, node: ast.AST) -> Iterator[ast.AST]:
        """The nodes around a node, from the inside out."""
        while node in self.parents:
            node = self.parents[node]
            yield node

    @cached_property
    def imports(self) -> list[Import]:
        return list(self._imports())

    def _imports(self) -> Iterator[Import]:
        for node in self.nodes:
            if not isinstance(node, (ast.Import, ast.ImportFrom, ast.Call)):
                continue
            if taken := _taken(node):
                inside = any(isinstance(outer, _FUNCTIONS) for outer in self.above(node))
                inside = inside and not is_optional(node)
                level = node.level if isinstance(node, ast.ImportFrom) else 0
                for module, name in taken:
                    yield Import(node.lineno, module, name, inside, level)


def _taken(node: ast.Import | ast.ImportFrom | ast.Call) -> list[tuple[str, str | None]]:
    """The modules that a statement or call imports, each with the name that it takes from it."""
    if isinstance(node, ast.Import):
        return [(alias.name, None) for alias in node.names]
    if isinstance(node, ast.ImportFrom):
        return [(node.module or "", alias.name) for alias in node.names]
    module = _imported_by_call(node)
    return [] if module is None else [(module, None)]


def is_optional(node: ast.AST) -> bool:
    """A call of `import_optional`, which names the extra and stands where the package is needed."""
    return isinstance(node, ast.Call) and _called(node) == "import_optional"


def _called(call: ast.Call) -> str | None:
    function = call.func
    return function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", None)


def _imported_by_call(call: ast.Call) -> str | None:
    """The module of ``importlib.import_module("...")``, ``__import__("...")`` or
    ``import_optional("...", ...)``; else None."""
    if _called(call) not in ("import_module", "__import__", "import_optional") or not call.args:
        return None
    first = call.args[0]
    return first.value if isinstance(first, ast.Constant) and isinstance(first.value, str) else None


class Tree:
    """A checkout below `root`."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def folders(self) -> list[str]:
        """Folders of the first two levels, without hidden and generated ones."""
        first = [path for path in _folders(self.root) if not path.name.endswith(".egg-info")]
        both = [*first, *(inner for path in first for inner in _folders(path))]
        return sorted(path.relative_to(self.root).as_posix() for path in both)

    @cached_property
    def code(self) -> list[Path]:
        """Python, C++ and CUDA files of all folders."""
        tops = (self.root / folder for folder in self.folders if "/" not in folder)
        return sorted(
            path
            for top in tops
            for path in top.rglob("*")
            if path.suffix in CODE and GENERATED.isdisjoint(path.relative_to(self.root).parts)
        )

    @cached_property
    def files(self) -> list[SourceFile]:
        """The Python files of the packages."""
        found = []
        for path in self.code:
            name = path.relative_to(self.root).as_posix()
            if path.suffix == ".py" and name.split("/")[0] in PACKAGES:
                found.append(SourceFile(name, ast.parse(path.read_text(), name)))
        return found

    @cached_property
    def modules(self) -> dict[str, SourceFile]:
        return {file.module: file for file in self.files}

    def imported_modules(self, file: SourceFile) -> Iterator[tuple[Import, str]]:
        """The modules of this tree that a file imports: ``from a import b`` is a.b if that is one.
        What is imported inside functions counts too."""
        for found in file.imports:
            for name in (f"{found.module}.{found.name}", found.module):
                if name in self.modules:
                    yield found, name
                    break


def _folders(path: Path) -> list[Path]:
    return [
        inner
        for inner in path.iterdir()
        if inner.is_dir() and not inner.name.startswith(".") and inner.name not in GENERATED
    ]
