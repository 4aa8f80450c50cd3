"""What `trtspec-bench compare` prints and writes.

The JSON file:

    format, format_version   "trtspec-bench compare", 1
    date, command, commit, machine, versions   see `trtspec.bench.report.result_file`
    model                    as it was given; `engine` its dtype, backend, device and limits
    prompts                  dataset, num_prompts, mean_prompt_tokens, max_tokens, seed, ignore_eos
    rates                    the machine's: read_bandwidth (bytes/s, the best of samples before,
                             between and after the rounds), and for products of few rows
                             with a weight matrix, bytes and operations a second
    num_rounds, left_out     rounds of each point; methods that do not fit, with the reason
    points                   one for each batch_size and temperature, with its `methods`:

    name, speculative_config as asked for; null: no speculation
    tokens_per_second        generated tokens over the time of a round, prefills included
    speed_up                 of that, over no speculation in the same rounds
    step_ms                  mean time of a step in which every request generated; of it
    target_ms, draft_ms, host_ms   in the target's verification, in drafting, outside the engines
    weight_bytes_per_step, kv_bytes_per_step   what the engines had to read in it
    memory_floor_ms, memory_floor_share   the time to read just that, and its share of step_ms;
                             null: memory was read faster than it was measured to be
    acceptance               names and definitions of `trtspec.executor.metrics`, over all rounds
    texts                    is_promised: they must equal those without speculation;
                             num_prompts, num_divergences, first_divergences {prompt: output index}
    round_seconds            of each round
    spread                   the fastest round over the slowest, in tokens_per_second
    categories               where prompts have categories and run alone (batch 1): of each
                             tokens_per_second and speed_up

All other figures are medians over the rounds. In the table a spread above 1.3 is marked (!): the
machine changed its speed meanwhile.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from trtspec.bench.report.floor import MachineRates, share_text
from trtspec.bench.report.picture import check_picture, new_figure, plain, write_picture
from trtspec.bench.report.result_file import make_result
from trtspec.bench.report.table import print_table
from trtspec.bench.runs.interleaving import spread_text

FORMAT, FORMAT_VERSION = "trtspec-bench compare", 1
HEADERS = (
    "method", "tokens/s", "speed-up", "length", "rate", "per position", "step ms", "verify",
    "draft", "host", "floor", "spread", "texts",
)  # fmt: skip
_MAX_POSITIONS = 8


def make_report(
    argv: Sequence[str],
    model: str,
    engine: Mapping[str, Any],
    prompts: Mapping[str, Any],
    rates: MachineRates,
    num_rounds: int,
    left_out: Mapping[str, str],
    points: Sequence[Mapping[str, Any]],
) -> dict[str, Any]:
    """The file as plain JSON values."""
    body = {
        "model": model,
        "engine": dict(engine),
        "prompts": dict(prompts),
        "rates": rates.to_dict(),
        "num_rounds": num_rounds,
        "left_out": dict(left_out),
        "points": [dict(point) for point in points],
    }
    return make_result(FORMAT, FORMAT_VERSION, argv, ("torch", "transformers"), body)


def print_point(point: Mapping[str, Any]) -> None:
    """One table, a line per method."""
    rows = [_cells(figures) for figures in point["methods"]]
    print_table(_title(point), HEADERS, rows)


def broken_promises(points: Sequence[Mapping[str, Any]]) -> list[str]:
    """A line for each method whose text had to be the target's own, and was not."""
    lines = []
    for point in points:
        for figures in point["methods"]:
            texts = figures["texts"]
            if texts["is_promised"] and texts["num_divergences"]:
                prompt, token = next(iter(texts["first_divergences"].items()))
                lines.append(
                    f"{figures['name']} changed {texts['num_divergences']} of "
                    f"{texts['num_prompts']} texts ({_title(point)}), first prompt {prompt} at "
                    f"output token {token}; this is a bug, please report it"
                )
    return lines


def plot(points: Sequence[Mapping[str, Any]], path: Path) -> None:
    """Write a plot: speed-up, and the milliseconds of a step, for every point.

    Raises:
        ConfigError: matplotlib is missing, or the file cannot be written.
    """
    check_picture(path)
    figure = new_figure(11, 3.6 * len(points))
    panels = figure.subplots(len(points), 2, squeeze=False)
    for (left, right), point in zip(panels, points, strict=True):
        methods = point["methods"]
        names = [figures["name"] for figures in methods]
        left.bar(names, [figures["speed_up"] for figures in methods], color="C0")
        left.axhline(1.0, color="black", linewidth=0.8)
        plain(left, f"Speed-up, {_title(point)}")
        below = [0.0] * len(methods)
        for color, (key, label) in enumerate(
            (("target_ms", "verify"), ("draft_ms", "draft"), ("host_ms", "host"))
        ):
            parts = [figures[key] for figures in methods]
            right.bar(names, parts, bottom=below, label=label, color=f"C{color}")
            below = [a + b for a, b in zip(below, parts, strict=True)]
        known = [figures["memory_floor_ms"] for figures in methods]
        floors = [math.nan if floor is None else floor for floor in known]
        right.plot(names, floors, "k_", markersize=18, label="memory floor")
        plain(right, "Step (ms)")
        right.legend(fontsize=8, frameon=False)
        for axes in (left, right):
            axes.tick_params(axis="x", rotation=30)
    write_picture(figure, path)


def _title(point: Mapping[str, Any]) -> str:
    return f"batch {point['batch_size']}, temperature {point['temperature']:g}"


def _cells(figures: Mapping[str, Any]) -> list[str]:
    acceptance, texts = figures["acceptance"], figures["texts"]
    rates = [f"{rate:.2f}" for rate in acceptance["acceptance_rate_per_pos"]]
    shown = rates[:_MAX_POSITIONS] + ["..."] * (len(rates) > _MAX_POSITIONS)
    different = texts["num_divergences"]
    return [
        figures["name"],
        f"{figures['tokens_per_second']:.1f}",
        f"{figures['speed_up']:.2f}",
        f"{acceptance['acceptance_length']:.2f}",
        f"{acceptance['acceptance_rate']:.2f}" if rates else "-",
        " ".join(shown) or "-",
        *(f"{figures[key]:.3f}" for key in ("step_ms", "target_ms", "draft_ms", "host_ms")),
        share_text(figures["memory_floor_share"]),
        spread_text(figures["spread"]),
        f"{different} of {texts['num_prompts']} differ" if different else "same",
    ]
