"""The page of keys that users of other engines know: it is what the program writes, and true."""

from __future__ import annotations

import json
import re
from dataclasses import fields
from pathlib import Path

import pytest

from trtspec.commands import spellings
from trtspec.config.strict import key_rules
from trtspec.speculative.registry import method_name, methods

PAGE = Path(__file__).resolve().parents[2] / "trtspec" / "speculative" / "COMING_FROM.md"


def rows(heading: str) -> list[list[str]]:
    """The cells of the table below a heading."""
    section = PAGE.read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")][2:]
    return [line.strip("| ").split(" | ") for line in lines]


def words(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


def named(cell: str) -> set[str]:
    """The methods that a cell means."""
    given = set(words(cell))
    return set(methods()) - given if cell == "all" or cell.startswith("all but ") else given


def test_the_page_is_what_the_program_writes(capsys: pytest.CaptureFixture[str]) -> None:
    assert spellings.main([]) == 0
    assert capsys.readouterr().out == PAGE.read_text()


@pytest.mark.parametrize("name", methods())
def test_every_key_of_a_method_is_there_once(name: str) -> None:
    options = methods()[name].options
    rules, own = key_rules(options), {field.name for field in fields(options)}
    means = [row for row in rows("Keys that mean an option here") if name in named(row[2])]
    assert {words(row[0])[0]: words(row[1])[0] for row in means} == dict(rules.aliases)
    listed = [row for row in rows("Options by their own names") if name in named(row[1])]
    assert {words(row[0])[0] for row in listed} == own
    refused = [row for row in rows("Keys that are dropped or refused") if name in named(row[3])]
    keys = [key for row in refused for key in words(row[0])]
    assert sorted(keys) == sorted(set(rules.foreign) - set(rules.aliases) - own)


@pytest.mark.parametrize("name", methods())
def test_what_is_said_to_be_accepted_is(name: str) -> None:
    rules = key_rules(methods()[name].options)
    for keys, accepted, reason, takers in rows("Keys that are dropped or refused"):
        for key in words(keys) if name in named(takers) else ():
            rule = rules.foreign[key]
            assert rule.reason == reason
            assert rule.allows(None, {}) == (accepted != "never"), key
            assert not rule.allows("none of these", {}), key
            if not callable(rule.accepts):
                assert all(rule.allows(json.loads(value), {}) for value in words(accepted)), key


def test_names_mean_what_is_said() -> None:
    for theirs, ours in rows("Names of methods"):
        for word in words(theirs) if "parallel_drafting" not in theirs else ():
            assert [method_name(word)] == words(ours)
