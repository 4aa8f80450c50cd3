"""Forced acceptance while serving: what becomes of a step is drawn by its number."""

from __future__ import annotations

from typing import Any

from trtspec.config.sampling import SamplingParams

from .. import inside
from .helpers import TinyModels, chain, eight_prompts, open_llm

STEPS = 16
RATES = [0.8, 0.6, 0.5, 0.3]


def accepted_by_step(models: TinyModels, length: int) -> list[list[int]]:
    """Drafts accepted of each request in its first steps, with that many drafted."""
    config = chain(models.draft("llama"), length)
    config["simulate_acceptance"] = RATES[:length]
    counts: dict[int, list[int]] = {}
    with open_llm(models.folder("llama"), config) as llm:
        drafter: Any = inside.drafter(llm)
        given = drafter.on_accepted

        def on_accepted(batch: Any, result: Any) -> Any:
            for i, item in enumerate(batch.items):
                if item.is_generation:
                    counts.setdefault(item.request.id, []).append(result.num_emitted(i) - 1)
            return given(batch, result)

        drafter.on_accepted = on_accepted
        params = SamplingParams(max_tokens=STEPS * (1 + length), seed=3, ignore_eos=True)
        llm.generate(eight_prompts(520), params, use_tqdm=False)
    return [steps[:STEPS] for _, steps in sorted(counts.items())]


def test_longer_drafts_have_the_luck_of_shorter_ones(models: TinyModels) -> None:
    short, long = accepted_by_step(models, 2), accepted_by_step(models, 4)
    assert [[min(accepted, 2) for accepted in steps] for steps in long] == short
    assert {accepted for steps in long for accepted in steps} == {0, 1, 2, 3, 4}
