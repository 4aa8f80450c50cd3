"""KernelSession: a target's plain graph with kernels beside it that do what plugins do inside."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trtspec.backends.session import GraphSession
from trtspec.backends.slots.verify import VerifyInputs
from trtspec.ops.acceptance import accept_trees
from trtspec.ops.sampling import sample
from trtspec.ops.tree_mask import tree_mask


class KernelSession:
    """A `VerifySession` without plugins. Kernels make the masks before the plain graph runs;
    afterwards they sample its logits and walk the trees. Tensors stay in place."""

    def __init__(self, session: GraphSession, windows: Sequence[int], width: int) -> None:
        """``session``: over the graph of `SlotModel` with these ``windows``. ``width``: most rows
        of a tree."""
        self._session = session
        self._windows = tuple(windows)
        self._width = width

    def run(self, inputs: VerifyInputs) -> list[Tensor]:
        """See `VerifySession.run`."""
        rows = inputs.rows
        masks = (
            tree_mask(
                rows.positions.flatten(),
                rows.slot_mapping.flatten(),
                rows.query_start,
                rows.context_lens,
                rows.is_tree.bool(),
                rows.tree_mask.flatten(0, 1),
                width=rows.input_ids.shape[1],
                length=inputs.seen,
                sliding_window=window,
                dtype=torch.bool,
            )
            for window in self._windows
        )
        padded = [rows.input_ids, rows.positions, rows.write_indices, *masks]
        outputs = self._session.run([*padded, inputs.logits_rows, *inputs.caches])
        sampled = sample(outputs[0], *inputs.columns)
        drafted = rows.input_ids.flatten()[inputs.logits_rows]
        accepted = accept_trees(sampled, drafted, inputs.parents, inputs.row_start, self._width)
        return [*outputs, sampled, *accepted]
