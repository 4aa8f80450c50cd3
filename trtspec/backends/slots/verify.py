"""A target whose graph samples and accepts: it takes packed rows, ancestors and sampling values,
and returns which rows of every tree are accepted.

In its graph slots stand for requests. Each slot has the rows of its request, including those of the
tree, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from trtspec.backends.session import GraphSession
from trtspec.backends.slots.padding import PaddedCall, Padding, View
from trtspec.backends.staging import Staging
from trtspec.models.rows import Caches, PackedRows
from trtspec.ops.sampling import SamplingColumns


class PaddedInputs(NamedTuple):
    """S rows of each of B slots, and what they see.

    The fields are those of `trtspec.backends.inputs.RowInputs` by slots: input_ids, positions,
    slot_mapping and tree_mask ``[B, S, ...]``, query_start ``[B + 1]``, context_lens and is_tree
    ``[B] i32``; and write_indices ``[B] i64`` (see `SlotRows`).
    """

    input_ids: Tensor
    positions: Tensor
    write_indices: Tensor
    slot_mapping: Tensor
    query_start: Tensor
    context_lens: Tensor
    is_tree: Tensor
    tree_mask: Tensor


class VerifyInputs(NamedTuple):
    """The inputs of a target that samples and accepts.

    logits_rows ``[R] i64`` indexes all B * S rows; columns and parents are of these, and row_start
    ``[B + 1] i32`` says which of them are a slot's tree. caches: as in `EngineInputs`, of these
    slots. seen: positions of a slot that its masks cover.
    """

    rows: PaddedInputs
    logits_rows: Tensor
    columns: SamplingColumns
    parents: Tensor
    row_start: Tensor
    caches: tuple[Tensor, ...] = ()
    seen: int = 0

    def flat(self) -> list[Tensor]:
        """All tensors, in the order of the fields."""
        asked = (self.logits_rows, *self.columns, self.parents, self.row_start)
        return [*self.rows, *asked, *self.caches]

    def filled(self, tensors: Sequence[Tensor]) -> VerifyInputs:
        """The same fields with other tensors, which come in the order of `flat`."""
        given = iter(tensors)
        return VerifyInputs(
            rows=PaddedInputs._make(islice(given, len(self.rows))),
            logits_rows=next(given),
            columns=SamplingColumns._make(islice(given, len(self.columns))),
            parents=next(given),
            row_start=next(given),
            caches=tuple(given),
            seen=self.seen,
        )


class VerifySession(Protocol):
    """Runs a target that samples and accepts."""

    def run(self, inputs: VerifyInputs) -> list[Tensor]:
        """Run once; caches are written in place. Returns logits, hidden states if it captures them,
        ``sampled [R]``, ``accepted_rows [B, width]`` and ``num_emitted [B]``."""
        ...


class VerifyGraph:
    """A `VerifySession` over a graph that does everything itself."""

    def __init__(self, session: GraphSession, length: int, device: str) -> None:
        """``length``: positions of a slot; a call's view is its beginning."""
        self._session = session
        self._slot = torch.zeros(length, dtype=torch.int64, device=device)

    def run(self, inputs: VerifyInputs) -> list[Tensor]:
        """See `VerifySession.run`."""
        count = len(inputs.rows)
        tensors = inputs.flat()
        return self._session.run([*tensors[:count], self._slot[: inputs.seen], *tensors[count:]])


class VerifyNetwork(nn.Module):
    """Feeds packed rows to a `VerifySession`."""

    def __init__(
        self,
        session: VerifySession,
        length: int,
        widest: int,
        device: str,
        slot_counts: Sequence[int] = (),
        *,
        view: View = View.WHOLE,
    ) -> None:
        """``length``, ``widest``, ``slot_counts``, ``view``: see `padded_calls`; a tree has at most
        ``widest`` rows. ``session`` makes the masks."""
        super().__init__()
        self._session = session
        self._padding = Padding(length, widest, slot_counts=slot_counts, view=view)
        self._widest = widest
        self._device = torch.device(device)
        self._staging = Staging(self._device)

    def forward(
        self,
        input_ids: Tensor,
        rows: PackedRows,
        logits_rows: Tensor,
        columns: SamplingColumns,
        parents: Tensor,
        row_start: Tensor,
        caches: Caches,
    ) -> tuple[Tensor, ...]:
        """What `CausalLM.forward` returns, and the verification of J requests: ``sampled [R] i64``,
        ``accepted_rows [J, widest] i32`` and ``num_emitted [J] i32``, as defined by `sample` and
        `accept`. Caches and results are on the graph's device, everything else on the host.

        ``columns`` and ``parents [R] i32`` are of the rows ``logits_rows``, of which request j's
        are ``row_start[j] .. row_start[j + 1] - 1``: root and nodes of its tree, which are as many
        consecutive packed rows. Logits rows after them are in no tree.
        """
        count, requests = len(logits_rows), len(row_start) - 1
        buffers = list(chain(*caches))
        sampled = torch.full((count,), -1, dtype=torch.int64, device=self._device)
        accepted = torch.full((requests, self._widest), -1, dtype=torch.int32, device=self._device)
        emitted = torch.zeros(requests, dtype=torch.int32, device=self._device)
        results: list[Tensor] = []
        for call in self._padding.calls(rows, len(buffers[0])):
            for slot in call.begins:
                for buffer in buffers:
                    buffer[slot].zero_()
            trees = _trees(call, logits_rows, row_start)
            trees = replace(trees, places=self._padding.pad_places(call, trees.places))
            given = VerifyInputs(
                rows=PaddedInputs(
                    call.pad(input_ids),
                    call.positions,
                    call.write_indices,
                    *call.by_slot(rows),
                    call.pad(rows.tree_mask),
                ),
                logits_rows=trees.places,
                columns=SamplingColumns._make(trees.take(column) for column in columns),
                parents=trees.take(parents),
                row_start=trees.row_start,
                seen=call.seen,
            )
            last = call.first_slot + call.num_slots
            wanted, verified, slots, packed, places, *arrived = self._staging.to_device(
                [trees.wanted, trees.verified, trees.slots, call.packed, call.places, *given.flat()]
            )
            given = given.filled(arrived)
            own = tuple(buffer[call.first_slot : last] for buffer in buffers)
            outputs = self._session.run(given._replace(caches=own))
            logits, *states, call_sampled, call_accepted, call_emitted = outputs
            if not results:
                results = [logits.new_zeros((count, *logits.shape[1:]))]
                results += [x.new_zeros((len(input_ids), *x.shape[1:])) for x in states]
            results[0][wanted] = logits[: len(wanted)]
            for result, output in zip(results[1:], states, strict=True):
                result[packed] = output[places]
            sampled[wanted] = call_sampled[: len(wanted)]
            accepted[verified] = call_accepted[slots]
            emitted[verified] = call_emitted[slots]
        return (*results, sampled, accepted, emitted)


@dataclass(frozen=True)
class _Trees:
    """The wanted rows of a call, trees first and by slot.

    wanted: their indices among the logits rows ``[n]``. places: where they are among the call's
    rows, at least one ``[R]``. row_start ``[num_slots + 1] i32``: where in them each slot's tree
    begins. verified, slots: the requests that have a tree here, and their slots.
    """

    wanted: Tensor
    places: Tensor
    row_start: Tensor
    verified: Tensor
    slots: Tensor

    def take(self, values: Tensor) -> Tensor:
        """``values`` of the wanted rows, and zeros for unwanted places ``[R]``."""
        taken = values.new_zeros(len(self.places))
        taken[: len(self.wanted)] = values[self.wanted]
        return taken


def _trees(call: PaddedCall, logits_rows: Tensor, row_start: Tensor) -> _Trees:
    none = torch.zeros(0, dtype=torch.int64)
    no_tree = torch.zeros(call.num_slots + 1, dtype=torch.int32)
    if not len(call.packed):  # a call of padding costs what others do
        places = torch.arange(len(logits_rows)) % (call.num_slots * call.num_rows)
        return _Trees(none, places, no_tree, none, none)
    place_of = torch.full((int(max(call.packed.max(), logits_rows.max())) + 1,), -1)
    place_of[call.packed] = call.places
    places = place_of[logits_rows]
    wanted = (places >= 0).nonzero().flatten()
    if not len(wanted):
        return _Trees(none, torch.zeros(1, dtype=torch.int64), no_tree, none, none)
    in_tree = wanted < row_start[-1]
    last = call.num_slots * call.num_rows
    wanted = wanted[torch.where(in_tree, places[wanted], last).argsort(stable=True)]
    places = places[wanted]
    slots = places[: int(in_tree.sum())] // call.num_rows
    starts = no_tree.clone()
    starts[1:] = torch.bincount(slots, minlength=call.num_slots).cumsum(0)
    request = torch.bucketize(wanted[: len(slots)], row_start[1:].long(), right=True)
    return _Trees(
        wanted, places, starts, torch.unique_consecutive(request), torch.unique_consecutive(slots)
    )
