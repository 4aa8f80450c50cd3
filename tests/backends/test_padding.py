"""Padded calls of a slot cache see and write what the packed rows do."""

from __future__ import annotations

import random

import pytest
import torch

from trtspec.backends.parts import MaskKind
from trtspec.backends.slots.padding import PaddedCall, View, idle_call, padded_calls, rounded
from trtspec.models.rows import PackedRows
from trtspec.ops.attention import _visible_positions

LENGTH, WIDEST, WORDS = 96, 8, 2


def random_rows(rng: random.Random) -> PackedRows:
    """Requests in scattered slots: prompts, chunks, trees, roll-out rows, and one without rows."""
    slots, starts, contexts, trees, tables = [], [0], [], [], []
    positions, masks = [], []
    for slot in rng.sample(range(6), rng.randint(1, 5)):
        is_tree = rng.random() < 0.5
        count = rng.choice([0, 1, 3, WIDEST, 2 * WIDEST] if not is_tree else [1, 4, WIDEST])
        context = rng.randint(0, 40)
        offset = rng.randint(0, 5) if is_tree else 0
        for row in range(count):
            slots.append(slot * LENGTH + context + offset + row)
            depth = rng.randint(0, offset + row) if is_tree else row
            positions.append(context + depth)
            seen = [j for j in range(offset + row) if rng.random() < 0.5] if is_tree else []
            bits = sum(1 << j for j in (*seen, offset + row)) if is_tree else 0
            words = [(bits >> 64 * w) & (1 << 64) - 1 for w in range(WORDS)]
            masks.append([word - (1 << 64) if word >> 63 else word for word in words])
        starts.append(len(slots))
        contexts.append(context)
        trees.append(is_tree)
        tables.append([slot if count else -1])
    return PackedRows(
        torch.tensor(positions, dtype=torch.int64),
        torch.tensor(slots, dtype=torch.int64),
        torch.tensor(tables, dtype=torch.int32),
        torch.tensor(starts, dtype=torch.int32),
        torch.tensor(contexts, dtype=torch.int32),
        torch.tensor(trees),
        torch.tensor(masks, dtype=torch.int64).reshape(-1, WORDS),
    )


def written(call: PaddedCall) -> torch.Tensor:
    """The flat slot that each padded row writes to ``[num_slots, S]``."""
    slot = call.first_slot + torch.arange(call.num_slots)
    first = slot * LENGTH + call.write_indices
    return first[:, None] + torch.arange(call.num_rows)


@pytest.mark.parametrize("kind", [MaskKind(), MaskKind(5), MaskKind(0, True), MaskKind(5, True)])
@pytest.mark.parametrize("view", View)
@pytest.mark.parametrize("counts", [(), (1, 4, 6)], ids=["exact", "rounded"])
def test_rows_see_and_write_what_they_should(
    kind: MaskKind, view: View, counts: tuple[int, ...]
) -> None:
    for seed in range(40):
        assert_seen_and_written(random_rows(random.Random(seed)), kind, view, counts)


def assert_seen_and_written(
    rows: PackedRows, kind: MaskKind, view: View, counts: tuple[int, ...]
) -> None:
    kinds = [MaskKind(3), kind]
    calls = padded_calls(rows, LENGTH, WIDEST, kinds, counts, view=view)
    served = torch.cat([call.packed for call in calls]) if calls else torch.zeros(0)
    assert sorted(served.tolist()) == list(range(len(rows.positions)))
    request_of = torch.bucketize(
        torch.arange(len(rows.positions)), rows.query_start[1:].long(), right=True
    )
    committed = set()
    for request, first in enumerate(rows.query_start[:-1].tolist()):
        if first < int(rows.query_start[request + 1]):
            slot = int(rows.slot_mapping[first]) // LENGTH
            committed |= {slot * LENGTH + p for p in range(int(rows.context_lens[request]))}
    for call in calls:
        assert call.num_rows <= WIDEST or call.num_slots == 1
        if counts and call.num_rows <= WIDEST:
            assert call.first_slot == 0 and call.num_slots in counts
            assert call.num_rows & (call.num_rows - 1) == 0
        places = written(call)
        assert (call.write_indices + call.num_rows <= LENGTH).all()
        assert torch.equal(places.flatten()[call.places], rows.slot_mapping[call.packed])
        assert torch.equal(call.positions.flatten()[call.places], rows.positions[call.packed])
        mask = call.masks[-1][:, 0].flatten(0, 1)
        needed = int(call.write_indices[call.places // call.num_rows].max()) + call.num_rows
        assert mask.shape[1] == call.seen == view.end(needed, LENGTH)
        for place, row in zip(call.places.tolist(), call.packed.tolist(), strict=True):
            request = int(request_of[row])
            seen = _visible_positions(
                context=int(rows.context_lens[request]),
                index=row - int(rows.query_start[request]),
                position=int(rows.positions[row]),
                mask=rows.tree_mask[row] if rows.is_tree[request] else None,
                sliding_window=kind.window,
            )
            if kind.is_causal:
                seen = seen[seen <= rows.slot_mapping[row] % LENGTH]
            assert mask[place].nonzero().flatten().tolist() == seen.tolist()
        padding = torch.ones(len(mask), dtype=torch.bool)
        padding[call.places] = False
        # A row of padding sees itself alone, or what is nearest, and overwrites nothing committed.
        assert (mask[padding].sum(1) == 1).all()
        own = (places.flatten()[padding] % LENGTH).clamp(max=mask.shape[1] - 1)
        assert mask[padding, own].all() if len(own) else True
        assert committed.isdisjoint(places.flatten()[padding].tolist())


def test_values_of_rows_are_padded_with_zeros() -> None:
    rows = random_rows(random.Random(3))
    values = torch.randn(len(rows.positions), 3)
    for call in padded_calls(rows, LENGTH, WIDEST, [MaskKind()]):
        padded = call.pad(values)
        assert padded.shape == (call.num_slots, call.num_rows, 3)
        assert torch.equal(padded.flatten(0, 1)[call.places], values[call.packed])
        assert padded.abs().sum() == pytest.approx(float(values[call.packed].abs().sum()), rel=1e-5)


@pytest.mark.parametrize("view", View)
def test_rows_of_an_idle_call_see_one_position(view: View) -> None:
    call = idle_call(3, 5, LENGTH, 2, view=view)
    assert len(call.masks) == 2 and not len(call.packed)
    for mask in call.masks:
        assert mask.shape == (3, 1, 5, view.end(5, LENGTH))
        assert (mask.sum(-1) == 1).all()
    assert (call.write_indices + 5 == LENGTH).all()


@pytest.mark.parametrize(
    ("count", "most", "expected"), [(1, 8, 1), (3, 8, 4), (8, 8, 8), (9, 12, 12), (5, 7, 7)]
)
def test_rounded(count: int, most: int, expected: int) -> None:
    assert rounded(count, most) == expected


@pytest.mark.parametrize(
    ("needed", "steps", "powers"),
    [(1, 64, 256), (64, 64, 256), (65, 128, 256), (257, 320, 512), (1000, 1000, 1000)],
)
def test_views_end_behind_what_is_needed(needed: int, steps: int, powers: int) -> None:
    """In few sizes, and with the slot at the latest."""
    found = [view.end(needed, 1000) for view in (View.WHOLE, View.STEPS, View.POWERS)]
    assert found == [1000, steps, powers]
