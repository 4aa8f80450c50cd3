"""Acceptance of a trained head, measured with the engine that will serve it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from trtspec.config.sampling import SamplingParams
from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.llmapi.llm import LLM

TEMPERATURES = (0.0, 1.0)


@dataclass(frozen=True)
class Measured:
    """Over ``num_prompts`` held-out prompts: tokens emitted per step at each temperature."""

    num_prompts: int
    draft_tokens: int
    acceptance_length: dict[float, float]

    def describe(self) -> str:
        parts = (
            f"{length:.2f} at temperature {t:g}" for t, length in self.acceptance_length.items()
        )
        return f"{', '.join(parts)} ({self.num_prompts} prompts, drafts of {self.draft_tokens})"


def measure(
    model: str | Path,
    config: dict[str, Any],
    prompts: Sequence[Sequence[int]],
    max_tokens: int = 128,
    **options: Any,
) -> Measured:
    """``config``: the speculative config with the head. ``options``: of `LLM`.

    Raises:
        TrtspecError: the engine cannot be built or run.
    """
    found: dict[float, float] = {}
    with LLM(model, speculative_config=config, **options) as llm:
        for temperature in TEMPERATURES:
            params = [
                SamplingParams(max_tokens=max_tokens, temperature=temperature, seed=index)
                for index in range(len(prompts))
            ]
            outputs = llm.generate([list(p) for p in prompts], params, use_tqdm=False)
            for output in outputs:
                if output.error is not None:
                    raise output.error
            metrics = SpeculativeMetrics.merged(output.metrics for output in outputs)
            found[temperature] = metrics.acceptance_length
    return Measured(len(prompts), config["num_speculative_tokens"], found)
