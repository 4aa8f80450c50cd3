"""Methods side by side in one process: the same prompts, round after round, and medians.

Rounds go through all methods in turn, forwards and backwards alternately, so that a drifting
machine treats all alike; models are opened anew for each, as a method that learns from answers
would meet those of an earlier round. A speed-up is the median, over rounds, of the ratio to the
same round without speculation. The figures of a step are those of steps in which every request
generated (`num_verify_steps`), so that prefills do not blur them; tokens per second include the
prefills.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from trtspec.bench.acceptance import one_for_each
from trtspec.bench.floor import MachineRates
from trtspec.bench.methods import Method
from trtspec.config.sampling import SamplingParams
from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.llmapi.llm import LLM
from trtspec.speculative.options import speculative_to_dict

WARM_UP_TOKENS = 8
_TOTALS = (
    "num_verify_steps",
    "verify_ms",
    "verify_target_ms",
    "verify_draft_ms",
    "verify_host_ms",
    "verify_weight_bytes",
    "verify_kv_bytes",
)


@dataclass(frozen=True)
class Round:
    """What one pass over all prompts measured. totals: what the names of `LLM.get_metrics` that
    begin with ``verify_`` grew by."""

    seconds: float
    tokens: Sequence[Sequence[int]]
    acceptance: SpeculativeMetrics
    totals: Mapping[str, float]

    @property
    def tokens_per_second(self) -> float:
        return sum(map(len, self.tokens)) / self.seconds

    def per_step(self, name: str) -> float:
        """Mean of a total over the round's verify steps; 0 without any."""
        steps = self.totals["num_verify_steps"]
        return self.totals[name] / steps if steps else 0.0


@dataclass
class Contender:
    """A method, what opens its model, and its rounds so far."""

    method: Method
    open: Callable[[], LLM]
    rounds: list[Round] = field(default_factory=list)

    def run(self, prompts: Sequence[list[int]], params: Sequence[SamplingParams]) -> None:
        """One round; the error of the first prompt that failed."""
        with self.open() as llm:
            short = SamplingParams(max_tokens=WARM_UP_TOKENS, seed=0)
            llm.generate(list(prompts[:2]), short, use_tqdm=False)
            before = llm.get_metrics()
            began = perf_counter()
            outputs = llm.generate(list(prompts), list(params), use_tqdm=False)
            seconds = perf_counter() - began
            after = llm.get_metrics()
        for output in outputs:
            if output.error is not None:
                raise output.error
        self.rounds.append(
            Round(
                seconds,
                [output.outputs[0].token_ids for output in outputs],
                SpeculativeMetrics.merged(output.metrics for output in outputs),
                {name: after[name] - before[name] for name in _TOTALS},
            )
        )


def run_rounds(
    contenders: Sequence[Contender],
    prompts: Sequence[list[int]],
    params: SamplingParams,
    rounds: int,
    between: Callable[[], None] = lambda: None,
) -> None:
    """Give every contender so many rounds more; after each round ``between`` is called."""
    each = one_for_each(params, len(prompts))
    for number in range(rounds):
        for contender in contenders[:: -1 if number % 2 else 1]:
            contender.run(prompts, each)
        between()


def summarize(
    method: Method,
    rounds: Sequence[Round],
    baseline: Sequence[Round],
    rates: MachineRates,
    is_promised: bool,
) -> dict[str, Any]:
    """The figures of one method, under the names of `trtspec.bench.compare_report`; ``baseline``:
    the same rounds without speculation, ``is_promised``: whether the texts must be equal."""
    steps = {name: median(r.per_step(name) for r in rounds) for name in _TOTALS[1:]}
    step_ms = steps["verify_ms"]
    figures = {
        "name": method.name,
        "speculative_config": speculative_to_dict(method.config) if method.config else None,
        "tokens_per_second": median(r.tokens_per_second for r in rounds),
        "speed_up": median(
            own.tokens_per_second / other.tokens_per_second
            for own, other in zip(rounds, baseline, strict=True)
        ),
        "step_ms": step_ms,
        "target_ms": steps["verify_target_ms"],
        "draft_ms": steps["verify_draft_ms"],
        "host_ms": steps["verify_host_ms"],
        "weight_bytes_per_step": steps["verify_weight_bytes"],
        "kv_bytes_per_step": steps["verify_kv_bytes"],
        "memory_floor_ms": None,
        "memory_floor_share": None,
        "acceptance": SpeculativeMetrics.merged(r.acceptance for r in rounds).to_dict(),
        "texts": compare_texts(
            [r.tokens for r in rounds], baseline[0].tokens, is_promised and method.is_lossless
        ),
        "round_seconds": [r.seconds for r in rounds],
    }
    set_floor(figures, rates)
    return figures


def set_floor(figures: dict[str, Any], rates: MachineRates) -> None:
    """Set the memory floor of a method's figures; again, where rates were measured better since."""
    num_bytes = figures["weight_bytes_per_step"] + figures["kv_bytes_per_step"]
    figures.update(rates.floor_of(num_bytes, figures["step_ms"] / 1e3).to_dict())


def compare_texts(
    rounds: Sequence[Sequence[Sequence[int]]], expected: Sequence[Sequence[int]], is_promised: bool
) -> dict[str, Any]:
    """Whether every round gave the expected texts, and where those that differ first did so."""
    divergences: dict[int, int] = {}
    for texts in rounds:
        for i, (text, wanted) in enumerate(zip(texts, expected, strict=True)):
            place = first_divergence(text, wanted)
            if place is not None:
                divergences[i] = min(place, divergences.get(i, place))
    return {
        "is_promised": is_promised,
        "num_prompts": len(expected),
        "num_divergences": len(divergences),
        "first_divergences": {str(i): place for i, place in sorted(divergences.items())},
    }


def first_divergence(text: Sequence[int], expected: Sequence[int]) -> int | None:
    """The output index of the first token that differs, or is missing on one side; None: equal."""
    for i, (a, b) in enumerate(zip(text, expected, strict=False)):
        if a != b:
            return i
    return None if len(text) == len(expected) else min(len(text), len(expected))
