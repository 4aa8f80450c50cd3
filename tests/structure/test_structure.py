"""The shape of the code base: which rules hold is in `rules`, what they forgive in allowed.toml."""

from __future__ import annotations

import pytest

from trtspec.backends.registry import backends
from trtspec.speculative.registry import methods

from .allowed import LIST, ROOT, new, read, unneeded
from .rules import violations
from .spellings import BACKEND, METHOD
from .violation import Violation
from .walk import Tree


@pytest.fixture(scope="module")
def found() -> list[Violation]:
    return violations(Tree(ROOT))


def test_nothing_new_breaks_a_rule(found: list[Violation]) -> None:
    messages = new(found, read(LIST.read_text()))
    assert not messages, "\n" + "\n".join(messages)


def test_the_list_allows_nothing_that_is_gone(found: list[Violation]) -> None:
    messages = unneeded(found, read(LIST.read_text()))
    assert not messages, "\n" + "\n".join(messages)


def test_every_method_and_backend_has_a_spelling() -> None:
    """What no table names, no rule watches."""
    assert {each.name for each in METHOD.spellings} == set(methods())
    assert {each.name for each in BACKEND.spellings} == set(backends())
