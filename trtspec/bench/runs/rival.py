"""Rival: one setting of a race, on an engine that stays open from round to round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from time import perf_counter

from trtspec.config.sampling import SamplingParams
from trtspec.llmapi.llm import LLM

BASELINE = "none"


@dataclass
class Rival:
    """One setting: its model, and what each round measured."""

    name: str
    llm: LLM
    seconds: list[float] = field(default_factory=list)
    tokens: list[list[int]] = field(default_factory=list)

    def run(
        self, prompts: Sequence[list[int]], params: SamplingParams | Sequence[SamplingParams]
    ) -> None:
        """One round: all prompts at once."""
        began = perf_counter()
        outputs = self.llm.generate(list(prompts), params, use_tqdm=False)
        self.seconds.append(perf_counter() - began)
        self.tokens = [output.outputs[0].token_ids for output in outputs]
