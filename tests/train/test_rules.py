"""Which texts are dropped, one case a rule, and what passes."""

from __future__ import annotations

import random

import pytest

from trtspec.train.rules import RULES, fault, key_of

GOOD = random.Random(0).choices(range(10, 500), k=200)


def refusal(ids: list[int], text: str = "text", **given: bool) -> str | None:
    options = {"must_end": False, "ended": True, **given}
    return fault(ids, text, {0, 1}, 16, **options)


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (refusal(GOOD), None),
        (refusal(GOOD[:15]), "short"),
        (refusal(GOOD, must_end=True, ended=False), "unfinished"),
        (refusal(GOOD, must_end=True), None),
        (refusal([*GOOD, 1, 7]), "special"),
        (refusal(GOOD, "a \N{REPLACEMENT CHARACTER} in the middle"), "broken"),
        (refusal(GOOD, "cut at the end \N{REPLACEMENT CHARACTER}"), None),
        (refusal(GOOD + GOOD[:16] * 3), "loop"),
        (refusal(GOOD + [5] * 48), "loop"),
        (refusal(GOOD + GOOD[:17] * 3), None),
        (refusal((GOOD[:20] * 10)[:-1]), "monotone"),
        (refusal(GOOD[:24] * 2), None),
    ],
)
def test_rules(found: str | None, expected: str | None) -> None:
    assert found == expected
    assert found is None or found in RULES


def test_keys() -> None:
    assert key_of("What  is\nthis? ") == key_of("what is this?") != key_of("what is that?")
