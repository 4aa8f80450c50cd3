"""A target whose graph samples and accepts: it takes packed rows, ancestors and sampling values,
and says which rows of every tree the target accepts.

Its graph has the inputs of a backend's own module that samples and accepts. Slots stand for
requests there: each has its rows, of the tree as well, in the order of the slots, or none.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from trtspec.backends.slots.networks import GraphSession
from trtspec.backends.slots.padding import PaddedCall, Padding
from trtspec.backends.staging import Staging
from trtspec.models.attention import PackedRows
from trtspec.ops.sampling import SamplingColumns


class VerifyNetwork(nn.Module):
    """Runs a target's graph with plugins, see `trtspec.engine.lowering`."""

    def __init__(
        self,
        session: GraphSession,
        length: int,
        widest: int,
        device: str,
        slot_counts: Sequence[int] = (),
    ) -> None:
        """``length``, ``widest``, ``slot_counts``: see `padded_calls`; a tree has at most
        ``widest`` rows."""
        super().__init__()
        self._session = session
        self._padding = Padding(length, widest, slot_counts=slot_counts)  # the graph makes masks
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
        k_caches: list[Tensor],
        v_caches: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """What `CausalLM.forward` returns, and the verdict on J requests: ``sampled [R] i64``,
        ``accepted_rows [J, widest] i32`` and ``num_emitted [J] i32``, as `sample` and `accept` say.
        Caches and results are on the graph's device, all else is on the host.

        ``columns`` and ``parents [R] i32`` are of the rows ``logits_rows``, of which request j's
        are ``row_start[j] .. row_start[j + 1] - 1``: root and nodes of its tree, which are as many
        of its packed rows, one behind the other. Logits rows behind them are in no tree.
        """
        count, requests = len(logits_rows), len(row_start) - 1
        caches = [*k_caches, *v_caches]
        sampled = torch.full((count,), -1, dtype=torch.int64, device=self._device)
        accepted = torch.full((requests, self._widest), -1, dtype=torch.int32, device=self._device)
        emitted = torch.zeros(requests, dtype=torch.int32, device=self._device)
        results: list[Tensor] = []
        for call in self._padding.calls(rows, len(caches[0])):
            for slot in call.begins:
                for cache in caches:
                    cache[slot].zero_()
            trees = _trees(call, logits_rows, row_start)
            trees = replace(trees, places=self._padding.pad_places(call, trees.places))
            given = [
                *(call.pad(input_ids), call.positions, call.write_indices),
                *_seen(call, rows),
                trees.places,
                *(trees.take(column) for column in (*columns, parents)),
                trees.row_start,
            ]
            last = call.first_slot + call.num_slots
            host = [trees.wanted, trees.judged, trees.slots, call.packed, call.places]
            arrived = self._staging.to_device([*host, *given])
            wanted, judged, slots, packed, places = arrived[: len(host)]
            outputs = self._session.run(
                [*arrived[len(host) :], *(cache[call.first_slot : last] for cache in caches)]
            )
            logits, *states, call_sampled, call_accepted, call_emitted = outputs
            if not results:
                results = [logits.new_zeros((count, *logits.shape[1:]))]
                results += [x.new_zeros((len(input_ids), *x.shape[1:])) for x in states]
            results[0][wanted] = logits[: len(wanted)]
            for result, output in zip(results[1:], states, strict=True):
                result[packed] = output[places]
            sampled[wanted] = call_sampled[: len(wanted)]
            accepted[judged] = call_accepted[slots]
            emitted[judged] = call_emitted[slots]
        return (*results, sampled, accepted, emitted)


@dataclass(frozen=True)
class _Trees:
    """The wanted rows of a call, trees first and by slot.

    wanted: their indices among the logits rows ``[n]``. places: where they stand among the call's
    rows, at least one ``[R]``. row_start ``[num_slots + 1] i32``: where in them each slot's tree
    begins. judged, slots: the requests that have a tree here, and their slots.
    """

    wanted: Tensor
    places: Tensor
    row_start: Tensor
    judged: Tensor
    slots: Tensor

    def take(self, values: Tensor) -> Tensor:
        """``values`` of the wanted rows, and zeros for places that nobody wants ``[R]``."""
        taken = values.new_zeros(len(self.places))
        taken[: len(self.wanted)] = values[self.wanted]
        return taken


def _seen(call: PaddedCall, rows: PackedRows) -> Sequence[Tensor]:
    """What says which positions the rows of a call see: ``slot_mapping``, ``query_start``,
    ``context_lens``, ``is_tree`` and ``tree_mask`` of the graph."""
    request = torch.bucketize(call.packed, rows.query_start[1:].long(), right=True)
    slots = call.places // call.num_rows
    contexts = torch.zeros(call.num_slots, dtype=torch.int32)
    contexts[slots] = rows.context_lens[request]
    trees = torch.zeros(call.num_slots, dtype=torch.int32)
    trees[slots] = rows.is_tree[request].int()
    return (
        call.pad(rows.slot_mapping + 1) - 1,
        torch.arange(call.num_slots + 1, dtype=torch.int32) * call.num_rows,
        contexts,
        trees,
        call.pad(rows.tree_mask),
    )


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
