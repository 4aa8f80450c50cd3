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


def test_nodes_know_who_proposed_them() -> None:
    """Of a path that two hold, the first; cuts and picks carry it, and trees that were shaped get
    it back by their paths."""
    first = DraftBatch.of([CHAIN, None])
    second = DraftBatch.of([TokenTree([8, 7, 9], [-1, -1, 0]), TREE])
    both = DraftBatch.merge([first, second], [4, 1])  # 8, 9, 7
    rows = [0, 1, 3]
    assert both.by_source(0, rows) == ([0, 1, 0, 0, 2], [0, 1, 0, 0, 1])
    assert both.by_source(1, [0]) == ([0, 3], [0, 0])
    assert DraftBatch.merge([first, second]).by_source(0, rows) == ([2, 1], [1, 1])
    assert both.best([2, 0]).by_source(0, [0]) == ([0, 1, 0, 0, 1], [0] * 5)
    assert both.pick([1, 0]).by_source(1, rows) == both.by_source(0, rows)
    shaped = DraftBatch.of([TokenTree([7, 8, 8], [-1, 0, -1]), None])
    assert shaped.by_source(0, [0, 1]) == ([3], [1])
    assert shaped.attributed(both).by_source(0, [0, 1]) == ([0, 1, 0, 0, 1], [0, 1, 0, 0, 0])
    assert shaped.sources(0) == [0, 0, 0]
    assert shaped.attributed(both).sources(0) == [1, None, 4]
    assert both == DraftBatch.of([*both])  # it counts for nothing
    with pytest.raises(ValueError, match="a source is 0 to 254, got 255"):
        DraftBatch.merge([first, second], [0, 255])


def test_without_a_union_all_are_of_the_first_source() -> None:
    drafts = DraftBatch.of([TREE, None])
    assert drafts.by_source(0, [0, 2]) == ([3], [1])
    assert drafts.by_source(1, [0]) == ([], [])
