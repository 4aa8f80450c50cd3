"""Acceptance during a run: a server's counters before and after it."""

from __future__ import annotations

import math
import re
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

# As vLLM names its counters, whatever stands before the colon; `steps` is trtspec's own.
_COUNTER = re.compile(
    r"(?:[A-Za-z_]\w*:)?spec_decode_"
    r"(?P<name>num_drafts|num_draft_tokens|num_accepted_tokens|num_accepted_tokens_per_pos|steps)"
    r"_total(?:\{(?P<labels>.*)\})?\s+(?P<value>\S+)(?:\s+-?\d+)?\s*"
)
_LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


@dataclass(frozen=True)
class SpeculationCounters:
    """The counters at one moment, summed over engines and models.

    steps: verify steps by the number of drafts they accepted; empty where a server lacks them.
    """

    drafts: int
    draft_tokens: int
    accepted_tokens: int
    accepted_per_pos: dict[int, int] = field(default_factory=dict)
    steps: dict[int, int] = field(default_factory=dict)


def read_counters(metrics: str | None) -> SpeculationCounters | None:
    """The counters in the text of /metrics (Prometheus' format); None if it has none of them."""
    plain: dict[str, int] = defaultdict(int)
    by_index: dict[str, dict[int, int]] = defaultdict(lambda: defaultdict(int))
    for line in (metrics or "").splitlines():
        match = _COUNTER.fullmatch(line)
        if match is None:
            continue
        name = match["name"]
        try:
            value = float(match["value"])
        except ValueError:
            continue
        if not math.isfinite(value):
            continue
        labels = dict(_LABEL.findall(match["labels"] or ""))
        index = labels.get("position" if name.endswith("per_pos") else "accepted", "")
        if name not in ("num_accepted_tokens_per_pos", "steps"):
            plain[name] += int(value)
        elif index.isdecimal():
            by_index[name][int(index)] += int(value)
    if "num_drafts" not in plain or "num_draft_tokens" not in plain:
        return None
    return SpeculationCounters(
        plain["num_drafts"],
        plain["num_draft_tokens"],
        plain["num_accepted_tokens"],
        dict(by_index["num_accepted_tokens_per_pos"]),
        dict(by_index["steps"]),
    )


def acceptance(
    before: SpeculationCounters | None, after: SpeculationCounters | None
) -> dict[str, Any] | None:
    """The figures of what happened between two moments, under the names of `LLM.get_metrics()`.

    `acceptance_length` is emitted tokens per verify step where the server counts steps
    (`acceptance_length_per` is then "step"), else, as vLLM has it, 1 + accepted drafts per step
    that had a draft ("draft"). All requests of the server count, whoever sent them. None where
    there are no counters, nothing was drafted, or a counter fell (the server was restarted).
    """
    if before is None or after is None:
        return None
    drafts = after.drafts - before.drafts
    draft_tokens = after.draft_tokens - before.draft_tokens
    accepted = after.accepted_tokens - before.accepted_tokens
    per_pos = _difference(after.accepted_per_pos, before.accepted_per_pos)
    histogram = _difference(after.steps, before.steps)
    if min(accepted, *per_pos, *histogram, 0) < 0 or drafts <= 0 or draft_tokens <= 0:
        return None
    steps = sum(histogram)
    return {
        "acceptance_length": 1 + accepted / (steps or drafts),
        "acceptance_length_per": "step" if steps else "draft",
        "acceptance_rate": accepted / draft_tokens,
        "num_steps": steps or None,
        "num_drafts": drafts,
        "num_draft_tokens": draft_tokens,
        "num_accepted_tokens": accepted,
        "num_accepted_tokens_per_pos": per_pos,
        "acceptance_rate_per_pos": [count / drafts for count in per_pos],
        "histogram": histogram or None,
    }


def _difference(after: dict[int, int], before: dict[int, int]) -> list[int]:
    return [after.get(i, 0) - before.get(i, 0) for i in range(max([*after, *before, -1]) + 1)]
