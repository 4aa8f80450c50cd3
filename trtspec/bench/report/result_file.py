"""Result files: JSON that says what was measured, by which command, of which commit and where, and
that appears whole or not at all.

    format, format_version   of the program that wrote it
    date, command, commit    when, how it was called, the source's commit (null if unknown)
    machine                  processor, instruction_sets, cores, memory_gib, gpu (null: none)
    versions                 of trtspec, Python and the packages that matter
    note                     where there is one: what a reader of the figures must know

and the figures (``rows``, and in ``common`` what all of them share; the points of ``compare`` and
``peers``, the calls of ``forward``, the categories of ``acceptance``), which `rows` gives alike:
``engine``, ``method``, ``batch`` and ``temperature`` (or what else tells rows apart), and figures
by name, ``spread`` among them (the fastest round over the slowest; null: one round). What was
measured by category has a row for each, and one for ``all``. Who failed has none.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trtspec.bench.report.machine import commit, machine, versions
from trtspec.errors import ConfigError
from trtspec.writable import check_file, write_whole

_HEADER = ("format", "date", "command", "commit", "machine", "versions")


def check_output(path: Path) -> None:
    """Raise ConfigError if a file could not be written there; asked before anything is measured."""
    try:
        check_file(path)
    except OSError as error:
        raise ConfigError(f"--output {path} cannot be written: {error}") from error


def make_result(
    name: str, version: int, argv: Sequence[str], packages: Sequence[str], body: Mapping[str, Any]
) -> dict[str, Any]:
    """The contents of a file of the program ``name``, called with ``argv``, now."""
    return {
        "format": name,
        "format_version": version,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": shlex.join([name.partition(" ")[0], *argv]),
        "commit": commit(),
        "machine": machine(),
        "versions": versions(*packages),
        **body,
    }


def save(path: Path, result: Mapping[str, Any]) -> None:
    """Write a file atomically. ConfigError if that fails."""
    text = json.dumps(result, indent=1, allow_nan=False) + "\n"
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error}") from error


def load(path: Path) -> dict[str, Any]:
    """Read a file; ConfigError, naming it and the problem, if it is not a result."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    missing = [key for key in _HEADER if not isinstance(result, dict) or key not in result]
    if missing:
        raise ConfigError(f"{path} is no result of trtspec-bench: it lacks {', '.join(missing)}")
    found: dict[str, Any] = result
    return found


def rows(result: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The figures of a result, one row for each measurement."""
    plain = result.get("rows", result.get("calls"))
    if plain is not None:
        return [{**result.get("common", {}), **row} for row in plain]
    found = []
    for category, metrics in result.get("categories", {}).items():
        where = {"batch": result["batch_size"], "temperature": result["temperature"]}
        method = (result["speculative_config"] or {}).get("method")
        found.append({"engine": "trtspec", "method": method, **where, "category": category})
        found[-1] |= metrics
    for point in result.get("points", ()):
        where = {"batch": point["batch_size"], "temperature": point["temperature"]}
        for line in point.get("methods", ()):
            found += _by_category({"engine": "trtspec", "method": line["name"], **where, **line})
        for line in point.get("contenders", ()):
            if "failure" not in line:
                found += _by_category({"method": line["mode"], **where, **line})
    return found


def _by_category(row: Mapping[str, Any]) -> list[dict[str, Any]]:
    """A row for each category, which has only its speeds, then one for all."""
    about = {key: row[key] for key in ("engine", "method", "batch", "temperature")}
    categories = row.get("categories", {})
    parts = [{**about, "category": name, **speeds} for name, speeds in categories.items()]
    return [*parts, {**row, "category": "all"}]
