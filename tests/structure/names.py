"""Who names a method, a backend, a weight format or a family: by import, class or literal.

Outside the homes of a kind any such name is a violation (``<kind>-name``). Inside, a file may name
what it belongs to, and import the face of another: the folder ``<home>/<owner>`` as a package, or
the module where the owner is a single file (``<kind>-face`` for all else). A file that belongs to
none of them, a shared one, names none. A registry (``<home>/registry.py`` or the ``__init__`` of a
home) and `FRONT_DOOR` name whatever they like.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator

from .imports import FRONT_DOOR
from .spellings import KINDS, Kind, fold
from .violation import Violation
from .walk import PACKAGES, Import, SourceFile, Tree

_CLASS_LIKE = re.compile(r"_*[A-Z]\w*[a-z]")
_COLLECTIONS = (ast.Tuple, ast.List, ast.Set)
_FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)
_TRANSPARENT = (ast.IfExp, ast.BoolOp, ast.Starred)  # a value in one is a value of what is around


def names(tree: Tree) -> Iterator[Violation]:
    """Every name of a kind that stands where it does not belong."""
    for file in tree.files:
        nodes = [node for node in file.nodes if _may_name(file, node)]
        for kind in KINDS:
            if file.name != FRONT_DOOR and not any(file.inside(place) for place in kind.exempt):
                yield from _in_file(kind, file, nodes, tree)


def _in_file(kind: Kind, file: SourceFile, nodes: list[ast.AST], tree: Tree) -> Iterator[Violation]:
    home = next((home for home in kind.homes if file.inside(home)), None)
    rest = file.name.removeprefix(home or "")
    if home and rest in ("registry.py", "__init__.py"):
        return
    rule = f"{kind.name}-face" if home else f"{kind.name}-name"
    own = kind.owner(rest.split("/")[0].removesuffix(".py")) if home else None
    mine = {each.name for each in kind.spellings if own and each.owner == own}
    for found in file.imports:
        if own and _is_face(kind, found):
            continue
        for name in _in_import(kind, found, tree) - mine:
            yield Violation(rule, file.name, name, found.line)
    for node in nodes:
        for name in _in_node(kind, file, node) - mine:
            yield Violation(rule, file.name, name, getattr(node, "lineno", 0))


def _is_face(kind: Kind, found: Import) -> bool:
    """Whether an import takes ``<home>.<owner>`` or something from it, and not what lies deeper."""
    for home in kind.homes:
        prefix = home.replace("/", ".")
        if f"{found.module}." == prefix:  # from trtspec.speculative import ngram
            return found.name is not None and kind.owner(found.name) is not None
        if found.module.startswith(prefix):
            return kind.owner(found.module.removeprefix(prefix)) is not None
    return False


def _in_import(kind: Kind, found: Import, tree: Tree) -> set[str]:
    """What an import names: by the pieces of a module of ours, and by what is taken from it. Of
    other packages only classes count: to import ``onnx`` is another rule's affair."""
    named: set[str] = set()
    ours = found.package in PACKAGES
    pieces = found.module.split(".") if ours else []
    if found.name is not None:
        if f"{found.module}.{found.name}" in tree.modules:
            pieces.append(found.name)
        elif _CLASS_LIKE.match(found.name):
            named |= kind.in_class(found.name)
        elif ours:
            named |= kind.in_words(found.name)
    for piece in pieces:
        named |= kind.in_module(piece)
    return named


def _in_node(kind: Kind, file: SourceFile, node: ast.AST) -> set[str]:
    """What a class definition, an attribute that is a class, or a literal names."""
    if isinstance(node, ast.ClassDef):
        return kind.in_class(node.name)
    if isinstance(node, ast.Attribute):
        return kind.in_class(node.attr)
    text = node.value if isinstance(node, ast.Constant) else None
    spelling = kind.literals.get(fold(text)) if isinstance(text, str) else None
    if spelling is None or (spelling.generic and not _is_beside(kind, file, node)):
        return set()
    return {spelling.name}


def _may_name(file: SourceFile, node: ast.AST) -> bool:
    if isinstance(node, ast.Attribute):
        return _CLASS_LIKE.match(node.attr) is not None
    return isinstance(node, ast.ClassDef) or _is_literal(file, node)


def _is_literal(file: SourceFile, node: ast.AST) -> bool:
    """Whether a node is a string of its own: no docstring, no piece of an f-string, and no entry
    of `__all__`, which repeats a definition or an import."""
    if not (isinstance(node, ast.Constant) and isinstance(node.value, str)):
        return False
    if isinstance(file.parents.get(node), (ast.Expr, ast.JoinedStr)):
        return False
    return not any(
        isinstance(outer, ast.Assign) and "__all__" in _identifiers(outer.targets)
        for outer in file.above(node)
    )


def _is_beside(kind: Kind, file: SourceFile, node: ast.AST) -> bool:
    """Whether a literal stands where a value of the kind stands: beside a noun of it, or in a
    collection with one of its spellings that is not generic."""
    inner = node
    for outer in file.above(node):
        if isinstance(outer, (*_COLLECTIONS, ast.Dict)) and _has_spelling(kind, outer):
            return True
        if _has_noun(kind, _around(file, outer, inner)):
            return True
        if not isinstance(outer, (*_COLLECTIONS, *_TRANSPARENT, ast.keyword)):
            return False
        inner = outer
    return False


def _around(file: SourceFile, outer: ast.AST, inner: ast.AST) -> set[str]:
    """What the value `inner` is called by the node around it."""
    if isinstance(outer, ast.keyword):
        return {outer.arg or ""}
    if isinstance(outer, ast.Call):  # get("method", "auto"), add("--method", default="auto")
        return {text for arg in outer.args if arg is not inner for text in _texts([arg])}
    if isinstance(outer, ast.Compare):
        others = [part for part in (outer.left, *outer.comparators) if part is not inner]
        return _identifiers(others) | _texts(others)
    if isinstance(outer, ast.Dict):
        at = [key for key, value in zip(outer.keys, outer.values, strict=True) if value is inner]
        return _texts(key for key in at if key is not None)
    if isinstance(outer, ast.Assign):
        return _identifiers(outer.targets) | _texts(outer.targets)
    if isinstance(outer, (ast.AnnAssign, ast.NamedExpr)):
        return _identifiers([outer.target])
    if isinstance(outer, ast.Return):
        functions = (f.name for f in file.above(outer) if isinstance(f, _FUNCTIONS))
        return {next(functions, "")}
    if isinstance(outer, ast.arguments):
        given = [*outer.posonlyargs, *outer.args]
        pairs = list(zip(reversed(given), reversed(outer.defaults), strict=False))
        pairs += [(a, d) for a, d in zip(outer.kwonlyargs, outer.kw_defaults, strict=True) if d]
        return {argument.arg for argument, default in pairs if default is inner}
    return set()


def _has_spelling(kind: Kind, node: ast.AST) -> bool:
    """Whether a collection has a spelling of its own that is not generic, as key, value or item."""
    parts = ast.iter_child_nodes(node)
    found = (kind.literals.get(fold(text)) for text in _texts(parts, deep=False))
    return any(each is not None and not each.generic for each in found)


def _has_noun(kind: Kind, called: set[str]) -> bool:
    spaced = [f"_{name.lower().strip('-_').replace('-', '_')}_" for name in called]
    return any(f"_{noun}_" in name for noun in kind.nouns for name in spaced)


def _identifiers(nodes: Iterable[ast.AST]) -> set[str]:
    inside = [node for each in nodes for node in ast.walk(each)]
    return {n.id for n in inside if isinstance(n, ast.Name)} | {
        n.attr for n in inside if isinstance(n, ast.Attribute)
    }


def _texts(nodes: Iterable[ast.AST], deep: bool = True) -> set[str]:
    inside = (node for each in nodes for node in (ast.walk(each) if deep else [each]))
    return {n.value for n in inside if isinstance(n, ast.Constant) and isinstance(n.value, str)}
