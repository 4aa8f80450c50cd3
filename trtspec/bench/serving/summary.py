"""The figures of a load, under the names that the users of `vllm bench serve` know.

Every time is taken at the client. Of requests that succeeded only:

- TTFT, time to first token: from sending a request to its first token event. A request held back by
  the limit of concurrency is sent when its turn comes.
- E2EL, end-to-end latency: from sending to the last event of the answer.
- TPOT, time per output token: (E2EL - TTFT) / (output tokens - 1), one value a request; requests of
  fewer than two tokens have none.
- ITL, inter-token latency: the gaps between token events, those of all requests together. An event
  may carry several tokens, as an engine with speculative decoding emits a step's tokens in one: ITL
  is then the time of a step, TPOT that of a token.
- Throughput: successful requests, their output tokens, their prompt and output tokens, each by the
  duration of the run, from the first sending to the last end.

Tokens are the server's own count (`usage`), never the number of events: where a server gives none,
everything that needs them is None, and `num_without_usage` says for how many requests.
Percentiles interpolate linearly between the two nearest values. Times are milliseconds.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np

from trtspec.bench.serving.answer import RequestRecord

LATENCIES = ("ttft", "tpot", "itl", "e2el")
PERCENTILES = (90, 95, 99)
STATISTICS = ("mean", "median", *(f"p{p}" for p in PERCENTILES))


def summarize(
    records: Sequence[RequestRecord], duration: float, num_prompts: int
) -> dict[str, Any]:
    """All figures of one point; ``duration`` in seconds. Keys: see `vllm bench serve`'s results;
    `num_unfinished`: requests that an interruption kept from their end."""
    good = [record for record in records if record.error is None]
    unknown = sum(r.prompt_tokens is None or r.output_tokens is None for r in good)
    prompt = output = None
    if good and not unknown:
        prompt = sum(r.prompt_tokens or 0 for r in good)
        output = sum(r.output_tokens or 0 for r in good)
    figures: dict[str, Any] = {
        "duration": duration,
        "num_prompts": num_prompts,
        "completed": len(good),
        "failed": len(records) - len(good),
        "num_unfinished": num_prompts - len(records),
        "num_without_usage": unknown,
        "total_input_tokens": prompt,
        "total_output_tokens": output,
        "request_throughput": _rate(len(good), duration),
        "output_throughput": _rate(output, duration),
        "total_token_throughput": _rate(
            None if prompt is None or output is None else prompt + output, duration
        ),
        "max_concurrent_requests": peak_concurrency(good),
    }
    seconds: dict[str, list[float]] = {
        "ttft": [r.ttft for r in good if r.ttft is not None],
        "tpot": [r.tpot for r in good if r.tpot is not None],
        "itl": [gap for r in good for gap in r.itl],
        "e2el": [r.e2e for r in good if r.e2e is not None],
    }
    for name in LATENCIES:
        for statistic, value in statistics(seconds[name]).items():
            figures[f"{statistic}_{name}_ms"] = None if value is None else value * 1e3
    return figures


def statistics(values: Sequence[float]) -> dict[str, float | None]:
    """Mean, median and percentiles of some values; None each if there are none."""
    if not values:
        return dict.fromkeys(STATISTICS)
    points = np.percentile(values, (50, *PERCENTILES))
    return dict(zip(STATISTICS, (float(np.mean(values)), *map(float, points)), strict=True))


def peak_concurrency(records: Sequence[RequestRecord]) -> int:
    """The most requests that were under way at one time; one that ends as another starts does not
    count twice."""
    changes = [(r.start, 1) for r in records]
    changes += [(r.start + (r.e2e or 0.0), -1) for r in records]
    now = most = 0
    for _, change in sorted(changes):
        now += change
        most = max(most, now)
    return most


def failure_reasons(records: Sequence[RequestRecord]) -> dict[str, int]:
    """Why requests failed, and how many for each reason, the most frequent one first."""
    return dict(Counter(r.error for r in records if r.error is not None).most_common())


def _rate(count: int | None, duration: float) -> float | None:
    return None if count is None or duration <= 0 else count / duration
