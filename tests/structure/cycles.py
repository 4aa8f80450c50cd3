"""No import cycles: between modules, nor between what stands side by side in one folder."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from itertools import takewhile

from .imports import FRONT_DOOR
from .violation import Violation
from .walk import Tree

Edge = tuple[str, str, int]  # importing file, imported module, line
# At these levels `order` and `converters` leave no room for a cycle.
ORDERED = ("", "trtspec")


def cycles(tree: Tree) -> Iterator[Violation]:
    """Every import that is part of a cycle. Those for types only and those inside functions count:
    they are how a cycle is dodged."""
    levels: dict[str, dict[tuple[str, str], list[Edge]]] = defaultdict(dict)
    modules: dict[tuple[str, str], list[Edge]] = defaultdict(list)
    for file in tree.files:
        if file.name == FRONT_DOOR:
            continue
        for found, target in tree.imported_modules(file):
            if target == file.module:
                continue
            edge = (file.name, target, found.line)
            modules[file.module, target].append(edge)
            level, ours, theirs = _side_by_side(file.name, tree.modules[target].name)
            if level not in ORDERED:
                # Between two files it is a cycle of modules, reported as such.
                files = ours.endswith(".py") and theirs.endswith(".py")
                levels[level].setdefault((ours, theirs), []).extend([] if files else [edge])
    yield from _in_cycles("module-cycle", modules)
    for graph in levels.values():
        yield from _in_cycles("folder-cycle", graph)


def _side_by_side(ours: str, theirs: str) -> tuple[str, str, str]:
    """The deepest folder that two files share, and which of its files or folders each is or is
    in."""
    first, second = ours.split("/"), theirs.split("/")
    same = len(list(takewhile(lambda pair: pair[0] == pair[1], zip(first, second, strict=False))))
    return "/".join(first[:same]), first[same], second[same]


def _in_cycles(rule: str, graph: Mapping[tuple[str, str], list[Edge]]) -> Iterator[Violation]:
    component = strong_components(graph)
    for (source, target), edges in graph.items():
        if component[source] == component[target]:
            for file, module, line in edges:
                yield Violation(rule, file, module, line)


def strong_components(edges: Mapping[tuple[str, str], object]) -> dict[str, int]:
    """A number for each node; nodes that reach each other have the same (Kosaraju's two walks)."""
    ahead: dict[str, set[str]] = defaultdict(set)
    back: dict[str, set[str]] = defaultdict(set)
    for source, target in edges:
        ahead[source].add(target)
        back[target].add(source)
    nodes = sorted({node for edge in edges for node in edge})
    done: set[str] = set()
    finished = [node for start in nodes for node in _finish(start, ahead, done)]
    component: dict[str, int] = {}
    done = set()
    for number, start in enumerate(reversed(finished)):
        for node in _finish(start, back, done):
            component[node] = number
    return component


def _finish(start: str, graph: Mapping[str, set[str]], done: set[str]) -> list[str]:
    """Nodes reached from `start` that were not done, in the order in which a walk leaves them."""
    if start in done:
        return []
    done.add(start)
    left: list[str] = []
    stack = [(start, iter(sorted(graph.get(start, ()))))]
    while stack:
        node, rest = stack[-1]
        following = next((other for other in rest if other not in done), None)
        if following is None:
            left.append(node)
            stack.pop()
        else:
            done.add(following)
            stack.append((following, iter(sorted(graph.get(following, ())))))
    return left
