"""Texts that may differ where two tokens were as good as each other."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from transformers import PreTrainedModel

from trtspec import SamplingParams
from trtspec.ops.sampling import gumbel_noise

CLOSE = 1e-4
"""Scores that another order of float32 sums may put in another order."""


def assert_same_but_for_ties(
    model: PreTrainedModel,
    prompts: Sequence[Sequence[int]],
    one: Sequence[Sequence[int]],
    other: Sequence[Sequence[int]],
    params: SamplingParams,
) -> None:
    """Of each prompt, the texts are equal up to the first token at which the ``model`` scores the
    two by less than `CLOSE` apart, noise and temperature included."""
    for prompt, a, b in zip(prompts, one, other, strict=True):
        differs = (i for i, pair in enumerate(zip(a, b, strict=False)) if pair[0] != pair[1])
        first = next(differs, None)
        if first is None:
            assert len(a) == len(b)
            continue
        with torch.no_grad():
            logits = model(torch.tensor([[*prompt, *a[:first]]])).logits[0, -1].double()
        ids = torch.tensor([a[first], b[first]])
        scores = logits[ids] / (params.temperature or 1.0)
        if params.temperature:
            seed = torch.tensor(params.seed)
            scores += gumbel_noise(ids, seed, torch.tensor(0), torch.tensor(first))
        assert abs(scores[0] - scores[1]) < CLOSE, (first, ids, scores)
