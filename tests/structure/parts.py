"""Who asks which mixer or feed-forward part a layer has: none but the files of these."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from .violation import Violation
from .walk import Tree

SPECS = ("trtspec/config/mixers/", "trtspec/config/feed_forwards/")
HOMES = (*SPECS, "trtspec/models/mixers/", "trtspec/models/feed_forwards/")


def layer_parts(tree: Tree) -> Iterator[Violation]:
    """Every ``isinstance``, class pattern and comparison of types with the class of a part."""
    specs = {
        node.name
        for file in tree.files
        if any(file.inside(place) for place in SPECS)
        for node in file.nodes
        if isinstance(node, ast.ClassDef)
    }
    for file in tree.files:
        if not any(file.inside(place) for place in HOMES):
            for node in file.nodes:
                for name in sorted(_asked(node) & specs):
                    yield Violation("layer-part", file.name, name, getattr(node, "lineno", 0))


def _asked(node: ast.AST) -> set[str]:
    """The classes that something is compared with."""
    if isinstance(node, ast.MatchClass):
        return _names([node.cls])
    if isinstance(node, ast.Compare):
        return _names(node.comparators)
    if isinstance(node, ast.Call) and _names([node.func]) <= {"isinstance", "issubclass"}:
        return _names(node.args[1:])
    return set()


def _names(nodes: list[ast.expr]) -> set[str]:
    inside = [inner for node in nodes for inner in ast.walk(node)]
    return {n.id for n in inside if isinstance(n, ast.Name)} | {
        n.attr for n in inside if isinstance(n, ast.Attribute)
    }
