"""The record on disk: JSON files whose entries are a line each, one file a method.

What all backends of a method have in common is written once, and a part of a contract that another
method has as well as a reference to ``parts.json``.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Entries = dict[str, Any]
Methods = dict[str, dict[str, Entries]]

DATA = Path(__file__).parent / "data"
_COMMON = "every backend"
_TABLES = ("made_with", "parts", "messages")
_PART = re.compile(r"contract (build|(facts\.)?(target|draft)|drafts\[\d+\]\.network)\.")


@dataclass
class Record:
    """versions and checkpoints: what the rest was recorded with. methods: of each, by backend.
    messages: of each group of bad inputs, by its name."""

    versions: dict[str, str] = field(default_factory=dict)
    checkpoints: dict[str, str] = field(default_factory=dict)
    methods: Methods = field(default_factory=dict)
    messages: dict[str, dict[str, str]] = field(default_factory=dict)


def read(folder: Path = DATA) -> Record:
    made_with, parts, messages = (_load(folder / f"{name}.json") for name in _TABLES)
    methods = {}
    for path in sorted((folder / "methods").glob("*.json")):
        stored = _load(path)
        method, common = (stored.pop(key) for key in ("method", _COMMON))
        methods[method] = {
            backend: _whole({**common, **own}, parts) for backend, own in stored.items()
        }
    return Record(made_with["versions"], made_with["checkpoints"], methods, messages)


def write(record: Record, folder: Path = DATA) -> list[str]:
    """Write what differs from the files; returns their names."""
    parts: dict[str, Entries] = {}
    methods: dict[str, Any] = {}
    for method, backends in record.methods.items():
        first, *others = backends.values()
        common = {
            key: value
            for key, value in first.items()
            if all(key in other and other[key] == value for other in others)
        }
        methods[f"methods/{file_name(method)}"] = {
            "method": method,
            _COMMON: _short(common, method, parts),
            **{
                backend: {k: v for k, v in entries.items() if k not in common}
                for backend, entries in backends.items()
            },
        }
    made_with = {"versions": record.versions, "checkpoints": record.checkpoints}
    tables = zip(_TABLES, (made_with, parts, record.messages), strict=True)
    files = {**{f"{name}.json": content for name, content in tables}, **methods}
    written = []
    (folder / "methods").mkdir(parents=True, exist_ok=True)
    for path in (folder / "methods").glob("*.json"):
        if f"methods/{path.name}" not in files:
            path.unlink()
            written.append(f"methods/{path.name}")
    for name, content in files.items():
        text, path = dumped(content), folder / name
        if not path.exists() or path.read_text() != text:
            path.write_text(text)
            written.append(name)
    return written


def _short(entries: Entries, method: str, parts: dict[str, Entries]) -> Entries:
    """With references for what `_PART` says is a part of a contract; new ones go to ``parts``."""
    found: dict[str, Entries] = {}
    kept: Entries = {}
    for key, value in entries.items():
        part = _PART.match(key)
        if part is None:
            kept[key] = value
        else:
            found.setdefault(part[0], {})[key.removeprefix(part[0])] = value
    for prefix, part_entries in found.items():
        names = (name for name, known in parts.items() if known == part_entries)
        name = next(names, f"{prefix.split()[-1].rstrip('.')} of {method}")
        parts[name] = part_entries
        kept[prefix] = name
    return kept


def _whole(entries: Entries, parts: Mapping[str, Entries]) -> Entries:
    """The inverse of what `write` shortens."""
    whole: Entries = {}
    for key, value in entries.items():
        if key.endswith("."):
            whole |= {f"{key}{name}": own for name, own in parts[value].items()}
        else:
            whole[key] = value
    return whole


def file_name(method: str) -> str:
    return method.replace(",", "").replace(" ", "_") + ".json"


def dumped(content: Mapping[str, Any]) -> str:
    """JSON with a line for every entry of the innermost objects, in the order of their keys."""
    lines = []
    for key, value in content.items():
        head = f" {json.dumps(key)}: "
        if isinstance(value, dict) and value:
            inner = [f"  {json.dumps(k)}: {json.dumps(value[k])}" for k in sorted(value)]
            lines.append(head + "{\n" + ",\n".join(inner) + "\n }")
        else:
            lines.append(head + json.dumps(value))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _load(path: Path) -> Any:
    return json.loads(path.read_text())
