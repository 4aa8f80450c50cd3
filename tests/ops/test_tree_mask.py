"""tree_mask shows rows what attention lets them see; accept_trees is accept for engines."""

from __future__ import annotations

import random

import pytest
import torch

from trtspec.ops.acceptance import accept, accept_trees
from trtspec.ops.attention import _visible_positions
from trtspec.ops.tree_mask import tree_mask

LENGTH, WORDS = 150, 2


def random_call(rng: random.Random) -> dict[str, torch.Tensor]:
    """Requests of any number of rows, padding behind some, and what those rows see."""
    counts = [rng.choice([0, 1, 3, 6]) for _ in range(rng.randint(1, 5))]
    total = max(1, sum(counts))
    contexts = [rng.choice([0, 1, 20, LENGTH - 30]) for _ in counts]
    starts = [0]
    for count in counts:
        starts.append(starts[-1] + count)
    slots, positions, masks = [-1] * total, [0] * total, [[0] * WORDS for _ in range(total)]
    for begin, count, context in zip(starts, counts, contexts, strict=False):
        for row in range(count):
            slots[begin + row] = -1 if rng.random() < 0.2 else begin + row
            positions[begin + row] = context + rng.randint(0, row)
            bits = [j for j in range(min(128, LENGTH - context)) if rng.random() < 0.1]
            for bit in bits:
                word = 1 << bit % 64
                masks[begin + row][bit // 64] |= word - (1 << 64) if word >> 63 else word
    return {
        "positions": torch.tensor(positions),
        "slot_mapping": torch.tensor(slots),
        "query_start": torch.tensor(starts, dtype=torch.int32),
        "context_lens": torch.tensor(contexts, dtype=torch.int32),
        "is_tree": torch.tensor([int(rng.random() < 0.5) for _ in counts], dtype=torch.int32),
        "tree_mask": torch.tensor(masks),
    }


@pytest.mark.parametrize("window", [0, 7])
def test_rows_see_what_attention_lets_them_see(window: int) -> None:
    for seed in range(60):
        assert_seen(random_call(random.Random(seed)), window)


def assert_seen(call: dict[str, torch.Tensor], window: int) -> None:
    width = 4
    mask = tree_mask(**call, width=width, length=LENGTH, sliding_window=window)
    assert mask.shape == (len(call["context_lens"]), 1, width, LENGTH) and mask.dtype == torch.bool
    starts = call["query_start"].tolist()
    for b, context in enumerate(call["context_lens"].tolist()):
        for index in range(width):
            row = starts[b] + index
            seen = torch.zeros(0, dtype=torch.int64)
            if row < starts[b + 1] and call["slot_mapping"][row] >= 0:
                seen = _visible_positions(
                    context,
                    index,
                    int(call["positions"][row]),
                    call["tree_mask"][row] if call["is_tree"][b] else None,
                    window,
                )
            expected = seen.tolist() or [0]
            assert mask[b, 0, index].nonzero().flatten().tolist() == expected


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_as_numbers_it_is_added_to_scores(dtype: torch.dtype) -> None:
    call = random_call(random.Random(3))
    seen = tree_mask(**call, width=6, length=LENGTH)
    added = tree_mask(**call, width=6, length=LENGTH, dtype=dtype)
    assert added.dtype == dtype
    assert torch.equal(added == 0, seen) and torch.equal(added == -torch.inf, ~seen)


def test_accept_trees() -> None:
    """Requests without rows, rows behind the last tree, and none at all."""
    sampled = torch.tensor([5, 6, 7, 8, 9, 1, 1])
    tokens = torch.tensor([0, 5, 4, 0, 8, 1, 1])
    parents = torch.tensor([-1, 0, 0, -1, 0, 0, 0], dtype=torch.int32)
    row_start = torch.tensor([0, 0, 3, 3, 5], dtype=torch.int32)
    rows, emitted = accept_trees(sampled, tokens, parents, row_start, 4)
    assert emitted.tolist() == [0, 2, 0, 2]
    assert rows.tolist() == [[-1] * 4, [0, 1, -1, -1], [-1] * 4, [0, 1, -1, -1]]
    dense = torch.tensor([0, 3, 5], dtype=torch.int32)
    walked, count = accept(sampled[:5], tokens[:5], parents[:5], dense)
    assert torch.equal(rows[1::2, :3], walked) and torch.equal(emitted[1::2], count)
    none = torch.zeros(3, dtype=torch.int32)
    rows, emitted = accept_trees(sampled, tokens, parents, none, 4)
    assert rows.tolist() == [[-1] * 4] * 2 and emitted.tolist() == [0, 0]
