"""The steps of a request as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from trtspec.executor.step.step_result import SpecStep
from trtspec.serve.token_text import TokenText


def spec_steps(steps: Sequence[SpecStep] | None, tokens: TokenText) -> dict[str, Any]:
    """The field of a choice, with tokens as text; none if steps were not asked for."""
    if steps is None:
        return {}
    told = [
        {
            "emitted": [*map(tokens.text, step.emitted)],
            "accepted": step.accepted,
            "tokens": [*map(tokens.text, step.tokens)],
            "parents": step.parents,
            "sources": step.sources,
        }
        for step in steps
    ]
    return {"spec_steps": told}
