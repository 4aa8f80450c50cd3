"""KernelSession: a target's plain graph, and beside it the kernels that plugins have inside."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.backends.slots.networks import GraphSession
from trtspec.ops.acceptance import accept_trees
from trtspec.ops.sampling import SamplingColumns, sample
from trtspec.ops.tree_mask import tree_mask

_ROWS = 8  # inputs that say what the rows are and see
_COLUMNS = len(SamplingColumns._fields)


class KernelSession:
    """Has the inputs and outputs of `SlotVerify` where there can be no plugins, as in
    TensorRT-RTX: masks are made before the plain graph runs, and its logits sampled and trees
    walked behind it, all where the tensors are."""

    def __init__(
        self, session: GraphSession, windows: Sequence[int], length: int, width: int
    ) -> None:
        """``session``: over the graph of `SlotModel` with these ``windows``. ``length``: of a
        cache slot. ``width``: most rows of a tree."""
        self._session = session
        self._windows = tuple(windows)
        self._length = length
        self._width = width

    def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
        """Run on the graph's inputs in order; the caches among them are written in place. Returns
        the other outputs."""
        ids, positions, write_indices, slots, starts, contexts, trees, ancestors = inputs[:_ROWS]
        wanted, *asked = inputs[_ROWS : _ROWS + _COLUMNS + 3]
        *columns, parents, row_start = asked
        caches = inputs[_ROWS + _COLUMNS + 3 :]
        seen = (positions.flatten(), slots.flatten(), starts, contexts, trees.bool())
        masks = (
            tree_mask(
                *seen,
                ancestors.flatten(0, 1),
                width=ids.shape[1],
                length=self._length,
                sliding_window=window,
                dtype=torch.bool,
            )
            for window in self._windows
        )
        outputs = self._session.run([ids, positions, write_indices, *masks, wanted, *caches])
        sampled = sample(outputs[0], *columns)
        drafted = ids.flatten()[wanted]
        verdict = accept_trees(sampled, drafted, parents, row_start, self._width)
        return [*outputs, sampled, *verdict]
