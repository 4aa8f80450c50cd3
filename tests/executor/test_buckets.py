"""Buckets: the sizes, the padding, and texts that do not know of it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import trtspec.executor.engines.kv_tensors as module
from trtspec import LLM, SamplingParams
from trtspec.backends.packing import RowGroup, pack
from trtspec.config.kv import CacheLayout
from trtspec.executor.engines.buckets import (
    Bucket,
    RowBuckets,
    different_rows,
    extend,
    no_rows,
    pad,
    unpad,
)
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree

from .. import inside
from ..e2e.eagle_heads import eagle, random_eagle3
from ..e2e.helpers import (
    TinyModels,
    assert_no_leak,
    chain,
    ngram,
    open_llm,
    random_prompt,
    tokens,
    tree,
)


def blocks(*ids: int) -> Tensor:
    return torch.tensor(ids, dtype=torch.int32)


LAYOUT = CacheLayout(tokens_per_block=4, blocks_per_sequence=6, mask_words=2)
GROUPS = [
    RowGroup([7], 5, blocks(3, 1, 0)),
    RowGroup([1, 2, 3], 0, blocks(2)),
    RowGroup([9], 8, blocks(5, 4, 6)),
]
DRAFTS = DraftBatch.of([TokenTree([4, 5, 6], [-1, -1, 0]), None, None])


def test_find() -> None:
    buckets = RowBuckets([4, 1, 2, 2], 5)
    one = [Bucket(1, 1, 1), Bucket(1, 2, 2), Bucket(1, 3, 3), Bucket(1, 4, 4)]
    assert buckets.all[:6] == (*one, Bucket(1, 5, 1), Bucket(1, 5, 5))
    cases = {
        (1, 1, 1): (1, 1, 1),
        (1, 5, 5): (1, 5, 5),
        (1, 5, 1): (1, 5, 1),  # a prompt
        (1, 6, 6): (2, 6, 6),  # a longer tree than was built for
        (3, 3, 3): (4, 4, 4),
        (3, 9, 9): (4, 12, 12),
        (2, 20, 2): (4, 20, 4),
        (4, 20, 7): (4, 20, 20),
    }
    for call, bucket in cases.items():
        assert buckets.find(*call) == Bucket(*bucket)
    for call in ((5, 5, 5), (1, 21, 1), (4, 21, 4)):
        assert buckets.find(*call) is None
    assert RowBuckets([], 5).find(1, 1, 1) is None


@pytest.mark.parametrize("most", [1, 2, 5, 6, 16, 64])
def test_what_padding_costs(most: int) -> None:
    """A step computes less than twice the rows that it has, or its batch size's; one that drafts
    nothing is padded to its batch size alone."""
    sizes = [1, 2, 4, 8, 16, 32, 64]
    buckets = RowBuckets(sizes, most)
    for requests in range(1, 65):
        size = min(n for n in sizes if n >= requests)
        for rows in range(requests, requests * most + 1):
            bucket = buckets.find(requests, rows, rows)
            assert bucket is not None and bucket.logits == bucket.rows
            assert bucket.rows <= max(size, 2 * rows - 1)
    assert buckets.find(64, 64, 64) == Bucket(64, 64, 64)
    assert buckets.find(5, 5 * most, 5 * most) is not None
    prompt = buckets.find(2, 2 * most, 2)
    assert prompt is not None and prompt.logits <= 2


def test_rollouts_have_one_bucket_a_batch_size() -> None:
    buckets = RowBuckets([1, 4], 3, rolls_out=True)
    assert buckets.all == (Bucket(1, 3), Bucket(4, 12))
    assert buckets.find(2, 2) == Bucket(4, 12)


def test_rows_that_are_timed_are_of_different_tokens() -> None:
    """A mixture would send equal ones to the same experts."""
    padding = pad(no_rows(LAYOUT), Bucket(3, 8))
    timed = different_rows(padding, 50)
    assert len(set(timed.input_ids.tolist())) == 8
    assert 0 <= int(timed.input_ids.min()) <= int(timed.input_ids.max()) < 50
    assert (timed.slot_mapping == -1).all()


def test_without_padding_only_full_buckets_are_found() -> None:
    buckets = RowBuckets([1, 4], 3, enable_padding=False)
    assert buckets.find(4, 12, 12) == Bucket(4, 12, 12)
    for call in ((2, 6, 6), (4, 11, 11), (3, 12, 12), (4, 12, 11)):
        assert buckets.find(*call) is None


@pytest.mark.parametrize("bucket", [Bucket(3, 8), Bucket(3, 11), Bucket(5, 8), Bucket(8, 40)])
def test_pad(bucket: Bucket) -> None:
    packed = pack(GROUPS, LAYOUT, DRAFTS).rows
    padded = pad(packed, bucket)
    ids, positions, slots, tables, starts, context, is_tree, masks = padded
    for found, original in zip(padded, packed, strict=True):
        assert found.dtype == original.dtype
        assert torch.equal(found[: len(original)], original)
    assert [len(x) for x in (ids, positions, slots, masks)] == [bucket.rows] * 4
    assert [len(x) for x in (tables, context, is_tree)] == [bucket.requests] * 3
    assert (slots[8:] == -1).all() and (tables[3:] == -1).all()
    assert starts[3:].tolist() == [8] * (bucket.requests - 2)
    for x in (ids[8:], positions[8:], masks[8:], context[3:], is_tree[3:]):
        assert not x.any()
    for found, original in zip(unpad(padded, [len(x) for x in packed]), packed, strict=True):
        assert torch.equal(found, original)


def test_padding_alone() -> None:
    padded = pad(no_rows(LAYOUT), Bucket(2, 6))
    packed = pack(GROUPS, LAYOUT, DRAFTS).rows
    assert [x.dtype for x in padded] == [x.dtype for x in packed]
    assert [x.shape[1:] for x in padded] == [x.shape[1:] for x in packed]
    assert padded.slot_mapping.tolist() == [-1] * 6 and padded.query_start.tolist() == [0] * 3


def test_extend() -> None:
    values = torch.arange(6).view(3, 2)
    assert extend(values, 3, 7) is values
    assert extend(values, 5, 7)[3:].tolist() == [[7, 7]] * 2


def test_the_bits_of_a_call_ignore_its_padding(models: TinyModels) -> None:
    """Logits and caches of an engine with buckets are those of one without."""
    options: dict[str, Any] = {"tokens_per_block": 4, "max_batch_size": 4}
    with (
        open_llm(models.folder("llama"), ngram(3), **options) as plain,
        open_llm(models.folder("llama"), ngram(3), cuda_graph_config=True, **options) as padded,
    ):
        first = [
            RowGroup(random_prompt(1, 5), 0, blocks(3, 1)),
            RowGroup(random_prompt(2, 8), 0, blocks(2, 0)),
        ]
        then = [
            RowGroup([7], 5, blocks(3, 1, 4)),
            RowGroup([9], 8, blocks(2, 0, 5)),
        ]
        sizes = watch_sizes(padded, target=True)
        drafts = DraftBatch.of([TokenTree([4, 5, 6], [-1, -1, 0]), None])
        for step in ((first,), (then, drafts)):
            targets = map(inside.target, (padded, plain))
            found, expected = (t.forward(pack(step[0], t.layout, *step[1:]))[0] for t in targets)
            assert torch.equal(found, expected)
        for found, expected in zip(caches(padded), caches(plain), strict=True):
            assert torch.equal(found, expected)
        # 13 rows of prompts fit into a bucket as well, with logits of their last rows.
        assert sizes == [(16, 4, 4), (6, 2, 6)]


def caches(llm: LLM) -> list[Tensor]:
    return inside.target(llm).caches.all


def watch_sizes(llm: LLM, target: bool) -> list[tuple[int, int, int]]:
    """Rows, requests and logits rows of every call of the target, or of the draft's rollout, from
    now on."""
    engine: Any = inside.target(llm) if target else inside.drafts(llm)[0]
    session = inside.session(engine) if target else inside.rollout(engine)
    run, sizes = session.run, []

    def watched(inputs: Any) -> Any:
        logits = 0 if inputs.logits_rows is None else len(inputs.logits_rows)
        sizes.append((len(inputs.rows.input_ids), len(inputs.rows.context_lens), logits))
        return run(inputs)

    session.run = watched
    return sizes


METHODS = ("none", "ngram", "chain", "tree", "eagle3")
LENGTHS = (24, 10, 17, 6, 21, 13, 8, 19)  # so that a batch shrinks through all sizes
LIKELY = dict.fromkeys(range(10, 34), 3.0)
GREEDY = [SamplingParams(length) for length in LENGTHS]
SAMPLED = [
    SamplingParams(length, temperature=0.8, seed=i, logit_bias=LIKELY)
    for i, length in enumerate(LENGTHS)
]
PENALISED = [
    SamplingParams(length, temperature=0.7, seed=i, repetition_penalty=1.2, top_p=0.9)
    for i, length in enumerate(LENGTHS)
]


@pytest.fixture(scope="module")
def head(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return random_eagle3(models.hf("llama"), tmp_path_factory.mktemp("head"), range(10, 34))


@pytest.mark.parametrize("batch", [1, 8])
@pytest.mark.parametrize("method", METHODS)
def test_texts_ignore_padding(
    models: TinyModels, head: Path, method: str, batch: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.draft_in_one_call(monkeypatch)
    draft = models.draft("llama")
    config, rows, drafted = {
        "none": (None, 1, 0),
        "ngram": (ngram(4), 5, 0),
        "chain": (chain(draft, 3), 4, 4),
        "tree": (tree(draft, 2, 3, 6), 6, 4),
        "eagle3": (
            eagle(head, "eagle3", num_speculative_tokens=3, topk=2, num_draft_tokens=6),
            6,
            4,
        ),
    }[method]
    prompts = [random_prompt(300 + i, 3 + 4 * i) for i in range(batch)]
    options: dict[str, Any] = {"max_batch_size": 8}
    with (
        open_llm(models.folder("llama"), config, **options) as plain,
        open_llm(models.folder("llama"), config, cuda_graph_config=True, **options) as padded,
    ):
        sizes = {True: watch_sizes(padded, target=True)}
        if drafted:
            sizes[False] = watch_sizes(padded, target=False)
        for params in (GREEDY[:batch], SAMPLED[:batch], PENALISED[:batch]):
            found = padded.generate(prompts, params, use_tqdm=False)
            expected = plain.generate(prompts, params, use_tqdm=False)
            assert tokens(found) == tokens(expected)
            for one, other in zip(found, expected, strict=True):
                assert one.metrics.to_dict() == other.metrics.to_dict()  # even the drafts
        assert_no_leak(padded)
    for target, width in ((True, rows), (False, drafted)):
        seen = set(sizes.get(target, ()))
        buckets = RowBuckets((1, 2, 4, 8), max(width, 1), rolls_out=not target)
        known = {(bucket.rows, bucket.requests, bucket.logits) for bucket in buckets.all}
        assert len(seen & known) >= bool(width) * (1 if batch == 1 else 3)
        # Prompts that fit into no bucket run as they are; a rollout always fits.
        assert all(size[0] > 8 * width or size[1] > 8 for size in seen - known)


def test_small_prompts_and_sizes_that_were_left_out(models: TinyModels) -> None:
    """A batch beyond the largest graph runs as it is."""
    prompts = [random_prompt(320 + i, 6) for i in range(5)]
    options = {"cuda_graph_config": {"batch_sizes": [2]}, "max_batch_size": 5}
    with (
        open_llm(models.folder("qwen3"), ngram(3)) as plain,
        open_llm(models.folder("qwen3"), ngram(3), **options) as padded,
    ):
        sizes = watch_sizes(padded, target=True)
        found = tokens(padded.generate(prompts, GREEDY[:5], use_tqdm=False))
        assert found == tokens(plain.generate(prompts, GREEDY[:5], use_tqdm=False))
        assert found[:1] == tokens([padded.generate(prompts[0], GREEDY[0])])
    assert {(2, 2, 2), (8, 2, 8)} <= set(sizes)
    assert any(requests > 2 for _, requests, _ in sizes)
    known = {(bucket.rows, 2, bucket.logits) for bucket in RowBuckets([2], 4).all}
    assert all(size in known or size[1] > 2 or size[0] > 8 for size in sizes)


@pytest.mark.parametrize("method", ["none", "tree", "eagle3"])
def test_warm_up_changes_nothing(
    models: TinyModels, head: Path, method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    inside.draft_in_one_call(monkeypatch)
    config = {
        "none": None,
        "tree": tree(models.draft("llama"), 2, 3, 6),
        "eagle3": eagle(head, "eagle3", num_speculative_tokens=3),
    }[method]
    with open_llm(models.folder("llama"), config, cuda_graph_config=True, max_batch_size=5) as llm:
        engines: list[Any] = [inside.target(llm), *inside.drafts(llm)]
        for engine, target in zip(engines, (True, False), strict=False):
            sizes = watch_sizes(llm, target)
            engine.warm_up()
            assert sorted({requests for _, requests, _ in sizes}) == [1, 2, 4, 5]
            assert len(sizes) == len(set(sizes)) == len(engine._buckets.all)
            assert (engine.num_calls, engine.seconds) == (0, 0.0)
            assert not any(cache.any() for cache in engine.caches.all)


def test_rows_compacted_in_several_calls(
    models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Accepted branches move over each other one pair at a time."""
    config = tree(models.folder("llama"), 3, 4, 13)
    prompts = [random_prompt(340 + i, 5) for i in range(3)]
    moved: list[int] = []
    compact = module.kv_compact

    def watched(buffers: list[Tensor], src: Tensor, dst: Tensor) -> None:
        moved.append(len(src))
        compact(buffers, src, dst)

    with open_llm(models.folder("llama")) as plain:
        expected = tokens(plain.generate(prompts, SAMPLED[:3], use_tqdm=False))
    monkeypatch.setattr(module, "COMPACTED_AT_ONCE", 1)
    monkeypatch.setattr(module, "kv_compact", watched)
    with open_llm(models.folder("llama"), config) as llm:
        assert tokens(llm.generate(prompts, SAMPLED[:3], use_tqdm=False)) == expected
    assert len(moved) > 5 and set(moved) == {1}
