"""StepResult: columns by item, spread over those that sample and cut where texts end."""

from __future__ import annotations

import random

import torch

from trtspec.config.sampling import SamplingParams
from trtspec.executor.request import Request
from trtspec.executor.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step_result import StepResult, TokenLogprobs
from trtspec.ops.draft_batch import DraftBatch


def random_step(rng: random.Random) -> tuple[StepPlan, list[list[int]], StepResult]:
    """A plan, what each of its items emits (none: it does not sample, or fails), and the result of
    those that sample."""
    items, emitted, sampled = [], [], []
    for i in range(rng.randint(1, 6)):
        request = Request.create(i, [1] * 9, SamplingParams(max_tokens=50), 0, 100)
        samples, rows = rng.random() < 0.7, rng.randint(1, 4)
        items.append(ScheduledRequest(request, 0, rows, rows == 1, 8, samples))
        tokens = [rng.randrange(100) for _ in range(rng.randint(0, 4))] if samples else []
        emitted.append(tokens)
        if samples:
            sampled.append(tokens)
    result = StepResult.of(sampled)
    for i, tokens in enumerate(sampled):
        if not tokens:
            result.ends[i] = "error"
        elif rng.random() < 0.5:
            result.logprobs[i] = [TokenLogprobs(token, 0.0, {}) for token in tokens]
    return StepPlan(tuple(items)), emitted, result


def test_a_spread_result_says_the_same_of_each_item() -> None:
    for seed in range(200):
        plan, emitted, sampled = random_step(random.Random(seed))
        result = sampled.spread([item.samples for item in plan.items])
        own = -1
        for i, (item, tokens) in enumerate(zip(plan.items, emitted, strict=True)):
            own += item.samples
            assert result.emitted(i) == tokens
            assert result.accepted_rows(i) == [*range(len(tokens))]
            assert result.failed(i) == (item.samples and not tokens)
            told = sampled.logprobs.get(own) if item.samples else None
            assert result.logprobs.get(i) == told


def test_rows_that_stay_are_those_fed_and_those_of_accepted_nodes() -> None:
    for seed in range(200):
        plan, emitted, sampled = random_step(random.Random(seed))
        result = sampled.spread([item.samples for item in plan.items])
        expected = [
            0 if result.failed(i) else item.num_rows + max(len(tokens) - 1, 0)
            for i, (item, tokens) in enumerate(zip(plan.items, emitted, strict=True))
        ]
        assert result.num_kept(plan) == expected
        result.hidden = torch.arange(float(sum(expected)))[:, None]
        shares = result.hidden_of(plan)
        assert [len(share) for share in shares] == expected
        assert torch.cat(list(shares)).tolist() == result.hidden.tolist()


def test_picked_items_keep_what_was_theirs() -> None:
    for seed in range(200):
        rng = random.Random(seed)
        plan, _, sampled = random_step(rng)
        whole = sampled.spread([item.samples for item in plan.items])
        whole.drafts = DraftBatch.none(len(plan.items))
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
        plan, emitted, sampled = random_step(rng)
        result = sampled.spread([item.samples for item in plan.items])
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
