"""Result files: JSON that says what was measured, against what load, with what, and where."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from trtspec.bench.machine import machine, versions
from trtspec.bench.serving.counters import SpeculationCounters, acceptance
from trtspec.bench.serving.load import LoadPoint, LoadTest
from trtspec.bench.serving.prompts import fingerprint
from trtspec.bench.serving.run import PointRun
from trtspec.bench.serving.summary import failure_reasons, summarize
from trtspec.errors import ConfigError

FORMAT, FORMAT_VERSION = "trtspec-bench serve", 1
_POINT_KEYS = ("completed", "failed", "duration")


def point_result(
    point: LoadPoint,
    prompts: Sequence[str],
    run: PointRun,
    before: SpeculationCounters | None,
    after: SpeculationCounters | None,
) -> dict[str, Any]:
    """One point as plain JSON values: its load, the figures of `summarize`, acceptance (None
    without speculation), the reasons of failures, and every request."""
    rate = point.request_rate
    return {
        "request_rate": "inf" if math.isinf(rate) else rate,
        "max_concurrency": point.max_concurrency,
        "prompts_sha256": fingerprint(prompts),
        "interrupted": run.is_interrupted,
        **summarize(run.records, run.duration, run.num_prompts),
        "acceptance": acceptance(before, after),
        "failures": failure_reasons(run.records),
        "requests": [record.to_dict() for record in run.records],
    }


def make_result(
    load: LoadTest,
    points: Sequence[Mapping[str, Any]],
    server: Mapping[str, Any],
    command: str,
    notes: Sequence[str] = (),
) -> dict[str, Any]:
    """The whole file. ``server``: its url, model and version; ``command``: as it was called,
    without secrets."""
    return {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "command": command,
        "server": dict(server),
        "client": {
            "machine": machine(),  # a server's own cannot be asked for
            "versions": versions("httpx"),
        },
        "load": load.to_dict(),
        "notes": list(notes),
        "points": [dict(point) for point in points],
    }


def load_result(path: Path) -> dict[str, Any]:
    """A file that `save` wrote; ConfigError if it is none, or of another format."""
    try:
        result = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"the result file {path} cannot be read: {error}") from error
    if not isinstance(result, dict) or result.get("format") != FORMAT:
        raise ConfigError(f"{path} is no result of trtspec-bench serve --output")
    if result.get("format_version") != FORMAT_VERSION:
        raise ConfigError(
            f"{path} has format version {result.get('format_version')}, this version of trtspec "
            f"reads {FORMAT_VERSION}; measure again"
        )
    if not all(key in result for key in ("server", "client", "load", "points")) or not all(
        isinstance(point, dict) and all(key in point for key in _POINT_KEYS)
        for point in result["points"]
    ):
        raise ConfigError(f"{path} is incomplete; measure again")
    return result
