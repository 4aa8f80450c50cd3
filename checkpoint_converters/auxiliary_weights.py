"""AuxiliaryWeights: a draft's tensors inside a target's checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class AuxiliaryWeights:
    """Networks of a draft in a target's checkpoint.

    tensors: of all names and for so many layers of the target, the names that are theirs. key: what
    config.json has only with them; empty: they may always be there. class_prefix: what stands
    before the target's own class in ``architectures`` then.
    """

    tensors: Callable[[Collection[str], int], set[str]]
    key: str = ""
    class_prefix: str = ""
