"""All rules about the shape of the code base."""

from __future__ import annotations

from .cycles import cycles
from .files import readmes, sizes
from .imports import (
    at_the_top,
    converters,
    executor_drafter,
    optional_packages,
    order,
    server_engine,
)
from .names import names
from .native import native_names
from .parts import layer_parts
from .violation import Violation
from .walk import Tree

RULES = (
    order,
    at_the_top,
    converters,
    optional_packages,
    cycles,
    names,
    native_names,
    layer_parts,
    executor_drafter,
    server_engine,
    sizes,
    readmes,
)


def violations(tree: Tree) -> list[Violation]:
    """Everything in a tree that breaks a rule, sorted."""
    return sorted(found for rule in RULES for found in rule(tree))
