"""Methods side by side in one process: the same prompts, round after round, and medians.

In a round all models are open, anew, as a method that learns from answers would meet those of an
earlier round. They are interleaved by as many prompts as they serve at a time, in alternating
order, so that a slow minute of the machine hits every method alike. Models that do not fit
into memory together are interleaved by whole rounds. A speed-up is the median, over rounds, of the
ratio to the same round without speculation. The figures of a step are those of steps in which every
request generated (`num_verify_steps`), so that prefills do not blur them; tokens per second include
the prefills.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from statistics import median
from time import perf_counter
from typing import Any

from trtspec.bench.report.floor import MachineRates
from trtspec.bench.runs.acceptance import one_for_each
from trtspec.bench.runs.interleaving import spread, turns
from trtspec.bench.runs.methods import BenchMethod
from trtspec.config.sampling import SamplingParams
from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.llmapi.llm import LLM
from trtspec.llmapi.outputs import RequestOutput
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
    """The measurements of one pass over all prompts. totals: by how much the `LLM.get_metrics` with
    the prefix ``verify_`` grew. turn_seconds: of each turn, in the order of the prompts."""

    seconds: float
    tokens: Sequence[Sequence[int]]
    acceptance: SpeculativeMetrics
    totals: Mapping[str, float]
    turn_seconds: Sequence[float] = ()

    @property
    def tokens_per_second(self) -> float:
        return sum(map(len, self.tokens)) / self.seconds

    def per_step(self, name: str) -> float:
        """Mean of a total over the round's verify steps; 0 without any."""
        steps = self.totals["num_verify_steps"]
        return self.totals[name] / steps if steps else 0.0


@dataclass
class Entrant:
    """A method, how its model is opened, and its rounds so far."""

    method: BenchMethod
    open: Callable[[], LLM]
    rounds: list[Round] = field(default_factory=list)


class _RoundUnderWay:
    """A contender's model in a round, and the measurements of its turns."""

    def __init__(self, contender: Entrant, prompts: Sequence[list[int]]) -> None:
        """Open the model and warm it up on the first prompts."""
        self._contender = contender
        self.llm = contender.open()
        short = SamplingParams(max_tokens=WARM_UP_TOKENS, seed=0)
        self.llm.generate(list(prompts[:2]), short, use_tqdm=False)
        self._before = self.llm.get_metrics()
        self._turns: list[float] = []
        self._outputs: list[RequestOutput] = []

    def take_turn(self, prompts: Sequence[list[int]], params: Sequence[SamplingParams]) -> None:
        """Serve these; the error of the first prompt that failed."""
        began = perf_counter()
        outputs = self.llm.generate(list(prompts), list(params), use_tqdm=False)
        self._turns.append(perf_counter() - began)
        for output in outputs:
            if output.error is not None:
                raise output.error
        self._outputs += outputs

    def finish(self) -> None:
        """Add the round to those of the contender."""
        after = self.llm.get_metrics()
        self._contender.rounds.append(
            Round(
                sum(self._turns),
                [output.outputs[0].token_ids for output in self._outputs],
                SpeculativeMetrics.merged(output.metrics for output in self._outputs),
                {name: after[name] - self._before[name] for name in _TOTALS},
                tuple(self._turns),
            )
        )


def run_rounds(
    contenders: Sequence[Entrant],
    prompts: Sequence[list[int]],
    params: SamplingParams,
    rounds: int,
    between: Callable[[], None] = lambda: None,
    turn_size: int | None = None,
) -> None:
    """Run that many further rounds of every contender; after each round ``between`` is called. They
    are interleaved by ``turn_size`` prompts; None: by whole rounds, with one model open at a time.
    """
    each = one_for_each(params, len(prompts))
    for number in range(rounds):
        order = contenders[:: -1 if number % 2 else 1]
        if turn_size is None:
            for contender in order:
                _run_round([contender], prompts, each, len(prompts))
        else:
            _run_round(order, prompts, each, turn_size)
        between()


def _run_round(
    contenders: Sequence[Entrant],
    prompts: Sequence[list[int]],
    params: Sequence[SamplingParams],
    turn_size: int,
) -> None:
    with ExitStack() as stack:
        under_way = []
        for contender in contenders:
            under_way.append(_RoundUnderWay(contender, prompts))
            stack.enter_context(under_way[-1].llm)
        for part, order in turns(under_way, len(prompts), turn_size):
            for one in order:
                one.take_turn(prompts[part], params[part])
        for one in under_way:
            one.finish()


def summarize(
    method: BenchMethod,
    rounds: Sequence[Round],
    baseline: Sequence[Round],
    rates: MachineRates,
    is_promised: bool,
) -> dict[str, Any]:
    """The figures of one method, under the names of `compare_report`; ``baseline``: the same rounds
    without speculation, ``is_promised``: whether the texts must be equal."""
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
        "spread": spread([r.tokens_per_second for r in rounds]),
    }
    set_floor(figures, rates)
    return figures


def set_floor(figures: dict[str, Any], rates: MachineRates) -> None:
    """Set the memory floor of a method's figures, or update it after better rate measurements."""
    num_bytes = figures["weight_bytes_per_step"] + figures["kv_bytes_per_step"]
    figures.update(rates.floor_of(num_bytes, figures["step_ms"] / 1e3).to_dict())


def compare_texts(
    rounds: Sequence[Sequence[Sequence[int]]], expected: Sequence[Sequence[int]], is_promised: bool
) -> dict[str, Any]:
    """Whether every round gave the expected texts, and where the others first differed."""
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
