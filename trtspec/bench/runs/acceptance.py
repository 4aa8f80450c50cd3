"""Acceptance of a speculative method over a data set, in the field's terms.

Every figure is one of `trtspec.executor.metrics`, read from `LLM.get_metrics()` for the whole run
and from a request's own `metrics` for groups; nothing is counted a second time here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trtspec.bench.data.dataset import BenchPrompt
from trtspec.config.sampling import SamplingParams
from trtspec.errors import TrtspecError
from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.llmapi.llm import LLM
from trtspec.llmapi.outputs import RequestOutput

RULE = "-" * 50


@dataclass(frozen=True)
class AcceptanceReport:
    """The result of a run. ``metrics``: `LLM.get_metrics()` after it; ``outputs`` in the order of
    ``prompts``, a failed one with its error."""

    prompts: Sequence[BenchPrompt]
    outputs: Sequence[RequestOutput]
    metrics: dict[str, Any]

    @property
    def failures(self) -> list[tuple[BenchPrompt, TrtspecError]]:
        """Prompts without an answer, such as those longer than max_seq_len."""
        pairs = zip(self.prompts, self.outputs, strict=True)
        return [(prompt, output.error) for prompt, output in pairs if output.error is not None]

    @property
    def num_output_tokens(self) -> int:
        """All generated tokens, including those of prefills (which are not verify steps)."""
        return sum(len(c.token_ids) for output in self.outputs for c in output.outputs)

    def by_category(self) -> dict[str, SpeculativeMetrics]:
        """Figures of each category, in the order of their first prompt; empty without any."""
        groups: dict[str, SpeculativeMetrics] = {}
        for prompt, output in zip(self.prompts, self.outputs, strict=True):
            if prompt.question.category is not None:
                group = groups.setdefault(prompt.question.category, SpeculativeMetrics())
                group.merge(output.metrics)
        return groups

    def describe(self) -> str:
        """The report as text: counts, then rates with the counts that they come from."""
        m = self.metrics
        lines = [
            RULE,
            f"total_num_output_tokens: {self.num_output_tokens}",
            f"num_steps: {m['num_steps']}",
            f"num_drafts: {m['num_drafts']}",
            f"num_draft_tokens: {m['num_draft_tokens']}",
            f"num_accepted_tokens: {m['num_accepted_tokens']}",
            f"mean acceptance length: {m['acceptance_length']:.2f} "
            f"({m['num_emitted_tokens']} tokens in {m['num_steps']} steps)",
            f"draft acceptance rate: {m['acceptance_rate']:.2f} "
            f"({m['num_accepted_tokens']} of {m['num_draft_tokens']} draft tokens)",
            RULE,
        ]
        counts, drafts = m["num_accepted_tokens_per_pos"], m["num_drafts_per_pos"]
        for i, rate in enumerate(m["acceptance_rate_per_pos"]):
            lines.append(f"acceptance at token {i}: {rate:.2f} ({counts[i]} of {drafts[i]} drafts)")
        groups = self.by_category()
        if len(groups) > 1:
            lines.append(RULE)
            wide = max(map(len, groups))
            for name, group in groups.items():
                lines.append(
                    f"{name:<{wide}}  acceptance length {group.acceptance_length:.2f} "
                    f"({group.num_emitted_tokens} tokens in {group.num_steps} steps)"
                )
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values: the metrics whole, by category and by request."""
        requests = []
        for prompt, output in zip(self.prompts, self.outputs, strict=True):
            question, completion = prompt.question, output.outputs[0]
            requests.append(
                {
                    "question_id": question.id,
                    "category": question.category,
                    "num_prompt_tokens": len(prompt.token_ids),
                    "num_output_tokens": len(completion.token_ids),
                    "finish_reason": completion.finish_reason,
                    "error": None if output.error is None else str(output.error),
                    "metrics": output.metrics.to_dict(),
                }
            )
        return {
            "total_num_output_tokens": self.num_output_tokens,
            "metrics": self.metrics,
            "categories": {name: m.to_dict() for name, m in self.by_category().items()},
            "requests": requests,
        }


def one_for_each(params: SamplingParams, count: int) -> list[SamplingParams]:
    """Options for that many prompts: the first gets the seed, each further one the next, so that no
    two share their noise."""
    seed = params.seed
    return [replace(params, seed=None if seed is None else seed + i) for i in range(count)]


def measure(
    llm: LLM, prompts: Sequence[BenchPrompt], params: SamplingParams, use_tqdm: bool = True
) -> AcceptanceReport:
    """Generate for every prompt and report.

    ``llm`` must be new, as its metrics count from its start. Each prompt has a seed of its own, see
    `one_for_each`.

    Raises:
        TrtspecError: every prompt failed; the error of the first one.
    """
    each = one_for_each(params, len(prompts))
    outputs = llm.generate([list(prompt.token_ids) for prompt in prompts], each, use_tqdm)
    report = AcceptanceReport(prompts, outputs, llm.get_metrics())
    failures = report.failures
    if failures and len(failures) == len(prompts):
        raise failures[0][1]
    return report
