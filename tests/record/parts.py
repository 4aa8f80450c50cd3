"""Entries of the record by what it takes to see them."""

from __future__ import annotations

from .store import Entries

_FOLDER = ("contract ", "weights ", "graph ")


def folder_part(entries: Entries, graphs: bool = True) -> Entries:
    """What an engine folder says; without ``graphs``, all but their normal forms."""
    kinds = _FOLDER if graphs else _FOLDER[:-1]
    return {key: value for key, value in entries.items() if key.startswith(kinds)}


def run_part(entries: Entries) -> Entries:
    """What was seen when the engine ran."""
    return {key: value for key, value in entries.items() if not key.startswith(_FOLDER)}
