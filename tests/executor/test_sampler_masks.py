"""Options that need no logits are a mask of the call that samples: the same results as if the
logits had been changed one request after the other."""

from __future__ import annotations

import random

import numpy as np
import numpy.typing as npt
import pytest
import torch
from torch import Tensor

from trtspec.config.sampling import SamplingParams
from trtspec.executor.step import sampling_rows
from trtspec.executor.step.request import Request
from trtspec.executor.step.request_processors import LogitsChange, RequestProcessors
from trtspec.executor.step.sampler import Sampler
from trtspec.executor.step.verification import places
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree

from .verifying import unpacked, verify_trees

V = 8
OPTIONS = (
    {"logit_bias": {1: 2.5, 3: -4.0}},
    {"min_tokens": 3, "logit_bias": {5: 1.5}},
    {"bad_words": [[2], [1, 4], [4, 6, 0]]},
    {"min_tokens": 2, "bad_words": [[3, 3], [5]], "logit_bias": {3: 3.0, 5: 9.0}},
    {},
)
PENALTIES = {"presence_penalty": 1.5, "frequency_penalty": 0.5}


class NoRule:
    """Sends all rows the way of ops over tensors, and changes nothing."""

    def force(
        self, request: Request, tree: TokenTree, sampled: npt.NDArray[np.int64], logits: Tensor
    ) -> None:
        pass


def world(seed: int, penalised: bool) -> tuple[list[Request], list[TokenTree], Tensor]:
    rng = random.Random(seed)
    requests, trees = [], []
    for id, chosen in enumerate(rng.choices(OPTIONS, k=4)):
        options = {**chosen, **(PENALTIES if penalised and id == 1 else {})}
        params = SamplingParams(max_tokens=9, temperature=rng.choice((0, 0.8)), **options)
        prompt = [rng.randrange(V) for _ in range(3)]
        requests.append(Request.create(id, prompt, params, seed + id, 64, eos_token_ids=(5,)))
        size = rng.randrange(5)
        parents = [rng.randrange(-1, node) for node in range(size)]
        trees.append(TokenTree([rng.randrange(V) for _ in range(size)], parents))
    rows = len(trees) + sum(map(len, trees))
    return requests, trees, torch.randn(rows, V, generator=torch.Generator().manual_seed(seed)) * 3


@pytest.mark.parametrize("penalised", [False, True])
@pytest.mark.parametrize("rule", [None, NoRule()], ids=["host", "ops"])
def test_equals_changing_the_logits(
    rule: NoRule | None, penalised: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    applied: list[LogitsChange] = []
    apply = LogitsChange.apply
    monkeypatch.setattr(LogitsChange, "apply", lambda c, x: (applied.append(c), apply(c, x))[1])
    changed, emitted, others = 0, 0, 0
    for seed in range(40):
        requests, trees, logits = world(seed, penalised)
        plan, drafts, expected = unpacked(requests), DraftBatch.of(trees), logits.clone()
        processors = RequestProcessors()
        for request in requests:
            processors.begin(request)
        changes = processors.changes(plan, drafts)
        for change, own in zip(changes, places(plan, drafts), strict=True):
            if change is not None:
                change.apply(expected[own])
        result = sampling_rows.verify(plan, drafts, expected)
        plain = sampling_rows.verify(plan, drafts, logits)
        applied.clear()
        verified = verify_trees(Sampler(rule), requests, trees, logits)
        assert len(applied) == (1 if penalised else 0)  # only what has to see the logits
        assert torch.equal(logits, expected)
        for i, one in enumerate(verified):
            assert one.tokens == result.emitted(i) and one.rows == result.accepted_rows(i)
            assert one.reason == result.ends[i]
            others += one.tokens != plain.emitted(i)
        changed += sum(change is not None for change in changes)
        emitted += len(result.tokens)
    assert changed > 80 and emitted > 170 and others > 20
