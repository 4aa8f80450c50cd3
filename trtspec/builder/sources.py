"""The source files that some code depends on: its imports, and theirs."""

from __future__ import annotations

import ast
import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import trtspec

PACKAGE = Path(trtspec.__path__[0])
"""The folder of the running package."""


def sources_of(
    modules: Iterable[str], unfollowed: Collection[str] = (), package: Path = PACKAGE
) -> dict[str, Path]:
    """The files of these modules and everything they import, directly or indirectly, by module
    name. Imports are followed within this package, located in ``package``, and within the other
    packages of the given modules. Modules in ``unfollowed`` are left out with whatever only they
    import, as is the package's own ``__init__``, which imports nothing by itself."""
    waiting = list(modules)
    folders = {top: _folder(top) for top in {name.partition(".")[0] for name in waiting}}
    folders[PACKAGE.name] = package
    found: dict[str, Path] = {}
    while waiting:
        name = waiting.pop()
        path = _file_of(name, folders)
        if path is None or name in found or name in unfollowed:
            continue
        found[name] = path
        waiting += _imports(name, path)
        waiting.append(name.rpartition(".")[0])  # a package is imported before what lies in it
    return found


def is_ours(module: str) -> bool:
    """Whether a module is one of this package."""
    return module.partition(".")[0] == PACKAGE.name


def hash_of(files: Mapping[str, Path]) -> str:
    """Hash of their names and contents."""
    digest = hashlib.blake2b(digest_size=16)
    for name in sorted(files):
        digest.update(f"{name}\0".encode())
        digest.update(hashlib.blake2b(files[name].read_bytes()).digest())
    return digest.hexdigest()


@cache
def code_in(folder: Path) -> str:
    """Hash of the Python files in a folder, read once, so that it matches the code that is
    running."""
    return hash_of({str(path.relative_to(folder)): path for path in folder.rglob("*.py")})


def _folder(top: str) -> Path | None:
    """The folder of a package, or the one that contains a single module."""
    spec = find_spec(top)
    if spec is None:
        return None
    if spec.submodule_search_locations:
        return Path(next(iter(spec.submodule_search_locations)))
    return Path(spec.origin).with_suffix("") if spec.origin else None


def _file_of(module: str, folders: Mapping[str, Path | None]) -> Path | None:
    """The file of a module; None for what is not a module of those packages."""
    top, *inside = module.split(".")
    folder = folders.get(top)
    if folder is None or (is_ours(module) and not inside):
        return None
    path = folder.joinpath(*inside)
    candidates = (path / "__init__.py", path.with_suffix(".py"))
    return next((candidate for candidate in candidates if candidate.is_file()), None)


def _imports(module: str, path: Path) -> Iterator[str]:
    """Names of modules that a file may import; some may be names inside a module."""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else []
            source = ".".join([*base, *([node.module] if node.module else [])])
            yield source
            yield from (f"{source}.{alias.name}" for alias in node.names)
