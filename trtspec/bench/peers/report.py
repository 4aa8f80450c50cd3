"""What `trtspec-bench peers` prints and writes.

The JSON file:

    format, format_version   "trtspec-bench peers", 2
    date, command, commit, machine, versions   see `trtspec.bench.report.result_file`
    note                     how much was asked, in words
    model, prompts           as they were given
    num_rounds, left_out     rounds of each point; methods that do not fit, with their reason
    points                   one for each batch_size and temperature, with its `contenders`:

    engine, mode, version    who; mode: plain, or how it speculates (a peer's: with how
                             many draft tokens)
    failure                  where it has no figures: what its engine said
    tokens_per_second        generated tokens over the time of a round, prefills included
    decode_tokens_per_second the same without the first token of each prompt, and the time of these;
                             null: not measured
    spread                   the fastest round over the slowest, in tokens_per_second
    speed_up                 of tokens_per_second, over trtspec's plain decoding
    num_divergences          prompts whose text is not trtspec's plain one; at a temperature above
                             0 engines draw differently, so it is null for the others
    round_seconds            of each round
    categories               where prompts have kinds and run alone (batch 1): of each
                             tokens_per_second and speed_up, over trtspec's plain decoding

and ``ratios``: plain_over_best_plain, trtspec's plain decoding over the fastest plain decoding of a
peer; best_over_best, its fastest lossless method over the fastest way of any peer; best_over_plain,
over its own plain decoding. Figures are medians over the rounds. In the
table a spread above 1.3 is marked (!): the machine changed its speed meanwhile. Contenders take
turns by as many prompts as they serve at a time, or by rounds where not all models fit into memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import median
from typing import Any

from trtspec.bench.peers.contender import OURS, Contender
from trtspec.bench.report.table import print_table
from trtspec.bench.runs.by_category import by_category, print_categories
from trtspec.bench.runs.interleaving import spread, spread_text

FORMAT, FORMAT_VERSION = "trtspec-bench peers", 2
HEADERS = ("engine", "version", "way", "tokens/s", "x our plain", "decode", "spread", "texts")


def summarize(
    batch_size: int,
    temperature: float,
    contenders: Sequence[Contender],
    kinds: Sequence[str | None] = (),
) -> dict[str, Any]:
    """The figures of a point; the first contender is trtspec's plain decoding. ``kinds``: of the
    prompts."""
    plain = contenders[0]
    lines = []
    for contender in contenders:
        line = {
            "engine": contender.engine,
            "mode": contender.mode,
            "version": contender.version,
            "num_prompts": len(plain.rounds[-1].tokens),
        }
        if contender.failure is None:
            line |= _figures(contender, plain, temperature)
            line["categories"] = by_category(kinds, contender.rounds, plain.rounds)
        else:
            line["failure"] = contender.failure
        lines.append(line)
    return {
        "batch_size": batch_size,
        "temperature": temperature,
        "contenders": lines,
        "ratios": _ratios([each for each in contenders if each.failure is None]),
    }


def _figures(contender: Contender, plain: Contender, temperature: float) -> dict[str, Any]:
    own, expected = contender.rounds[-1].tokens, plain.rounds[-1].tokens
    different = sum(a != b for a, b in zip(own, expected, strict=True))
    is_comparable = temperature == 0 or contender.engine == OURS
    decoding = [each.decode_speed for each in contender.rounds]
    measured = [speed for speed in decoding if speed is not None]
    return {
        "tokens_per_second": contender.speed,
        "decode_tokens_per_second": median(measured) if measured else None,
        "spread": spread([each.speed for each in contender.rounds]),
        "speed_up": contender.speed / plain.speed,
        "num_divergences": different if is_comparable else None,
        "round_seconds": [each.seconds for each in contender.rounds],
    }


def print_point(point: Mapping[str, Any]) -> None:
    """A table, another by kind, and the ratios that matter."""
    rows = [_cells(line) for line in point["contenders"]]
    title = f"batch {point['batch_size']}, temperature {point['temperature']:g}"
    print_table(title, HEADERS, rows)
    measured = [line for line in point["contenders"] if "failure" not in line]
    print_categories([{**line, "name": f"{line['engine']} {line['mode']}"} for line in measured])
    for name, value in point["ratios"].items():
        print(f"{name} {value:.2f}")


def _ratios(contenders: Sequence[Contender]) -> dict[str, float]:
    def fastest(is_ours: bool, only_plain: bool) -> float | None:
        speeds = [
            c.speed
            for c in contenders
            if (c.engine == OURS) == is_ours and (c.is_plain or not only_plain)
        ]
        return max(speeds, default=None)

    plain, best = fastest(True, True), fastest(True, False)
    assert plain is not None and best is not None
    ratios = {"best_over_plain": best / plain}
    peer_plain, peer_best = fastest(False, True), fastest(False, False)
    if peer_plain is not None:
        ratios["plain_over_best_plain"] = plain / peer_plain
    if peer_best is not None:
        ratios["best_over_best"] = best / peer_best
    return ratios


def _cells(line: Mapping[str, Any]) -> list[str]:
    who = [line["engine"], line["version"], line["mode"]]
    if "failure" in line:
        return [*who, "-", "-", "-", "-", line["failure"]]
    different, decoding = line["num_divergences"], line["decode_tokens_per_second"]
    texts = "drawn differently" if different is None else "same"
    if different:
        texts = f"{different} of {line['num_prompts']} differ"
    return [
        *who,
        f"{line['tokens_per_second']:.1f}",
        f"{line['speed_up']:.2f}",
        "-" if decoding is None else f"{decoding:.1f}",
        spread_text(line["spread"]),
        texts,
    ]
