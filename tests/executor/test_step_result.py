"""StepResult: columns by item, picked, and cut where texts end."""

from __future__ import annotations

import random

import torch

from trtspec.config.sampling import SamplingParams
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import StepResult, TokenLogprobs
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree


def random_step(rng: random.Random) -> tuple[StepPlan, list[list[int]], StepResult]:
    """A plan, what each of its items emits (none: it does not sample, or fails), and the result."""
    items, emitted = [], []
    for i in range(rng.randint(1, 6)):
        request = Request.create(i, [1] * 9, SamplingParams(max_tokens=50), 0, 100)
        samples, rows = rng.random() < 0.7, rng.randint(1, 4)
        items.append(ScheduledRequest(request, 0, rows, rows == 1, 8, samples))
        emitted.append([rng.randrange(100) for _ in range(rng.randint(0, 4))] if samples else [])
    trees = [
        TokenTree.chain([7] * rng.randint(3, 5)) if item.samples and rng.random() < 0.8 else None
        for item in items
    ]
    emitted = [tokens[: 1 + len(tree or ())] for tokens, tree in zip(emitted, trees, strict=True)]
    result = StepResult.of(emitted, DraftBatch.of(trees))
    for i, (item, tokens) in enumerate(zip(items, emitted, strict=True)):
        if item.samples and not tokens:
            result.ends[i] = "error"
        elif tokens and rng.random() < 0.5:
            result.logprobs[i] = [TokenLogprobs(token, 0.0, {}) for token in tokens]
    return StepPlan(tuple(items)), emitted, result


def test_rows_that_stay_are_those_fed_and_those_of_accepted_nodes() -> None:
    for seed in range(200):
        plan, emitted, result = random_step(random.Random(seed))
        expected = [
            0 if result.failed(i) else item.num_rows + max(len(tokens) - 1, 0)
            for i, (item, tokens) in enumerate(zip(plan.items, emitted, strict=True))
        ]
        assert result.num_kept(plan) == expected
        kept, first = [], 0
        for i, (item, tree) in enumerate(zip(plan.items, result.drafts, strict=True)):
            root = first + item.num_rows - 1
            kept.append([] if result.failed(i) else [*range(first, root + 1)])
            kept[-1] += [root + row for row in result.accepted_rows(i)[1:]]
            first = root + 1 + len(tree)
        result.keep_hidden(plan, torch.arange(first)[:, None])
        assert [share.flatten().tolist() for share in result.hidden_of(plan)] == kept


def test_picked_items_keep_what_was_theirs() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        plan, _, whole = random_step(rng)
        places = [i for i in range(len(plan.items)) if rng.random() < 0.6]
        result, picked = whole.pick(places), plan.pick(places)
        assert picked.items == tuple(plan.items[i] for i in places)
        assert result.ends == [whole.ends[i] for i in places]
        for new, i in enumerate(places):
            assert result.emitted(new) == whole.emitted(i)
            assert result.accepted_rows(new) == whole.accepted_rows(i)
            assert result.logprobs.get(new) == whole.logprobs.get(i)
        kept = whole.num_kept(plan)
        assert result.num_kept(picked) == [kept[i] for i in places]


def test_cutting_one_item_leaves_the_others_as_they_are() -> None:
    cuts = 0
    for seed in range(200):
        rng = random.Random(seed)
        _, emitted, result = random_step(rng)
        for i, tokens in enumerate(emitted):
            if tokens and rng.random() < 0.5:
                count = rng.randint(1, len(tokens))
                cuts += count < len(tokens)
                del tokens[count:]
                result.cut(i, count, "stop")
                assert result.ends[i] == "stop"
        assert [result.emitted(i) for i in range(len(emitted))] == emitted
        assert [len(result.accepted_rows(i)) for i in range(len(emitted))] == list(
            map(len, emitted)
        )
        for i, entries in result.logprobs.items():
            assert [entry.token for entry in entries] == emitted[i]
    assert cuts > 50
