"""What moved between a record and what is seen now, a line each, by method and backend."""

from __future__ import annotations

from collections.abc import Mapping

from .store import Entries, Methods


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
            lines.append(f"{where}: {key}: {recorded[key]!r} != {seen[key]!r}")
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
