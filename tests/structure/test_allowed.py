"""The allow-list: it reports what is new and what is gone, and only ever shrinks."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .allowed import LIST, Key, counted, new, pruned, read, renamed, unneeded, write
from .violation import REMEDIES, Violation

KEYS = st.tuples(
    st.sampled_from(["order", "method-name", "readme"]),
    st.sampled_from(["trtspec/a.py", "trtspec/b.py", "trtspec/old/a.py"]),
    st.sampled_from(["eagle", "serve", "lines above 400"]),
)
LISTS = st.dictionaries(KEYS, st.integers(1, 3), max_size=6)


def breaches(counts: dict[Key, int]) -> list[Violation]:
    return [Violation(*key, line) for key, n in counts.items() for line in range(1, n + 1)]


@given(LISTS)
def test_a_list_is_read_as_it_was_written(allowed: dict[Key, int]) -> None:
    assert read(write(allowed)) == allowed


@given(LISTS, LISTS)
def test_silent_exactly_where_counts_agree(found: dict[Key, int], allowed: dict[Key, int]) -> None:
    more = {key for key in found if found[key] > allowed.get(key, 0)}
    less = {key for key in allowed if allowed[key] > found.get(key, 0)}
    assert len(new(breaches(found), allowed)) == len(more)
    assert len(unneeded(breaches(found), allowed)) == len(less)


@given(LISTS, LISTS)
def test_pruning_removes_and_never_adds(found: dict[Key, int], allowed: dict[Key, int]) -> None:
    after = pruned(breaches(found), allowed)
    assert all(0 < count <= allowed[key] for key, count in after.items())
    assert not unneeded(breaches(found), after)
    assert new(breaches(found), after) == new(breaches(found), allowed)


@given(LISTS)
def test_renaming_keeps_the_sum(allowed: dict[Key, int]) -> None:
    after = renamed(allowed, "trtspec/old", "trtspec/new")
    assert sum(after.values()) == sum(allowed.values())
    assert not any(file.startswith("trtspec/old/") for _, file, _ in after)


def test_a_message_names_file_lines_rule_and_remedy() -> None:
    found = [Violation("method-name", "trtspec/a.py", "eagle", line) for line in (3, 9)]
    (message,) = new(found, {("method-name", "trtspec/a.py", "eagle"): 1})
    assert "trtspec/a.py:3,9" in message
    assert "method-name: eagle (2, allowed 1)" in message
    assert REMEDIES["method-name"] in message


def test_measures_are_summed() -> None:
    long = Violation("file-size", "a.py", "lines above 400", 0, 7)
    assert counted([long]) == {("file-size", "a.py", "lines above 400"): 7}


def test_the_list_in_the_repository_is_sorted_and_knows_its_rules() -> None:
    text = LIST.read_text()
    allowed = read(text)
    assert write(allowed) == text
    assert {rule for rule, _, _ in allowed} <= set(REMEDIES)


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(AssertionError):
        Violation("no-such-rule", "a.py", "x")
