"""The families that are known: those here, and those of other packages by entry points."""

from __future__ import annotations

from functools import cache
from importlib.metadata import entry_points

from checkpoint_converters.families.family import Family
from checkpoint_converters.families.llama import LLAMA
from checkpoint_converters.families.mimo import MIMO
from checkpoint_converters.families.mistral import MISTRAL
from checkpoint_converters.families.qwen2 import QWEN2
from checkpoint_converters.families.qwen3 import QWEN3
from trtspec.errors import ConfigError

ENTRY_POINTS = "trtspec.families"
"""Group of the entry points by which other packages add a `Family`."""

_BUILT_IN = (LLAMA, MISTRAL, QWEN2, QWEN3, MIMO)


@cache
def families() -> tuple[Family, ...]:
    """All families.

    Raises:
        ConfigError: another package's family has an architecture or model_type that is taken.
    """
    found = list(_BUILT_IN)
    for entry in entry_points(group=ENTRY_POINTS):
        family: Family = entry.load()
        for key in ("architecture", "model_type"):
            name = getattr(family, key)
            if any(getattr(other, key) == name for other in found):
                raise ConfigError(
                    f"the entry point {entry.value} adds a family of {key} {name!r}, which is "
                    "taken; rename it or uninstall its package"
                )
        found.append(family)
    return tuple(found)


def other_packages() -> list[str]:
    """Where families of other packages come from, with the versions of these: what they make of a
    checkpoint depends on it."""
    entries = entry_points(group=ENTRY_POINTS)
    return sorted(f"{e.value} {e.dist.version if e.dist else ''}" for e in entries)
