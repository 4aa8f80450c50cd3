"""A package beside trtspec with an entry point, installed where child processes find it as well."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest


def installer(
    site: Path, monkeypatch: pytest.MonkeyPatch, group: str, forget: Callable[[], None]
) -> Callable[[str], None]:
    """A function that installs an entry point ``toy`` of a group, given as ``module:object``.

    ``forget``: drops what the registry remembers of the group.
    """

    def install(target: str) -> None:
        info = site / "toy-1.dist-info"
        info.mkdir(parents=True, exist_ok=True)
        (info / "METADATA").write_text("Metadata-Version: 2.1\nName: toy\nVersion: 1\n")
        (info / "entry_points.txt").write_text(f"[{group}]\ntoy = {target}\n")
        monkeypatch.syspath_prepend(str(site))
        forget()

    return install
