"""The record on disk: a JSON file a method, one of texts, one of messages, one of versions.

Every entry is a line. What all backends of a method have in common is written once, and a text that
is its target's own is written as the target's name.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Entries = dict[str, Any]
Methods = dict[str, dict[str, Entries]]

DATA = Path(__file__).parent / "data"
_COMMON = "every backend"


@dataclass
class Record:
    """versions and checkpoints: what the rest was recorded with. methods: of each, by backend.
    texts: of each target. messages: of each group of bad inputs, by its name."""

    versions: dict[str, str] = field(default_factory=dict)
    checkpoints: dict[str, str] = field(default_factory=dict)
    texts: dict[str, Entries] = field(default_factory=dict)
    methods: Methods = field(default_factory=dict)
    messages: dict[str, dict[str, str]] = field(default_factory=dict)


def read(folder: Path = DATA) -> Record:
    made_with = _load(folder / "made_with.json")
    texts = _load(folder / "texts.json")
    methods = {}
    for path in sorted((folder / "methods").glob("*.json")):
        stored = _load(path)
        method, target, common = (stored.pop(key) for key in ("method", "target", _COMMON))
        own_text = texts.get(target, {})
        methods[method] = {
            backend: {
                key: own_text[key] if key in own_text and value == target else value
                for key, value in {**common, **own}.items()
            }
            for backend, own in stored.items()
        }
    messages = _load(folder / "messages.json")
    return Record(made_with["versions"], made_with["checkpoints"], texts, methods, messages)


def write(record: Record, targets: Mapping[str, str], folder: Path = DATA) -> list[str]:
    """Write what differs from the files; returns their names. ``targets``: of the methods."""
    files = {
        "made_with.json": {"versions": record.versions, "checkpoints": record.checkpoints},
        "texts.json": record.texts,
        "messages.json": record.messages,
    }
    for method, backends in record.methods.items():
        target = targets[method]
        own = record.texts.get(target, {})
        short = {
            backend: {k: target if own.get(k) == v else v for k, v in entries.items()}
            for backend, entries in backends.items()
        }
        first, *others = short.values()
        common = {
            key: value
            for key, value in first.items()
            if all(key in other and other[key] == value for other in others)
        }
        files[f"methods/{file_name(method)}"] = {
            "method": method,
            "target": target,
            _COMMON: common,
            **{
                backend: {k: v for k, v in entries.items() if k not in common}
                for backend, entries in short.items()
            },
        }
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
