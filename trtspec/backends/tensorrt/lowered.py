"""A target with plugins inside, as ONNX graphs see it: a module over padded rows, for export."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain

from torch import Tensor, nn

from trtspec.backends.parts import MaskKind
from trtspec.backends.slots.rows import SlotRows
from trtspec.backends.tensorrt import plugin_ops
from trtspec.models.causal_lm import CausalLM
from trtspec.models.rows import Caches
from trtspec.ops.sampling import SamplingColumns


class SlotVerify(nn.Module):
    """A language model that makes its masks from packed ancestors, samples every row whose logits
    are wanted, and walks the trees. The plugins of `plugin_ops` do all three."""

    def __init__(self, model: CausalLM, kinds: Sequence[MaskKind], width: int) -> None:
        """``kinds``: see `SlotModel`. ``width``: most rows of a tree."""
        super().__init__()
        self.model = model
        self.kinds = tuple(kinds)
        self.width = width

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        write_indices: Tensor,
        slot_mapping: Tensor,
        query_start: Tensor,
        context_lens: Tensor,
        is_tree: Tensor,
        tree_mask: Tensor,
        view: Tensor,
        logits_rows: Tensor,
        columns: Sequence[Tensor],
        parents: Tensor,
        row_start: Tensor,
        caches: Caches,
    ) -> tuple[Tensor, ...]:
        """``input_ids``, ``positions``, ``write_indices``, ``logits_rows`` and the caches as in
        `SlotModel`; ``slot_mapping [B, S] i64``, ``query_start [B + 1]``, ``context_lens`` and
        ``is_tree [B] i32``, ``tree_mask [B, S, W]`` and ``view [L'] i64`` as in
        `plugin_ops.tree_mask`; ``columns``, those of `SamplingColumns`, and ``parents [R] i32`` of
        the rows ``logits_rows``; ``row_start [B + 1] i32``: which of these are a request's tree.

        Returns what `CausalLM.forward` does, the token that each wanted row emits ``[R] i64``,
        the rows accepted ``[B, width] i32``, how many ``[B] i32``, and the caches."""
        masks = {
            kind: plugin_ops.tree_mask(
                input_ids,
                positions.flatten(),
                slot_mapping.flatten(),
                query_start,
                context_lens,
                is_tree,
                tree_mask.flatten(0, 1),
                view,
                dtype=caches[0][0].dtype,
                sliding_window=kind.window,
            )
            for kind in self.kinds
        }
        rows = SlotRows(positions, write_indices, masks)
        ids = input_ids.flatten()
        outputs = self.model(ids, rows, logits_rows, caches)
        sampled = plugin_ops.keyed_sample(outputs[0], SamplingColumns(*columns))
        accepted = plugin_ops.tree_accept(sampled, ids[logits_rows], parents, row_start, self.width)
        return (*outputs, sampled, *accepted, *chain(*rows.written))
