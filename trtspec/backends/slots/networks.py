"""Lowered graphs over packed rows, and the target made of one.

A rollout over a draft network made of such graphs is the rollout of `trtspec.speculative` itself.
Between passes it chooses candidates, beams and trees with the same ops as every other backend,
since the choice must agree to the bit with the target's. (TensorRT could not choose: keyed noise
consists of 64-bit integers and doubles, for which it has no operators.)
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain, islice

import torch
from torch import Tensor, nn

from trtspec.backends.parts import MaskKind, RowsGraph
from trtspec.backends.session import GraphSession
from trtspec.backends.slots.padding import PaddedCall, Padding, View
from trtspec.backends.staging import Staging
from trtspec.models.rows import Caches, PackedRows
from trtspec.ops.tree_mask import tree_mask


class SlotGraph:
    """Runs a graph over padded rows, but takes packed rows.

    The caches are ``[slots, Hkv, length, D]``. A sequence's first call clears its slot, including
    any NaN that was left there.

    The host computes the padded call, from rows on the host, and copies it to the device in one
    piece. Nothing is copied back: tokens and tree masks that a rollout chose on the device are
    padded there.
    """

    def __init__(
        self,
        session: GraphSession,
        length: int,
        widest: int,
        kinds: Sequence[MaskKind],
        device: str = "cpu",
        slot_counts: Sequence[int] = (),
        *,
        view: View = View.WHOLE,
    ) -> None:
        """``length``, ``widest``, ``slot_counts``, ``view``: see `padded_calls`; ``kinds``: of
        the masks that the graph reads."""
        self._session = session
        self._padding = Padding(length, widest, kinds, slot_counts, view)
        self._staging = Staging(torch.device(device))

    def run(
        self,
        input_ids: Tensor | None,
        rows: PackedRows,
        caches: Caches,
        *,
        features: Tensor | None = None,
        logits_rows: Tensor | None = None,
    ) -> list[Tensor]:
        """The graph's outputs for packed rows ``[T, ...]``, zero for padding; with ``logits_rows``
        the first output has those rows ``[R, ...]``. ``input_ids`` and ``features`` are those of
        each row, for a graph that reads them. ``features`` and the caches are on the graph's
        device, ``input_ids`` and the tree masks there or on the host, everything else on the host.
        """
        results: list[Tensor] = []
        buffers = list(chain(*caches))
        for call in self._padding.calls(rows, len(buffers[0])):
            for slot in call.begins:
                for buffer in buffers:
                    buffer[slot].zero_()
            ids = [] if input_ids is None else [input_ids]
            given = [call.pad(x) for x in ids if x.device.type == "cpu"]
            asked = [] if logits_rows is None else self._wanted(call, logits_rows)
            told = [*call.by_slot(rows)] if len(call.masks) < len(self._padding.kinds) else []
            call, staged = call.staged(self._staging, *given, *asked, *told)
            arrived = iter(staged)
            given, asked, told = (list(islice(arrived, len(x))) for x in (given, asked, told))
            ids = given or [call.pad(x) for x in ids]
            masks = self._masks(call, told, rows.tree_mask) if told else call.masks
            inputs = [*ids, call.positions, call.write_indices, *masks, *asked[1:]]
            if features is not None:
                inputs.append(call.pad(features))
            last = call.first_slot + call.num_slots
            outputs = self._session.run([*inputs, *(b[call.first_slot : last] for b in buffers)])
            if not results:
                results = _empty(outputs, len(rows.positions), logits_rows)
            for wanted in asked[:1]:
                results[0][wanted] = outputs[0][: len(wanted)]
            begin = len(asked[:1])
            for result, output in zip(results[begin:], outputs[begin:], strict=True):
                result[call.packed] = output[call.places]
        return results

    def _masks(self, call: PaddedCall, told: Sequence[Tensor], ancestors: Tensor) -> list[Tensor]:
        """The masks of rows whose ``ancestors [T, W]`` are on the device, made there by a kernel;
        ``told``: see `PaddedCall.by_slot`."""
        slots, starts, contexts, trees = told
        assert not any(kind.is_causal for kind in self._padding.kinds), "blocks are the host's"
        return [
            tree_mask(
                call.positions.flatten(),
                slots.flatten(),
                starts,
                contexts,
                trees,
                call.pad(ancestors).flatten(0, 1),
                width=call.num_rows,
                length=call.seen,
                sliding_window=kind.window,
            )
            for kind in self._padding.kinds
        ]

    def _wanted(self, call: PaddedCall, logits_rows: Tensor) -> list[Tensor]:
        wanted, places = _wanted(call, logits_rows)
        return [wanted, self._padding.pad_places(call, places)]


class TargetNetwork(nn.Module):
    """A target whose ``forward`` is that of `CausalLM`."""

    def __init__(self, graph: RowsGraph) -> None:
        super().__init__()
        self._graph = graph

    def forward(
        self,
        input_ids: Tensor,
        rows: PackedRows,
        logits_rows: Tensor,
        caches: Caches,
    ) -> tuple[Tensor, ...]:
        """See `CausalLM.forward`."""
        return tuple(self._graph.run(input_ids, rows, caches, logits_rows=logits_rows))


def _wanted(call: PaddedCall, logits_rows: Tensor) -> tuple[Tensor, Tensor]:
    """A call's wanted rows: their indices in ``logits_rows``, and their places among the call's
    rows. There is at least one place, as a graph needs one."""
    if not len(call.packed):  # a call of padding costs what others do
        return call.packed, torch.arange(len(logits_rows)) % (call.num_slots * call.num_rows)
    count = int(max(call.packed.max(), logits_rows.max())) + 1
    place = torch.full((count,), -1, dtype=torch.int64)
    place[call.packed] = call.places
    places = place[logits_rows]
    wanted = (places >= 0).nonzero().flatten()
    return wanted, places[wanted] if len(wanted) else places.new_zeros(1)


def _empty(outputs: Sequence[Tensor], rows: int, logits_rows: Tensor | None) -> list[Tensor]:
    """Zeros for packed results, with the widths of one call's outputs."""
    counts = [rows] * len(outputs)
    if logits_rows is not None:
        counts[0] = len(logits_rows)
    return [
        output.new_zeros((count, *output.shape[1:]))
        for output, count in zip(outputs, counts, strict=True)
    ]
