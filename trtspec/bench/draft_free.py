"""Times drafters without a network: taking in a text, and a step's draft, behind a long history.

    python -m trtspec.bench.draft_free [--methods M ...] [--tokens N] [--steps N]

Methods are spelled as those of `trtspec-bench compare`; by default all that need no draft.
Texts: Python's standard library, token by token as the embedded model reads it; one of uniformly
random tokens; one that repeats its last 200 tokens with a change in 20; and one with a period of 7.
An earlier request was answered with the same text, for drafters that remember. Times are the CPU's,
so that other work on the machine does not count, and include the calls from Python. `drafted` says
how many tokens a step's draft has, `right` how many of them the text goes on with.
"""

from __future__ import annotations

import argparse
import gc
import random
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tokenizers import Tokenizer

from trtspec.bench.data.corpus import standard_library
from trtspec.bench.doctor.agreement import matched_depth
from trtspec.bench.runs.methods import fitting_methods, read_methods
from trtspec.config.decoding import DecodingConfig
from trtspec.config.sampling import SamplingParams
from trtspec.executor.step.drafter import Drafter
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch
from trtspec.speculative.registry import make_drafter

TOKENIZER = Path(__file__).resolve().parents[1] / "assets" / "trtspec-tiny" / "tokenizer.json"


@dataclass(frozen=True)
class DraftTimes:
    """history: seconds to index a token of a long prompt; steps: seconds of each step, which
    indexes one token and drafts after it; drafted, right: mean tokens of a step's draft."""

    history: float
    steps: Sequence[float]
    drafted: float
    right: float


def library_text(count: int) -> list[int]:
    """The first `count` tokens of the held-out part of the standard library."""
    tokenizer = Tokenizer.from_file(str(TOKENIZER))
    text: list[int] = []
    for file in standard_library()[1]:
        text.extend(tokenizer.encode(file).ids)
        if len(text) >= count:
            break
    return text[:count]


def repeating_text(count: int, period: int, change: float, vocab: int) -> list[int]:
    """Each token is the one `period` before, except for a share of `change` (all of them: 1)."""
    chance = random.Random(0)
    text: list[int] = []
    for i in range(count):
        same = i >= period and chance.random() >= change
        text.append(text[i - period] if same else chance.randrange(vocab))
    return text


def measure(config: DecodingConfig, text: Sequence[int], steps: int) -> DraftTimes:
    """All but the last ``steps`` tokens as a prompt, then token by token with a draft after each.
    ConfigError for a method that drafts with a network."""
    drafter, history, coming = make_drafter(config), list(text[:-steps]), list(text[-steps:])
    _answer(drafter, _request(0, history[:1], len(text)), 1, history[1:])
    drafter.release(0)

    request = _request(1, history, len(text) + config.num_rows)
    begin = time.thread_time()
    _answer(drafter, request, len(history), coming[:1])
    _draft(drafter, request)
    taken = time.thread_time() - begin
    times, drafted, right = [], 0, 0
    for i, token in enumerate(coming[1:], 2):
        begin = time.thread_time()
        _answer(drafter, request, 1, [token])
        drafts = _draft(drafter, request)
        times.append(time.thread_time() - begin)
        (tree,) = drafts
        drafted += len(tree)
        right += matched_depth(tree, coming[i:])
    drafter.release(1)
    return DraftTimes(taken / len(history), times, drafted / len(times), right / len(times))


def mean_and_tail(times: Sequence[float]) -> str:
    """The mean, and what one call in a hundred exceeds."""
    tail = sorted(times)[len(times) * 99 // 100]
    return f"{sum(times) / len(times) * 1e6:5.2f} us (99 %: {tail * 1e6:5.1f})"


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--methods", nargs="*", help="as of trtspec-bench compare")
    parser.add_argument("--tokens", type=int, default=100_000)
    parser.add_argument("--steps", type=int, default=5_000, help="drafts behind each text")
    args = parser.parse_args(argv)
    count = args.tokens + args.steps
    texts = {
        "standard library": library_text(count),
        "random of 1000": repeating_text(count, 1, 1.0, 1000),
        "random of 4": repeating_text(count, 1, 1.0, 4),
        "repeats 200": repeating_text(count, 200, 0.05, 1000),
        "period 7": repeating_text(count, 7, 0.0, 1000),
    }
    given = args.methods is not None
    gc.disable()  # nothing here makes cycles
    for method in read_methods(args.methods, []) if given else fitting_methods([]):
        if method.config is None:
            continue
        for name, text in texts.items():
            cost = measure(method.config, text, args.steps)
            print(
                f"{method.name:12} {name:18}: takes in {cost.history * 1e6:5.2f} us a token; "
                f"a step {mean_and_tail(cost.steps)}; drafted {cost.drafted:4.1f}, "
                f"right {cost.right:4.1f}"
            )


def _request(id: int, prompt: Sequence[int], length: int) -> Request:
    return Request.create(id, prompt, SamplingParams(max_tokens=length), 0, 2 * length)


def _answer(drafter: Drafter, request: Request, rows: int, tokens: Sequence[int]) -> None:
    """A step that was fed the last ``rows`` tokens emits these."""
    start = len(request.tokens) - rows
    is_generation = request.num_output_tokens > 0
    request.tokens.extend(tokens)
    item = ScheduledRequest(request, start, rows, is_generation, 0, samples=True)
    drafter.on_accepted(StepPlan((item,)), StepResult.of([tokens]))


def _draft(drafter: Drafter, request: Request) -> DraftBatch:
    start, nodes = len(request.tokens) - 1, drafter.needs.max_nodes
    item = ScheduledRequest(request, start, 1, True, nodes, samples=True)
    return drafter.prepare_draft_tokens(StepPlan((item,)))


if __name__ == "__main__":
    main()
