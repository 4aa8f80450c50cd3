"""Latency against load, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trtspec.bench.picture import check_picture, new_figure, plain, write_picture
from trtspec.errors import ConfigError

PANELS = {
    "Time to first token (ms)": ("median_ttft_ms", "p99_ttft_ms"),
    "Time per output token (ms)": ("median_tpot_ms", "p99_tpot_ms"),
    "End-to-end latency (ms)": ("median_e2el_ms", "p99_e2el_ms"),
    "Output throughput (tokens/s)": ("output_throughput",),
}


def plot(results: Mapping[str, Sequence[Mapping[str, Any]]], path: Path) -> None:
    """Write a picture of latency and throughput against load.

    results: points of every line, by its name. The load is the request rate where all points have
    one, else the limit of concurrency where all have one, else the requests a second achieved.

    Raises:
        ConfigError: matplotlib is missing, there is no point, or the file cannot be written.
    """
    check_picture(path)
    label, key = load_axis([point for points in results.values() for point in points])
    figure = new_figure(11, 7.5)
    panels = figure.subplots(2, 2)
    for axes, (title, keys) in zip(panels.flat, PANELS.items(), strict=True):
        for number, (name, points) in enumerate(results.items()):
            ordered = sorted(points, key=lambda point: point[key] or 0)
            loads = [point[key] for point in ordered]
            for statistic, style in zip(keys, ("-", "--"), strict=False):
                values = [float("nan") if p[statistic] is None else p[statistic] for p in ordered]
                suffix = f", {statistic.partition('_')[0]}" if len(keys) > 1 else ""
                axes.plot(
                    loads, values, style, color=f"C{number % 10}", marker="o", markersize=4,
                    label=name + suffix,
                )  # fmt: skip
        plain(axes, title)
        axes.set_xlabel(label)
        axes.set_xlim(left=0)
        axes.legend(fontsize=8, frameon=False)
    write_picture(figure, path)


def load_axis(points: Sequence[Mapping[str, Any]]) -> tuple[str, str]:
    """The label of the load, and the key of a point that holds it; ConfigError without points."""
    if not points:
        raise ConfigError("there is no point to plot")
    if all(point["request_rate"] != "inf" for point in points):
        return "requests sent per second", "request_rate"
    if all(point["max_concurrency"] is not None for point in points):
        return "requests at a time", "max_concurrency"
    return "requests answered per second", "request_throughput"
