"""From packed rows and their bookkeeping to the padded calls of a slot cache."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import Enum
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from trtspec.backends.parts import MaskKind
from trtspec.backends.staging import Staging
from trtspec.models.rows import PackedRows

_STEP = 64
_SHORTEST = 256

_Array = np.ndarray[tuple[int, ...], np.dtype[np.bool_]]


class View(Enum):
    """How many positions of a cache a call's masks cover and attention reads. WHOLE: the whole
    slot. Otherwise up to the last position that a row can see, rounded up, as memory, kernels or
    graphs are kept for each size: to STEPS of 64 if one more position costs more than one more
    size, to POWERS of two, from 256 on, if one more size costs more."""

    WHOLE = "whole"
    STEPS = "steps"
    POWERS = "powers"

    def end(self, needed: int, length: int) -> int:
        """Positions of a view that needs ``needed`` of them, in slots of ``length``."""
        if self is View.WHOLE:
            return length
        if self is View.STEPS:
            return min(-(-needed // _STEP) * _STEP, length)
        return min(max(_SHORTEST, 1 << (needed - 1).bit_length()), length)


@dataclass(frozen=True)
class PaddedCall:
    """One call of a graph over ``num_slots`` sequences from ``first_slot`` on, S rows each.

    packed: the packed rows that it serves ``[n] i64``. places: where each of them is among the
    num_slots * S rows ``[n] i64``. positions ``[num_slots, S] i64``, write_indices ``[num_slots]
    i64`` and masks, one ``[num_slots, 1, S, L'] bool`` of each kind: see `SlotRows`. seen: L'.
    begins: slots whose sequence begins with this call.
    """

    first_slot: int
    num_slots: int
    num_rows: int
    packed: Tensor
    places: Tensor
    positions: Tensor
    write_indices: Tensor
    masks: tuple[Tensor, ...]
    begins: tuple[int, ...]
    seen: int

    def pad(self, packed: Tensor) -> Tensor:
        """Values of packed rows ``[T, ...]`` as ``[num_slots, S, ...]``, zero elsewhere."""
        padded = packed.new_zeros((self.num_slots * self.num_rows, *packed.shape[1:]))
        padded[self.places] = packed[self.packed]
        return padded.view(self.num_slots, self.num_rows, *packed.shape[1:])

    def by_slot(self, rows: PackedRows) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The inputs of `trtspec.ops.tree_mask` besides positions and ancestors: slot_mapping
        ``[num_slots, S] i64``, query_start ``[num_slots + 1]``, context_lens and is_tree
        ``[num_slots] i32``."""
        request = torch.bucketize(self.packed, rows.query_start[1:].long(), right=True)
        slots = self.places // self.num_rows
        contexts = torch.zeros(self.num_slots, dtype=torch.int32)
        contexts[slots] = rows.context_lens[request]
        trees = torch.zeros(self.num_slots, dtype=torch.int32)
        trees[slots] = rows.is_tree[request].int()
        starts = torch.arange(self.num_slots + 1, dtype=torch.int32) * self.num_rows
        return self.pad(rows.slot_mapping + 1) - 1, starts, contexts, trees

    def staged(self, staging: Staging, *others: Tensor) -> tuple[PaddedCall, list[Tensor]]:
        """This call, and further host tensors, on a device, in one copy."""
        own = [self.packed, self.places, self.positions, self.write_indices]
        arrived = staging.to_device([*own, *others, *self.masks])
        first, last = len(own), len(own) + len(others)
        packed, places, positions, starts = arrived[:first]
        call = replace(
            self,
            packed=packed,
            places=places,
            positions=positions,
            write_indices=starts,
            masks=tuple(arrived[last:]),
        )
        return call, arrived[first:last]


@dataclass(frozen=True)
class _Group:
    """The rows of one request: its slot, the first of its packed rows, their number, where they go
    in the cache, what is committed before them, and their tree mask ``[n, W]`` if any."""

    slot: int
    first: int
    count: int
    start: int
    context: int
    tree: np.ndarray[tuple[int, int], np.dtype[np.int64]] | None


@dataclass(frozen=True)
class _Span:
    """The slots of a call, and how many rows it has in each."""

    first_slot: int
    num_slots: int
    num_rows: int


@dataclass(frozen=True)
class Padding:
    """How the rows of a graph's calls are padded; the fields are those of `padded_calls`."""

    length: int
    widest: int
    kinds: Sequence[MaskKind] = ()
    slot_counts: Sequence[int] = ()
    view: View = View.WHOLE

    def calls(self, rows: PackedRows, num_slots: int) -> list[PaddedCall]:
        """At least one call. If all ``rows`` are padding, that call is padding only, for as many
        requests as fit the ``num_slots`` of the caches. If tree masks are on a device, calls have
        no masks otherwise."""
        counts = [count for count in self.slot_counts if count <= num_slots]
        kinds = self.kinds if rows.tree_mask.device.type == "cpu" else ()
        calls = padded_calls(rows, self.length, self.widest, kinds, counts, view=self.view)
        if calls:
            return calls
        requests = min(len(rows.context_lens), num_slots)
        count = max(1, min(len(rows.positions) // requests, self.widest))
        if self.slot_counts:
            count = rounded(count, self.widest)
        masks = len(self.kinds)
        return [idle_call(requests, count, self.length, masks, view=self.view)]

    def pad_places(self, call: PaddedCall, places: Tensor) -> Tensor:
        """Wanted ``places [n]`` among a call's rows. If calls are rounded, there are as many places
        as slots or as rows, so that few sizes occur."""
        if not self.slot_counts or call.num_rows > self.widest:
            return places
        rows = 1 if len(places) <= call.num_slots else call.num_rows
        missing = max(0, call.num_slots * rows - len(places))
        return torch.cat([places, places.new_zeros(missing)])


def padded_calls(
    rows: PackedRows,
    length: int,
    widest: int,
    kinds: Sequence[MaskKind],
    slot_counts: Sequence[int] = (),
    *,
    view: View = View.WHOLE,
) -> list[PaddedCall]:
    """The calls that feed ``rows`` to caches of ``length`` positions per slot.

    A request's block table names its slot, and its rows are contiguous in the cache. Requests of up
    to ``widest`` rows share a call, over all slots from the lowest to the highest; one with more
    rows, a prefill chunk, has its own. A slot in between without rows gets padding, which is
    written to the last positions of its cache: no sequence may reach the last ``widest``. Padding
    after a request's rows is written after them, where nothing is committed. A padding row sees
    itself, so that it stays finite: NaN in a cache would spread, as masked positions are multiplied
    by zero. A ``view`` that is not whole ends where no row of a request looks or is padded to; a
    padding row beyond that sees the last position.

    ``slot_counts``: ascending numbers of slots that shared calls are rounded up to, so that few
    sizes occur. Such calls begin at slot 0, and their rows are rounded as well (see `rounded`).
    Empty: no rounding.
    """
    groups = _groups(rows, length)
    narrow = [group for group in groups if group.count <= widest]
    alone = [[group] for group in groups if group.count > widest]
    positions = rows.positions.numpy()
    calls = [_call(own, _span(own), positions, length, kinds, view) for own in alone]
    if narrow:
        span = _span(narrow)
        if slot_counts:
            last = span.first_slot + span.num_slots
            slots = next((count for count in slot_counts if count >= last), last)
            span = _Span(0, slots, rounded(span.num_rows, widest))
        calls.insert(0, _call(narrow, span, positions, length, kinds, view))
    return calls


def rounded(count: int, most: int) -> int:
    """The lowest power of two that is at least ``count``, or ``most`` if that is less."""
    return min(1 << (count - 1).bit_length(), most)


def idle_call(
    num_slots: int, num_rows: int, length: int, num_masks: int, *, view: View = View.WHOLE
) -> PaddedCall:
    """A call of padding only, whose results are unused. It takes as long as a call of requests; of
    requests without context, unless the whole slot is in view."""
    none = torch.zeros(0, dtype=torch.int64)
    starts = torch.full((num_slots,), length - num_rows)
    seen = view.end(num_rows, length)
    mask = torch.zeros(num_slots, 1, num_rows, seen, dtype=torch.bool)
    own = torch.arange(num_rows)
    mask[:, 0, own, seen - num_rows + own] = True
    positions = torch.zeros(num_slots, num_rows, dtype=torch.int64)
    masks = (mask,) * num_masks
    return PaddedCall(0, num_slots, num_rows, none, none, positions, starts, masks, (), seen)


def _groups(rows: PackedRows, length: int) -> list[_Group]:
    starts = rows.query_start.tolist()
    slots = rows.slot_mapping.numpy()
    contexts, trees = rows.context_lens.tolist(), rows.is_tree.tolist()
    masks = rows.tree_mask.numpy() if rows.tree_mask.device.type == "cpu" else None
    groups = []
    for request, (first, end) in enumerate(pairwise(starts)):
        if first == end or slots[first] < 0:  # padding
            continue
        slot, start = divmod(int(slots[first]), length)
        tree = masks[first:end] if trees[request] and masks is not None else None
        groups.append(_Group(slot, first, end - first, start, contexts[request], tree))
    return groups


def _span(groups: Sequence[_Group]) -> _Span:
    """The smallest span that holds these requests."""
    slots = [group.slot for group in groups]
    first = min(slots)
    return _Span(first, max(slots) - first + 1, max(group.count for group in groups))


def _call(
    groups: Sequence[_Group],
    span: _Span,
    positions: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    length: int,
    kinds: Sequence[MaskKind],
    view: View,
) -> PaddedCall:
    first_slot, num_slots, num_rows = span.first_slot, span.num_slots, span.num_rows
    padded = np.zeros((num_slots, num_rows), np.int64)
    starts = np.full(num_slots, length - num_rows, np.int64)
    seen = view.end(max(group.start for group in groups) + num_rows, length)
    masks = [np.zeros((num_slots, 1, num_rows, seen), np.bool_) for _ in kinds]
    packed, places = [], []
    for group in groups:
        own = slice(group.first, group.first + group.count)
        place = group.slot - first_slot
        padded[place, : group.count] = positions[own]
        starts[place] = group.start
        for kind, mask in zip(kinds, masks, strict=True):
            mask[place, 0, : group.count] = _seen(group, positions[own], seen, kind)
        packed.append(np.arange(own.start, own.stop))
        places.append(place * num_rows + np.arange(group.count))
    counts = np.zeros(num_slots, np.int64)
    counts[[group.slot - first_slot for group in groups]] = [group.count for group in groups]
    slot, row = np.nonzero(np.arange(num_rows) >= counts[:, None])
    for mask in masks:
        mask[slot, 0, row, np.minimum(starts[slot] + row, seen - 1)] = True
    return PaddedCall(
        first_slot,
        num_slots,
        num_rows,
        torch.from_numpy(np.concatenate(packed)),
        torch.from_numpy(np.concatenate(places)),
        torch.from_numpy(padded),
        torch.from_numpy(starts),
        tuple(torch.from_numpy(mask) for mask in masks),
        tuple(group.slot for group in groups if group.start == 0),
        seen,
    )


def _seen(
    group: _Group,
    positions: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    length: int,
    kind: MaskKind,
) -> _Array:
    """Which cache positions the rows of a request see ``[n, length]``; the rule is that of
    `paged_tree_attention`."""
    keys = np.arange(length)
    ends = np.full(group.count, group.context)
    if group.tree is None:
        ends += np.arange(1, group.count + 1)
    seen: _Array = keys < ends[:, None]
    if kind.window:
        seen &= positions[:, None] - keys < kind.window
    if group.tree is not None:
        octets = np.ascontiguousarray(group.tree).astype("<i8").view(np.uint8)
        bits = np.unpackbits(octets, axis=1, bitorder="little").astype(np.bool_)
        width = min(bits.shape[1], length - group.context)
        seen[:, group.context : group.context + width] = bits[:, :width]
    if kind.is_causal:
        seen &= keys <= group.start + np.arange(group.count)[:, None]
    return seen
