"""Packed rows: what an engine call is fed for requests of every kind."""

from __future__ import annotations

import pytest
import torch

from trtspec.backends.packing import RowGroup, pack, pack_plan
from trtspec.config.kv import CacheLayout
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.sequence import TokenSequence
from trtspec.ops.tree import TokenTree

LAYOUT = CacheLayout(tokens_per_block=4, blocks_per_sequence=3, mask_words=1)


def blocks(*numbers: int) -> torch.Tensor:
    return torch.tensor(numbers, dtype=torch.int32)


def test_a_prefill_a_tree_and_a_chunk() -> None:
    tree = TokenTree([7, 8, 9], [-1, -1, 0])
    rows, wanted, *_ = pack(
        [
            RowGroup([5, 6], 3, blocks(2, 0)),
            RowGroup([4], 6, blocks(5, 1, 3)),
            RowGroup([1, 2, 3], 0, blocks(4), last_logits=False),
        ],
        LAYOUT,
        DraftBatch.of([None, tree, None]),
    )
    assert [x.tolist() for x in rows] == [
        [5, 6, 4, 7, 8, 9, 1, 2, 3],
        [3, 4, 6, 7, 7, 8, 0, 1, 2],
        [11, 0, 6, 7, 12, 13, 16, 17, 18],
        [[2, 0, -1], [5, 1, 3], [4, -1, -1]],
        [0, 2, 6, 9],
        [3, 6, 0],
        [False, True, False],
        [[0], [0], [0b1], [0b11], [0b101], [0b1011], [0], [0], [0]],
    ]
    assert wanted.tolist() == [1, 2, 3, 4, 5]
    kinds = [*[torch.int64] * 3, *[torch.int32] * 3, torch.bool, torch.int64]
    assert [x.dtype for x in (*rows, wanted)] == [*kinds, torch.int64]


def test_rows_have_their_request_s_adapter() -> None:
    """Those of a prompt, and of a root with its tree."""
    texts = [TokenSequence(i, [1, 2, 3], 8) for i in range(3)]
    texts[0].adapt(7, 2)
    texts[2].adapt(9, 0)
    rows = ((0, 3), (2, 1), (2, 1))
    table = torch.tensor(
        [
            [t.address, begin, count, begin, 4, 1]
            for t, (begin, count) in zip(texts, rows, strict=True)
        ]
    ).T.contiguous()
    tree = TokenTree([7, 8], [-1, 0])
    drafts = DraftBatch.of([None, tree, tree])
    packed = pack_plan(table, [blocks(0, 1)] * 3, LAYOUT, drafts)
    assert packed.adapters is not None and packed.adapters.dtype == torch.int32
    assert packed.adapters.tolist() == [2, 2, 2, -1, -1, -1, 0, 0, 0]


def test_rows_behind_a_gap() -> None:
    """They lie behind those that are held, and stand where they stand in the text."""
    rows, _, cached, *_ = pack([RowGroup([5, 6], 3, blocks(2, 0), gap=40)], LAYOUT)
    assert rows.positions.tolist() == [43, 44] and rows.slot_mapping.tolist() == [11, 0]
    assert rows.context_lens.tolist() == [3] and cached == 5


def test_rows_without_a_place_are_refused() -> None:
    with pytest.raises(RuntimeError, match="rows up to 5 of a request with 1 blocks of 4"):
        pack([RowGroup([1, 2], 3, blocks(0))], LAYOUT)
    with pytest.raises(RuntimeError, match="with 4 blocks of 4; an engine takes 3"):
        pack([RowGroup([1], 0, blocks(0, 1, 2, 3))], LAYOUT)
    with pytest.raises(RuntimeError, match="one of each is needed for 1 requests"):
        pack([RowGroup([1], 0, blocks(0))], LAYOUT, DraftBatch.none(2))
