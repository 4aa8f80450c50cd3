"""What of a prediction module's decoder layer this version does not run."""

from __future__ import annotations

import re
from collections.abc import Iterable

_NOT_RUN = (
    (r"linear_attn\.", "linear attention"),
    (r"self_attn\.\w*sink\w*", "attention sinks"),
)


def unrun_parts(layer_parts: Iterable[str]) -> list[str]:
    """What of a module's decoder layer this version does not run, each with a tensor that shows
    it."""
    names = sorted(layer_parts)
    found = []
    for pattern, what in _NOT_RUN:
        name = next((name for name in names if re.match(pattern, name)), None)
        if name is not None:
            found.append(f"{what}, tensor {name}")
    return found
