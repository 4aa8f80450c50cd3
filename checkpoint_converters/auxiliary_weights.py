"""AuxiliaryWeights: a draft's tensors inside a target's checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass


@dataclass(frozen=True)
class AuxiliaryWeights:
    """Networks of a draft in a target's checkpoint.

    tensors: returns the names that are theirs, given all names and the target's number of layers.
    key: a key that config.json has only with them; empty: they may always be present. class_prefix:
    the prefix of the target's class in ``architectures`` if they are present.
    """

    tensors: Callable[[Collection[str], int], set[str]]
    key: str = ""
    class_prefix: str = ""
