"""DraftBatch: the drafts of a step's items, in their order."""

from __future__ import annotations

import numpy as np
import pytest

from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree

TREE = TokenTree([5, 6, 7], [-1, -1, 1], np.array([-1.0, -0.5, -2.0], np.float32))
CHAIN = TokenTree.chain([8, 9])


def test_it_holds_the_trees_of_all_items() -> None:
    drafts = DraftBatch.of([TREE, None, CHAIN])
    assert len(drafts) == 3
    assert (drafts.counts, drafts.max_depths) == ([3, 0, 2], [2, 0, 2])
    assert [*drafts] == [TREE, TokenTree.empty(), CHAIN]
    assert drafts[0].scores.tolist() == TREE.scores.tolist()  # type: ignore[union-attr]
    halves = [np.float32(np.log(0.5)), np.float32(2 * np.log(0.5))]
    assert drafts[2].scores.tolist() == halves  # type: ignore[union-attr]
    assert drafts == DraftBatch.of([*drafts]) and hash(drafts) == hash(DraftBatch.of([*drafts]))
    assert drafts != DraftBatch.of([TREE, CHAIN, None])


def test_no_drafts() -> None:
    none = DraftBatch.none(2)
    assert none.counts == none.max_depths == [0, 0]
    assert none == DraftBatch.of([None, TokenTree.empty()])


def test_items_are_picked() -> None:
    drafts = DraftBatch.of([TREE, None, CHAIN])
    assert drafts.pick([2, -1, 0]) == DraftBatch.of([CHAIN, None, TREE])
    assert drafts.pick([]) == DraftBatch.none(0)
    for place in (-2, 3):
        with pytest.raises(ValueError, match=f"no place {place}"):
            drafts.pick([place])
