"""What moved between a record and what is seen now, a line each, by method and backend."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .store import Entries, Methods

_LISTS = ("tokens", "accepted")
"""Last words of entries that hold a list for every prompt."""


def methods_moved(recorded: Methods, seen: Methods) -> list[str]:
    """Of methods and backends: missing ones, new ones, and entries that differ."""
    lines = [f"{name}: is not in the record" for name in seen if name not in recorded]
    for method, backends in recorded.items():
        if method not in seen:
            lines.append(f"{method}: is in the record, but was not seen")
            continue
        new = [name for name in seen[method] if name not in backends]
        lines += [f"{method} / {name}: is not in the record" for name in new]
        for backend, entries in backends.items():
            if backend not in seen[method]:
                lines.append(f"{method} / {backend}: is in the record, but was not seen")
            else:
                lines += entries_moved(f"{method} / {backend}", entries, seen[method][backend])
    return lines


def entries_moved(where: str, recorded: Entries, seen: Entries) -> list[str]:
    lines = []
    for key in [*recorded, *(key for key in seen if key not in recorded)]:
        if key not in seen:
            lines.append(f"{where}: {key} is gone (it was {recorded[key]!r:.100})")
        elif key not in recorded:
            lines.append(f"{where}: {key} is new: {seen[key]!r:.100}")
        elif recorded[key] != seen[key]:
            lines += _differences(where, key, recorded[key], seen[key])
    return lines


def messages_moved(
    recorded: Mapping[str, Mapping[str, str]], seen: Mapping[str, Mapping[str, str]]
) -> list[str]:
    lines = []
    for group in {**recorded, **seen}:
        old, new = recorded.get(group, {}), seen.get(group, {})
        for case in {**old, **new}:
            where = f"message of {group} / {case}"
            if case not in new:
                lines.append(f"{where}: is in the record, but was not seen")
            elif case not in old:
                lines.append(f"{where}: is not in the record: {new[case]}")
            elif old[case] != new[case]:
                lines.append(f"{where}:\n    was {old[case]}\n    now {new[case]}")
    return lines


def _differences(where: str, key: str, old: Any, new: Any) -> list[str]:
    if key.startswith("graph "):
        return [f"{where}: {key} changed: normal form {old} -> {new}"]
    per_prompt = key.split()[-1] in _LISTS and isinstance(old, list) and isinstance(new, list)
    if not per_prompt or len(old) != len(new):
        return [f"{where}: {key}: {old!r} != {new!r}"]
    lines = []
    for prompt, (was, now) in enumerate(zip(old, new, strict=True)):
        if was == now:
            continue
        if key.endswith("tokens"):
            lines.append(f"{where}: {key} of prompt {prompt} differ {_first(was, now)}")
        else:
            lines.append(
                f"{where}: {key} drafts of prompt {prompt}, steps by number accepted: "
                f"{was} != {now}"
            )
    return lines


def _first(was: list[int], now: list[int]) -> str:
    """Where two texts part."""
    for index, (old, new) in enumerate(zip(was, now, strict=False)):
        if old != new:
            return f"from index {index}: {old} != {new}"
    return f"in length: {len(was)} != {len(now)}"
