"""Sampler: the rows that it verifies, and what it makes of those without a usable number."""

from __future__ import annotations

import random

import pytest
import torch

from trtspec.config.sampling import SamplingParams
from trtspec.executor.engines.verify_call import VerifyOutputs
from trtspec.executor.step import sampling_rows
from trtspec.executor.step.request import Request
from trtspec.executor.step.sampler import Sampler
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import REASONS
from trtspec.ops.acceptance import accept
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.sampling import COLUMN_DTYPES, sample
from trtspec.ops.tree import TokenTree

from .verifying import unpacked, verify_trees

V = 12


@pytest.mark.parametrize("bad", [0, 1, 2, 3], ids=["root", "first", "last", "beside"])
def test_an_unusable_row_takes_nothing_from_those_before_it(bad: int) -> None:
    """As if the step had ended there: the row fails when it is the first of the next one."""
    request = Request.create(
        7, [1, 2], SamplingParams(max_tokens=9, temperature=0, logprobs=1), 0, 100
    )
    tree = TokenTree([5, 6, 3], [-1, 0, -1])
    logits = torch.zeros(4, V)
    for row, token in enumerate((5, 6, 4, 8)):
        logits[row, token] = 9.0
    logits[bad] = torch.nan
    (result,) = verify_trees(Sampler(), [request], [tree], logits)
    assert result.failed == (bad == 0)
    if not result.failed:
        whole = [5, 6, 4]
        assert result.tokens == (whole if bad == 3 else whole[:bad])
        assert result.rows == [0, 1, 2][: len(result.tokens)]
        assert [entry.token for entry in result.logprobs or ()] == result.tokens


def test_rows_as_tensors() -> None:
    """One value a row, the root's first; rows emit one output after the other down a tree, and an
    item that does not sample has none."""
    requests = [
        Request.create(
            i,
            [1] * (i + 1),
            SamplingParams(temperature=0.5 * i, top_k=i, top_p=1 - i / 4, min_p=i / 8),
            2**64 - 1 - i,
            64,
            sample_index=i,
        )
        for i in range(3)
    ]
    requests[1].tokens.extend([7])
    columns = sampling_rows.root_columns(requests)
    assert [column.tolist() for column in columns] == [
        *([0, 0.5, 1.0], [0, 1, 2], [1.0, 0.75, 0.5], [0, 0.125, 0.25]),
        *([-1, -2, -3], [0, 1, 2], [0, 1, 0]),
    ]
    assert tuple(column.dtype for column in columns) == COLUMN_DTYPES
    chunk = ScheduledRequest(requests[0], 0, 1, False, 0, False)
    plan = StepPlan((unpacked(requests).items[0], chunk, *unpacked(requests).items[1:]))
    trees = [TokenTree([8, 9, 8], [-1, -1, 1]), TokenTree.empty()]
    drafts = DraftBatch.of([TokenTree.chain([5]), TokenTree.empty(), *trees])
    columns, *nodes = sampling_rows.verify_inputs(plan, drafts)
    assert columns[5].tolist() == [0, 0, 1, 1, 1, 1, 2]
    assert columns[6].tolist() == [0, 1, 1, 2, 2, 3, 0]
    assert [values.tolist() for values in nodes] == [
        *([0, 5, 0, 8, 9, 8, 0], [-1, 0, -1, 0, 0, 2, -1], [0, 2, 2, 6, 7]),
    ]
    assert [values.dtype for values in nodes] == [torch.int64, torch.int32, torch.int32]


def test_the_host_decides_as_the_ops_do() -> None:
    """One call of C++ over random rows and trees, or `sample` and `accept` over tensors: the same
    results, rows without a usable number among them, and texts that end."""
    rng = random.Random(0)
    noise = torch.Generator().manual_seed(0)
    emitted, ends = 0, set[str | None]()
    for seed in range(20):
        requests = [
            Request.create(
                id,
                [1],
                SamplingParams(temperature=rng.choice((0, 0.7)), top_k=5, max_tokens=2 + seed % 3),
                seed + id,
                64,
                eos_token_ids=(3,) if seed % 2 else (),
            )
            for id in range(3)
        ]
        trees = []
        for _ in requests:
            size = rng.randrange(6)
            parents = [rng.randrange(-1, node) for node in range(size)]
            trees.append(TokenTree([rng.randrange(4) for _ in range(size)], parents))
        drafts = DraftBatch.of(trees)
        count = len(drafts) + sum(drafts.counts)
        logits = torch.randn(count, 4, generator=noise)
        logits[rng.randrange(count)] = torch.nan
        plan = unpacked(requests)
        columns, *nodes = sampling_rows.verify_inputs(plan, drafts)
        sampled = sample(logits, *columns)
        outputs = VerifyOutputs(sampled, *accept(sampled, *nodes))
        by_ops = sampling_rows.decode(plan, drafts, sampling_rows.read(drafts, outputs))
        assert sampling_rows.verify(plan, drafts, logits) == by_ops
        emitted += len(by_ops.tokens)
        ends.update(by_ops.ends)
        for i, request in enumerate(requests):
            tokens, end = by_ops.emitted(i), by_ops.ends[i]
            assert by_ops.failed(i) == (not tokens)
            if tokens:
                assert not {*tokens[:-1]} & {*request.eos_token_ids}
                is_end = tokens[-1] in request.eos_token_ids
                is_last = len(tokens) == request.max_output_tokens
                assert end == ("stop" if is_end else "length" if is_last else None)
        with pytest.raises(RuntimeError, match="float32 logits"):
            sampling_rows.verify(plan, drafts, logits[1:])
    assert emitted > 60 and ends == {*REASONS}  # drafts were accepted, texts ended and failed


def test_logprobs_are_those_of_each_emitted_row() -> None:
    """Of requests that ask for different numbers, beside one that asks for none."""
    wanted = {0: 3, 1: None, 2: 0}
    requests = [
        Request.create(id, [1], SamplingParams(temperature=0, logprobs=count), 0, 100)
        for id, count in wanted.items()
    ]
    logits = torch.randn(6, V, generator=torch.Generator().manual_seed(1))
    likely = logits.argmax(-1).tolist()
    trees = [TokenTree.chain(likely[:2]), TokenTree.empty(), TokenTree.chain(likely[4:5])]
    raw = torch.log_softmax(logits, -1)
    results = verify_trees(Sampler(), requests, trees, logits)
    assert [len(result.tokens) for result in results] == [3, 1, 2]
    assert results[1].logprobs is None
    for request, result, first in ((requests[0], results[0], 0), (requests[2], results[2], 4)):
        assert result.logprobs is not None
        for entry, token, row in zip(result.logprobs, result.tokens, raw[first:], strict=False):
            assert entry.token == token and entry.logprob == float(row[token])
            best = row.topk(wanted[request.id] or 0)
            assert entry.top == dict(zip(best.indices.tolist(), best.values.tolist(), strict=True))
        assert len(result.logprobs) == len(result.tokens)
