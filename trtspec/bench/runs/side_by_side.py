"""The same prompts with and without speculation: texts, figures, and why one gained nothing."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

from trtspec.bench.runs.interleaving import turns
from trtspec.config.sampling import SamplingParams
from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.llmapi.llm import LLM
from trtspec.llmapi.outputs import RequestOutput

PARTS = ("target_ms", "draft_ms", "host_ms")
NO_GAIN = 1.03  # a ratio up to here may be the machine's doing
FEW_ACCEPTED = 1.05  # tokens a step


@dataclass
class Run:
    """The outputs of one engine, with speculation or without, and its figures.

    seconds: of each turn. metrics: those of `get_metrics` in `PARTS`, and ``num_engine_steps``.
    """

    name: str
    outputs: list[RequestOutput] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    metrics: dict[str, float] = field(default_factory=dict)

    def add(self, outputs: Sequence[RequestOutput], seconds: float) -> None:
        """Add the outputs of a turn."""
        self.outputs += outputs
        self.seconds.append(seconds)

    @property
    def num_tokens(self) -> int:
        return sum(len(c.token_ids) for output in self.outputs for c in output.outputs)

    @property
    def speculation(self) -> SpeculativeMetrics:
        """Over all prompts, without the warm-up."""
        return SpeculativeMetrics.merged(output.metrics for output in self.outputs)

    def count(self, llm: LLM, sign: int) -> None:
        """Subtract the LLM's counters when its turns begin, add them when these are over."""
        now: dict[str, Any] = llm.get_metrics()
        for key in ("num_engine_steps", *PARTS):
            self.metrics[key] = self.metrics.get(key, 0) + sign * now[key]

    def per_step(self, part: str) -> float:
        """Milliseconds."""
        return self.metrics[part] / max(self.metrics["num_engine_steps"], 1)

    @property
    def step_ms(self) -> float:
        return sum(self.per_step(part) for part in PARTS)

    def over(self, other: Run) -> list[float]:
        """The speed relative to the other, in each turn."""
        return [b / a for a, b in zip(self.seconds, other.seconds, strict=True)]


def side_by_side(
    opened: Mapping[str, Callable[[], LLM]],
    ask: Callable[[LLM, list[str]], Sequence[RequestOutput]],
    prompts: list[str],
    size: int,
) -> list[Run]:
    """Ask engines, by the names of their runs, ``size`` prompts at a time. With fewer than all
    prompts the engines are open together and interleaved, so that a slow moment hits all. No prompt
    occurs twice, since some drafters learn from earlier answers."""
    runs = [(Run(name), make) for name, make in opened.items()]
    for group in [runs] if size < len(prompts) else [[run] for run in runs]:
        with ExitStack() as stack:
            pairs = [(run, stack.enter_context(make())) for run, make in group]
            for run, llm in pairs:
                llm.generate("warm up", SamplingParams(max_tokens=8))
                run.count(llm, -1)
            for part, order in turns(pairs, len(prompts), size):
                for run, llm in order:
                    began = time.perf_counter()
                    run.add(ask(llm, prompts[part]), time.perf_counter() - began)
            for run, llm in pairs:
                run.count(llm, 1)
    return [run for run, _ in runs]


def report(runs: list[Run], prompts: Sequence[str]) -> bool:
    """Print texts and figures; True if all runs produced the same tokens."""
    identical = True
    for index, base in enumerate(runs[0].outputs):
        for sample, completion in enumerate(base.outputs):
            print(f"[{index}] Prompt: {prompts[index]!r}, Generated text: {completion.text!r}")
            if completion.logprobs and completion.cumulative_logprob is not None:
                mean = completion.cumulative_logprob / len(completion.logprobs)
                print(f"    mean logprob {mean:.4f}")
            for other in runs:
                output = other.outputs[index]
                if output.error is not None:
                    print(f"    {other.name:12} failed: {output.error}")
                    identical = False
                    continue
                metrics = output.outputs[sample].metrics
                same = output.outputs[sample].token_ids == completion.token_ids
                identical &= same
                print(
                    f"    {other.name:12} acceptance length {metrics.acceptance_length:.2f}, "
                    f"acceptance rate {metrics.acceptance_rate:.2f}, "
                    f"steps {metrics.num_steps}, text {'identical' if same else 'DIFFERENT'}"
                )
                if other is not runs[0] and len(other.seconds) == len(prompts):
                    print(f"    {'':12} {gain_of_prompt(runs[0], other, index)}")
                written = output.outputs[sample].kv_transfer_params
                if written:
                    print(f"    {dict(written)}")
    print()
    for run in runs:
        target, draft, host = (run.per_step(part) for part in PARTS)
        print(
            f"{run.name:12} {run.num_tokens / sum(run.seconds):8.1f} tokens/s   "
            f"step {run.step_ms:.2f} ms "
            f"(target {target:.2f}, draft {draft:.2f}, host {host:.2f})"
        )
    for run in runs[1:]:
        rates = " ".join(f"{rate:.2f}" for rate in run.speculation.acceptance_rate_per_pos)
        print(f"acceptance   length {run.speculation.acceptance_length:.2f}, per position {rates}")
        _report_gain(runs[0], run)
    print(f"texts        {'identical' if identical else 'DIFFERENT'}")
    return identical


def gain_of_prompt(base: Run, run: Run, index: int) -> str:
    """In a line, how much faster a prompt with a turn of its own was, and why or why not."""
    metrics = run.outputs[index].metrics
    gain = run.over(base)[index]
    if gain > NO_GAIN:
        cause = "gained"
    elif metrics.num_drafts < metrics.num_steps / 2:
        cause = "no gain, most steps had no draft"
    elif metrics.acceptance_length < FEW_ACCEPTED:
        cause = "no gain, hardly any draft was accepted"
    else:
        cause = "no gain, steps took as much longer"
    return (
        f"{gain:.2f} x: {cause}: {metrics.acceptance_length:.2f} tokens a step, "
        f"{metrics.num_drafts} of {metrics.num_steps} steps had drafts, "
        f"{metrics.num_accepted_tokens} of {metrics.num_draft_tokens} drafted tokens accepted"
    )


def _report_gain(base: Run, run: Run) -> None:
    turns = run.over(base)
    gain = sum(base.seconds) / sum(run.seconds)
    spread = f" ({', '.join(f'{turn:.2f}' for turn in turns)})" if len(turns) > 1 else ""
    print(f"speed-up     {gain:8.2f} x{spread}")
    if gain <= NO_GAIN:
        print(f"no gain      {why_no_gain(base, run)}")


def why_no_gain(base: Run, run: Run) -> str:
    """In a line, by what a step of the run costs more than one of the base."""
    length = run.speculation.acceptance_length
    more = {part: run.per_step(part) - base.per_step(part) for part in PARTS}
    causes = {
        "target_ms": "more rows to verify cost the target more than they yield",
        "draft_ms": "drafting is too dear for this target",
        "host_ms": "the target is so small that the work around its calls decides",
    }
    if length < FEW_ACCEPTED:
        cause = "hardly any draft was accepted"
    else:
        cause = causes[max(more, key=lambda part: more[part])]
    times = run.step_ms / base.step_ms if base.step_ms else 1.0
    return (
        f"{cause}: a step emits {length:.2f} tokens and takes {times:.2f} times as long as one "
        "without drafts"
    )
