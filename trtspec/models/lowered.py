"""The networks as ONNX graphs see them: modules over padded rows and linear caches, for export.

A padded call has S rows of each of B sequences (see `LinearRows`). Besides the outputs that a
module's ``forward`` names, all caches come out as they are after the call, keys first.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from torch import Tensor, nn

from trtspec.models import plugin_ops
from trtspec.models.causal_lm import CausalLM
from trtspec.models.linear_rows import LinearRows, MaskKind
from trtspec.ops.sampling import SamplingColumns


class LinearModel(nn.Module):
    """A language model whose logits are wanted."""

    def __init__(self, model: CausalLM, kinds: Sequence[MaskKind]) -> None:
        """``kinds``: of the masks that its layers read."""
        super().__init__()
        self.model = model
        self.kinds = tuple(kinds)

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        write_indices: Tensor,
        masks: list[Tensor],
        logits_rows: Tensor,
        k_caches: list[Tensor],
        v_caches: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """``input_ids`` and ``positions [B, S] i64``, ``write_indices [B] i64``, a mask
        ``[B, 1, S, L'] bool`` of each kind; ``logits_rows [R] i64`` counts through all B * S rows.
        Returns what `CausalLM.forward` does, and the caches."""
        rows = LinearRows(positions, write_indices, dict(zip(self.kinds, masks, strict=True)))
        outputs = self.model(input_ids.flatten(), rows, logits_rows, k_caches, v_caches)
        return (*outputs, *rows.k_caches, *rows.v_caches)


class LinearVerify(nn.Module):
    """A language model that makes its masks of packed ancestors, samples every row whose logits are
    wanted, and walks the trees: by the plugins of `plugin_ops`."""

    def __init__(self, model: CausalLM, kinds: Sequence[MaskKind], length: int, width: int) -> None:
        """``kinds``: see `LinearModel`. ``length``: positions of a cache slot. ``width``: most
        rows of a tree."""
        super().__init__()
        self.model = model
        self.kinds = tuple(kinds)
        self.length = length
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
        logits_rows: Tensor,
        columns: Sequence[Tensor],
        parents: Tensor,
        row_start: Tensor,
        k_caches: list[Tensor],
        v_caches: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """``input_ids``, ``positions``, ``write_indices``, ``logits_rows`` and the caches as in
        `LinearModel`; ``slot_mapping [B, S] i64``, ``query_start [B + 1]``, ``context_lens`` and
        ``is_tree [B] i32`` and ``tree_mask [B, S, W] i64`` as in `plugin_ops.tree_mask`;
        ``columns``, those of `SamplingColumns`, and ``parents [R] i32`` of the rows
        ``logits_rows``; ``row_start [B + 1] i32``: which of these are a request's tree.

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
                length=self.length,
                dtype=k_caches[0].dtype,
                sliding_window=kind.window,
            )
            for kind in self.kinds
        }
        rows = LinearRows(positions, write_indices, masks)
        ids = input_ids.flatten()
        outputs = self.model(ids, rows, logits_rows, k_caches, v_caches)
        sampled = plugin_ops.keyed_sample(outputs[0], SamplingColumns(*columns))
        accepted = plugin_ops.tree_accept(sampled, ids[logits_rows], parents, row_start, self.width)
        return (*outputs, sampled, *accepted, *rows.k_caches, *rows.v_caches)


class LinearPass(nn.Module):
    """One pass of a draft network (see `DraftNetwork.draft`)."""

    def __init__(self, model: nn.Module, kinds: Sequence[MaskKind], part: str = "") -> None:
        """``part``: the submodule that is the network, if ``model`` is not."""
        super().__init__()
        self.model = model
        self.kinds = tuple(kinds)
        self.part = part

    def forward(
        self,
        input_ids: Tensor,
        positions: Tensor,
        write_indices: Tensor,
        masks: list[Tensor],
        k_caches: list[Tensor],
        v_caches: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """Inputs as in `LinearModel`. Returns the rows that its head reads ``[B * S, H]``, and the
        caches."""
        return self.run(input_ids, positions, write_indices, masks, None, k_caches, v_caches)

    def run(
        self,
        input_ids: Tensor,
        positions: Tensor,
        write_indices: Tensor,
        masks: list[Tensor],
        features: Tensor | None,
        k_caches: list[Tensor],
        v_caches: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """The pass of a network that reads features or of one that does not."""
        rows = LinearRows(positions, write_indices, dict(zip(self.kinds, masks, strict=True)))
        flat = None if features is None else features.flatten(0, 1)
        network: Any = self.model.get_submodule(self.part)
        following, ready = network.draft(input_ids.flatten(), flat, rows, k_caches, v_caches)
        outputs = (ready,) if following is None else (ready, following)
        return (*outputs, *rows.k_caches, *rows.v_caches)


class LinearFeaturePass(LinearPass):
    """One pass of a draft network that reads features.

    An exporter gives dynamic dimensions their names only where no argument is None or empty, so
    networks without features have a ``forward`` without them.
    """

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        positions: Tensor,
        write_indices: Tensor,
        masks: list[Tensor],
        features: Tensor,
        k_caches: list[Tensor],
        v_caches: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """As `LinearPass.forward`, with ``features [B, S, H]``; behind what the head reads come the
        next features ``[B * S, H]``."""
        return self.run(input_ids, positions, write_indices, masks, features, k_caches, v_caches)


class LinearContext(nn.Module):
    """The writing of context rows of a network that makes keys and values of states alone (see
    `DFlashDraft.forward`)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        positions: Tensor,
        write_indices: Tensor,
        hidden_in: Tensor,
        k_caches: list[Tensor],
        v_caches: list[Tensor],
    ) -> tuple[Tensor, ...]:
        """Inputs as in `LinearModel`, with the target's states ``hidden_in [B, S, n * H_t]``.
        Returns what is made of them ``[B * S, H]``, and the caches."""
        rows, flat = LinearRows(positions, write_indices, {}), hidden_in.flatten(0, 1)
        (context,) = self.model(rows.positions, rows, flat, k_caches, v_caches)
        return (context, *rows.k_caches, *rows.v_caches)


class Method(nn.Module):
    """One method of a network that needs neither rows nor caches."""

    def __init__(self, model: nn.Module, name: str, part: str = "") -> None:
        """``part``: see `LinearPass`."""
        super().__init__()
        self.model = model
        self.name = name
        self.part = part

    def forward(self, hidden: Tensor) -> tuple[Tensor]:
        """``hidden [R, H]`` -> the method's result."""
        return (getattr(self.model.get_submodule(self.part), self.name)(hidden),)
