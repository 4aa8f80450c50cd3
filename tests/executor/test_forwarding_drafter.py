"""ForwardingDrafter passes on all that the protocol `Drafter` asks, whatever is added to that."""

from __future__ import annotations

from inspect import getattr_static, signature
from typing import Any
from unittest.mock import MagicMock

import pytest

from trtspec.executor.step.drafter import Drafter, DrafterNeeds, NoDrafter
from trtspec.executor.step.forwarding_drafter import ForwardingDrafter

ASKED = sorted({*vars(Drafter), *Drafter.__annotations__})
ASKED = [name for name in ASKED if not name.startswith("_")]


def asked(drafter: Drafter, name: str, arguments: list[object]) -> Any:
    answer = getattr(drafter, name)
    return answer(*arguments) if callable(getattr_static(Drafter, name, None)) else answer


@pytest.mark.parametrize("name", ASKED)
def test_everything_is_passed_on(name: str) -> None:
    inner: Any = MagicMock(spec=NoDrafter())
    inner.needs = DrafterNeeds(3, 2)
    inner.live_requests = frozenset({4, 5})
    function = getattr_static(Drafter, name, None)
    arguments = [object() for _ in signature(function).parameters][1:] if callable(function) else []
    answer = asked(ForwardingDrafter(inner), name, arguments)
    if callable(function):
        getattr(inner, name).assert_called_once_with(*arguments)
        if name != "release" and name != "profile":
            assert answer is getattr(inner, name).return_value
    else:
        assert answer is getattr(inner, name)


def test_the_protocol_was_read() -> None:
    assert {"needs", "profile", "skips_drafts", "live_requests", "release"} < set(ASKED)


@pytest.mark.parametrize("name", ["prepare_draft_tokens", "on_accepted", "release"])
def test_a_drafter_without_one_cannot_be_made(name: str) -> None:
    parts = {part: getattr(NoDrafter, part) for part in ASKED if part not in (name, "needs")}
    whole: Any = type("Whole", (Drafter,), {**parts, name: getattr(NoDrafter, name)})
    whole()
    lacking: Any = type("Lacking", (Drafter,), parts)
    with pytest.raises(TypeError, match=name):
        lacking()
