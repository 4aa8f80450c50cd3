"""EngineInputs: what one call of an engine is given.

An engine takes packed rows, T of them over B requests, without padding between requests; its other
inputs depend on its kind (see `EngineInputs`). A language model returns float32 logits ``[R, V]``
and, if it was built to, the captured states ``[T, n*H]``. One that samples and accepts by itself
(see `trtspec.backends.verifying`, and over slots `trtspec.backends.slots.verify`) returns, behind
those, ``sampled [R]``, ``accepted_rows [J, P]`` and ``num_emitted [J]`` of J requests to verify.
A network over states, which is called for its K/V, returns rows ``[T, H]`` that are not read; a
rollout what `TreeRollout.forward` returns; one of its passes the best children of the wanted rows,
``ids [R, k]`` and ``gains [R, k]``.
`trtspec.models.signature` has the inputs of each kind as example tensors, in the same order.
"""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice
from typing import NamedTuple

from torch import Tensor

from trtspec.backends.staging import Staging
from trtspec.ops.sampling import SamplingColumns


class RowInputs(NamedTuple):
    """The rows of a call, and what they see.

    input_ids      [T] i64     token of each row
    positions      [T] i64     position for the rotary embedding (tree nodes: root + depth)
    slot_mapping   [T] i64     flat cache slot that receives the row's K/V; -1 marks padding
    block_tables   [B, M] i32  cache blocks of each request in order; -1 where it has none
    query_start    [B+1] i32   first row of each request
    context_lens   [B] i32     committed tokens that every row of the request sees
    is_tree        [B] bool    False: rows are causal among themselves
    tree_mask      [T, W] i64  True: bit j = the row sees cache position context_lens + j
    """

    input_ids: Tensor
    positions: Tensor
    slot_mapping: Tensor
    block_tables: Tensor
    query_start: Tensor
    context_lens: Tensor
    is_tree: Tensor
    tree_mask: Tensor


class EngineInputs(NamedTuple):
    """A call's inputs; None: what this kind of engine does not take.

    rows          of all engines but those without K/V, and of a replay
    state_slots   [B] i32     a network that keeps states: each request's, -1 marks padding
    adapters      [T] i32     a target with adapters: where that of each row lies, -1: it has none
    logits_rows   [R] i64     a language model: rows whose logits are wanted; a replay: rows of the
                  last call that its requests' states are to take in
    root_ids      [B] i64     a rollout without K/V that reads it: each request's root
    root_hidden   [B, n*H]    a rollout without K/V: the state before each request's root
    last_rows     [B] i64     a rollout: the last row of each request; [R] of one of its passes: the
                  rows whose children are wanted
    columns       sampling values: [B] of a rollout's requests; [R] of such rows, and of the logits
                  rows of a target that samples and accepts by itself
    parents       [R] i32     such a target: of its logits rows, in their trees
    row_start     [J+1] i32   such a target: first logits row of each request to verify; a replay:
                  first one of each request
    hidden_in     [T, n*H]    a network that reads the target's states: those of each row
    caches        the buffers of each layer's cache, see `KVTensors`, written in place
    """

    rows: RowInputs | None = None
    state_slots: Tensor | None = None
    adapters: Tensor | None = None
    logits_rows: Tensor | None = None
    root_ids: Tensor | None = None
    root_hidden: Tensor | None = None
    last_rows: Tensor | None = None
    columns: SamplingColumns | None = None
    parents: Tensor | None = None
    row_start: Tensor | None = None
    hidden_in: Tensor | None = None
    caches: tuple[Tensor, ...] = ()

    def flat(self) -> list[Tensor]:
        """The tensors that there are, in the order in which a compiled engine takes them."""
        tensors: list[Tensor] = []
        for field in self:
            if isinstance(field, Tensor):
                tensors.append(field)
            elif field is not None:
                tensors += field
        return tensors

    def placed(self, staging: Staging, stable: bool = False) -> EngineInputs:
        """The same on the device, in one copy; see `Staging.to_device`."""
        if not staging.copies:
            return self
        return self.filled(staging.to_device(self.flat(), stable))

    def filled(self, tensors: Iterable[Tensor]) -> EngineInputs:
        """The same fields with other tensors, which come in the order of `flat`."""
        given = iter(tensors)
        return EngineInputs(
            rows=None if self.rows is None else RowInputs._make(islice(given, len(self.rows))),
            state_slots=None if self.state_slots is None else next(given),
            adapters=None if self.adapters is None else next(given),
            logits_rows=None if self.logits_rows is None else next(given),
            root_ids=None if self.root_ids is None else next(given),
            root_hidden=None if self.root_hidden is None else next(given),
            last_rows=None if self.last_rows is None else next(given),
            columns=None
            if self.columns is None
            else SamplingColumns._make(islice(given, len(self.columns))),
            parents=None if self.parents is None else next(given),
            row_start=None if self.row_start is None else next(given),
            hidden_in=None if self.hidden_in is None else next(given),
            caches=tuple(given),
        )
