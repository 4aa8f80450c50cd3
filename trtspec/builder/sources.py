"""Which files of the package some code is made of: what it imports, and what that imports."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Collection, Iterable, Iterator
from pathlib import Path

import trtspec

PACKAGE = Path(trtspec.__path__[0])
"""The folder of the running package."""


def sources_of(
    modules: Iterable[str], unfollowed: Collection[str] = (), package: Path = PACKAGE
) -> list[Path]:
    """The files of these modules of the package and of all that they import from it, however
    indirectly and wherever in a file, sorted. Modules that are ``unfollowed`` are left out, with
    what only they import; so is the package's own ``__init__``, which imports nothing by itself."""
    found: dict[str, Path] = {}
    waiting = list(modules)
    while waiting:
        name = waiting.pop()
        path = _file_of(name, package)
        if path is None or name in found or name in unfollowed:
            continue
        found[name] = path
        waiting += _imports(path)
        waiting.append(name.rpartition(".")[0])  # a package is imported before what lies in it
    return sorted(found.values())


def hash_of(files: Iterable[Path], package: Path = PACKAGE) -> str:
    """Of their names within the package and of what they say."""
    digest = hashlib.blake2b(digest_size=16)
    for path in files:
        digest.update(f"{path.relative_to(package).as_posix()}\0".encode())
        digest.update(hashlib.blake2b(path.read_bytes()).digest())
    return digest.hexdigest()


def _file_of(module: str, package: Path) -> Path | None:
    """None for what is no module of the package."""
    top, *inside = module.split(".")
    if top != PACKAGE.name or not inside:
        return None
    path = package.joinpath(*inside)
    candidates = (path.with_suffix(".py"), path / "__init__.py")
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _imports(path: Path) -> Iterator[str]:
    """Names of modules that a file may import; some are those of what is in a module."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
