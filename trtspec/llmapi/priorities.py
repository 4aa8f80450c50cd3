"""Priorities: one for each prompt, from whatever the caller gave."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import Any, SupportsIndex

from trtspec.errors import RequestError


def read_priorities(given: Any, num_prompts: int, are_read: bool) -> list[int]:
    """One priority per prompt, from an integer for all, a list of one for each, or None (0 for
    all). are_read: whether the scheduling policy reads priorities.

    Raises:
        RequestError: they are not integers, not one per prompt, or not 0 though the policy ignores
            them.
    """
    if hasattr(given, "tolist"):  # an array or a tensor
        given = given.tolist()
    is_list = isinstance(given, Sequence) and not isinstance(given, (str, bytes))
    each = list(given) if is_list else [0 if given is None else given] * num_prompts
    for place, value in enumerate(each):
        name = f"priority[{place}]" if is_list else "priority"
        if isinstance(value, bool) or not isinstance(value, SupportsIndex):
            raise RequestError(
                f"{name} is {type(value).__name__} {value!r:.60}; a priority is an integer, of "
                "which lower ones begin earlier"
            )
        if operator.index(value) != 0 and not are_read:
            raise RequestError(
                f"{name}={value} has no effect, as scheduling_policy='fcfs' takes requests in "
                "order of arrival; set scheduling_policy='priority', or leave `priority` out"
            )
    if len(each) != num_prompts:
        raise RequestError(
            f"{num_prompts} prompts came with {len(each)} priorities; give one for all, or one "
            "for each"
        )
    return [operator.index(value) for value in each]
