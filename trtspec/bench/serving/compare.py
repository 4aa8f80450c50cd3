"""Two result files side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trtspec.bench.serving.summary import LATENCIES
from trtspec.bench.serving.table import NAMES, number, point_name
from trtspec.errors import ConfigError

POINT_KEYS = ("request_rate", "max_concurrency", "prompts_sha256")
_PROMPT_KEYS = ("dataset", "prompt_chars")  # the prompts themselves are compared
_COUNTS = {
    "completed": "Successful requests",
    "failed": "Failed requests",
    "total_output_tokens": "Total generated tokens",
    "request_throughput": "Request throughput (req/s)",
    "output_throughput": "Output token throughput (tok/s)",
    "total_token_throughput": "Total token throughput (tok/s)",
}
_COMPARED = ("mean", "median", "p90", "p95", "p99")


def differences(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    """How the loads of two results differ, a line each; empty if they are the same."""
    names = {*a["load"], *b["load"]} - set(_PROMPT_KEYS)
    lines = [
        f"{name}: {a['load'].get(name)!r} and {b['load'].get(name)!r}"
        for name in sorted(names)
        if a["load"].get(name) != b["load"].get(name)
    ]
    pairs = [[_key(point) for point in result["points"]] for result in (a, b)]
    if pairs[0] == pairs[1]:
        return lines
    loads = [[point_name(point) for point in result["points"]] for result in (a, b)]
    if loads[0] != loads[1]:
        lines.append(f"points: {'; '.join(loads[0])} and {'; '.join(loads[1])}")
    else:
        origins = [", ".join(f"{r['load'].get(key)}" for key in _PROMPT_KEYS) for r in (a, b)]
        lines.append(f"prompts: their texts differ, of ({origins[0]}) and ({origins[1]})")
    return lines


def compare(
    a: Mapping[str, Any], b: Mapping[str, Any], names: tuple[str, str], force: bool = False
) -> str:
    """A table of both, and the ratio of B to A: above 1 is better for a throughput, worse for a
    time. Points are paired in their order, or with ``force`` by their rate and concurrency.

    Raises:
        ConfigError: the loads differ and ``force`` is not given, or no point is in both.
    """
    lines = []
    different = differences(a, b)
    if different:
        what = "\n  ".join(different)
        if not force:
            raise ConfigError(
                f"the loads of {names[0]} and {names[1]} differ, so their figures cannot be "
                f"compared:\n  {what}\nmeasure one of them again, or give --force"
            )
        lines.append(f"The loads DIFFER, so this is no comparison of servers:\n  {what}")
    lines += [f"A: {_origin(names[0], a)}", f"B: {_origin(names[1], b)}"]
    if a["client"]["machine"] != b["client"]["machine"]:
        lines.append("The clients ran on different machines.")
    by_load = {_key(point)[:2]: point for point in b["points"]}
    pairs = [(p, by_load[_key(p)[:2]]) for p in a["points"] if _key(p)[:2] in by_load]
    if not pairs:
        raise ConfigError(f"{names[0]} and {names[1]} have no point of the same rate and limit")
    for pair in pairs:
        lines += ["", *_pair(*pair)]
    return "\n".join(lines)


def _key(point: Mapping[str, Any]) -> tuple[Any, ...]:
    return tuple(point[name] for name in POINT_KEYS)


def _origin(name: str, result: Mapping[str, Any]) -> str:
    server = result["server"]
    version = f", version {server['version']}" if server.get("version") else ""
    return f"{name}: {server['model']} at {server['url']}{version}, {result['date']}"


def _pair(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[str]:
    lines = [f"{point_name(a):<40}{'A':>12}{'B':>12}{'B/A':>8}"]
    lines += [_row(label, a[key], b[key]) for key, label in _COUNTS.items()]
    for name in LATENCIES:
        for statistic in _COMPARED:
            key = f"{statistic}_{name}_ms"
            label = f"{NAMES[name]}, {statistic}" if statistic == "mean" else f"  {statistic}"
            lines.append(_row(label, a[key], b[key]))
    accepted = [point["acceptance"] or {} for point in (a, b)]
    if any(accepted):
        for key, label in (
            ("acceptance_length", "Mean acceptance length"),
            ("acceptance_rate", "Draft acceptance rate"),
        ):
            lines.append(_row(label, *(figures.get(key) for figures in accepted)))
        per = {figures["acceptance_length_per"] for figures in accepted if figures}
        if len(per) > 1:
            lines.append("Acceptance lengths are per verify step and per step with a draft.")
    lines.append(_same_text(a["requests"], b["requests"]))
    for side, point in zip("AB", (a, b), strict=True):
        if point["interrupted"]:
            lines.append(f"{side} was interrupted: {point['num_unfinished']} requests are missing.")
    return lines


def _row(label: str, a: float | None, b: float | None) -> str:
    ratio = None if a is None or b is None or not a else b / a
    return f"{label:<40}{number(a):>12}{number(b):>12}{number(ratio):>8}"


def _same_text(a: Sequence[Mapping[str, Any]], b: Sequence[Mapping[str, Any]]) -> str:
    answers = [{r["index"]: r["text_sha256"] for r in side if not r["error"]} for side in (a, b)]
    both = answers[0].keys() & answers[1].keys()
    same = sum(answers[0][index] == answers[1][index] for index in both)
    return f"The same text in {same} of the {len(both)} requests that both answered."
