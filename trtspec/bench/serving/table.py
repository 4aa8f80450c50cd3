"""Results as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trtspec.bench.serving.summary import LATENCIES, STATISTICS

WIDTH = 66
_MAX_REASONS = 10
NAMES = {
    "ttft": "Time to first token (TTFT)",
    "tpot": "Time per output token (TPOT)",
    "itl": "Inter-token latency (ITL)",
    "e2el": "End-to-end latency (E2EL)",
}


def point_name(point: Mapping[str, Any]) -> str:
    """The load of a point in a few words."""
    rate, most = point["request_rate"], point["max_concurrency"]
    name = "all at once" if rate == "inf" else f"{rate:g} req/s"
    return name if most is None else f"{name}, {most} at a time"


def number(value: float | None, digits: int = 2) -> str:
    """A figure, or a dash where it is not known."""
    if value is None:
        return "-"
    return str(value) if isinstance(value, int) else f"{value:.{digits}f}"


def point_table(point: Mapping[str, Any]) -> str:
    """All figures of one point, with the labels of `vllm bench serve`."""
    lines = [f" {point_name(point)} ".center(WIDTH, "=")]
    if point["interrupted"]:
        lines.append(
            f"Interrupted: {point['num_unfinished']} requests did not end; neither they nor their "
            "tokens count."
        )
    rows = [
        ("Successful requests:", point["completed"]),
        ("Failed requests:", point["failed"]),
        ("Benchmark duration (s):", point["duration"]),
        ("Total input tokens:", point["total_input_tokens"]),
        ("Total generated tokens:", point["total_output_tokens"]),
        ("Request throughput (req/s):", point["request_throughput"]),
        ("Output token throughput (tok/s):", point["output_throughput"]),
        ("Total token throughput (tok/s):", point["total_token_throughput"]),
        ("Peak concurrent requests:", point["max_concurrent_requests"]),
    ]
    lines += [f"{label:<40}{number(value):>{WIDTH - 40}}" for label, value in rows]
    if point["num_without_usage"]:
        lines.append(
            f"The server reported no token counts (usage) for {point['num_without_usage']} "
            "requests;\nwhat needs them is left out."
        )
    lines.append("-" * WIDTH)
    lines.append(f"{'ms':<31}" + "".join(f"{statistic:>7}" for statistic in STATISTICS))
    for name in LATENCIES:
        values = [point[f"{statistic}_{name}_ms"] for statistic in STATISTICS]
        lines.append(f"{NAMES[name]:<31}" + "".join(f"{_short(value):>7}" for value in values))
    if point["acceptance"] is not None:
        lines += ["-" * WIDTH, *acceptance_lines(point["acceptance"])]
    if point["failures"]:
        lines += ["-" * WIDTH, *failure_lines(point["failures"])]
    lines.append("=" * WIDTH)
    return "\n".join(lines)


def acceptance_lines(figures: Mapping[str, Any]) -> list[str]:
    """Rates with the counts that they come from."""
    per = {"step": "verify step", "draft": "step with a draft"}[figures["acceptance_length_per"]]
    lines = [
        f"mean acceptance length: {figures['acceptance_length']:.2f} tokens per {per}",
        f"draft acceptance rate: {figures['acceptance_rate']:.2f} "
        f"({figures['num_accepted_tokens']} of {figures['num_draft_tokens']} draft tokens)",
    ]
    counts = figures["num_accepted_tokens_per_pos"]
    for i, rate in enumerate(figures["acceptance_rate_per_pos"]):
        lines.append(
            f"acceptance at token {i}: {rate:.2f} ({counts[i]} of {figures['num_drafts']} drafts)"
        )
    return lines


def failure_lines(failures: Mapping[str, int]) -> list[str]:
    """Reasons, the most frequent ones first."""
    lines = [f"{count} failed: {reason}" for reason, count in failures.items()]
    more = len(lines) - _MAX_REASONS
    return lines if more <= 0 else [*lines[:_MAX_REASONS], f"... and {more} other reasons"]


def sweep_table(points: Sequence[Mapping[str, Any]]) -> str:
    """One line a point: latency against load."""
    columns = {
        "req/s": "request_throughput",
        "tok/s": "output_throughput",
        "TTFT p50": "median_ttft_ms",
        "p99": "p99_ttft_ms",
        "TPOT p50": "median_tpot_ms",
        "p99 ": "p99_tpot_ms",
        "E2EL p50": "median_e2el_ms",
        "p99  ": "p99_e2el_ms",
    }
    wide = max(len("load"), *(len(point_name(point)) for point in points))
    lines = [f"{'load':<{wide}}" + "".join(f"{name.strip():>10}" for name in columns)]
    for point in points:
        cells = "".join(f"{_short(point[key]):>10}" for key in columns.values())
        lines.append(f"{point_name(point):<{wide}}{cells}")
    return "\n".join(lines)


def _short(value: float | None) -> str:
    return number(value, 2 if value is None or value < 1000 else 0)
