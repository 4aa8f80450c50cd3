"""Networks over packed rows and paged caches as ONNX graphs see them: modules, for export.

In addition to the outputs named by a module's ``forward``, all caches are returned as they are
after the call, layer by layer: the same memory as given.
"""

from __future__ import annotations

from itertools import chain
from typing import Any

import torch
from torch import Tensor, nn

from trtspec.backends.tensorrt import plugin_ops
from trtspec.backends.tensorrt.paged_rows import PluginRows
from trtspec.models.causal_lm import CausalLM
from trtspec.models.rows import Caches, PackedRows
from trtspec.ops.sampling import SamplingColumns


class PagedVerify(nn.Module):
    """A language model that samples every row whose logits are wanted, and walks the trees."""

    def __init__(self, model: CausalLM, width: int) -> None:
        """``width``: most rows of a tree."""
        super().__init__()
        self.model = model
        self.width = width

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
        """Inputs are those of `verify_signature`. Returns what `CausalLM.forward` does, the token
        that each wanted row emits ``[R] i64``, the rows accepted ``[J, width] i32``, how many ``[J]
        i32``, and the caches."""
        placed = plugin_rows(rows)
        outputs = self.model(input_ids, placed, logits_rows, caches)
        sampled = plugin_ops.keyed_sample(outputs[0], columns)
        drafted = input_ids[logits_rows]
        accepted = plugin_ops.tree_accept(sampled, drafted, parents, row_start, self.width)
        return (*outputs, sampled, *accepted, *chain(*placed.written))


class PagedPass(nn.Module):
    """One pass of a draft network (see `DraftNetwork.draft`)."""

    def __init__(self, model: nn.Module, part: str = "") -> None:
        """``part``: the submodule that is the network, if ``model`` is not."""
        super().__init__()
        self.model = model
        self.part = part

    def forward(self, input_ids: Tensor, rows: PackedRows, caches: Caches) -> tuple[Tensor, ...]:
        """Returns the rows that its head reads ``[T, H]``, and the caches."""
        return self.run(input_ids, rows, None, caches)

    def run(
        self,
        input_ids: Tensor,
        rows: PackedRows,
        features: Tensor | None,
        caches: Caches,
    ) -> tuple[Tensor, ...]:
        """The pass, with features for a network that reads them."""
        placed = plugin_rows(rows)
        network: Any = self.model.get_submodule(self.part)
        following, ready = network.draft(input_ids, features, placed, caches)
        outputs = (ready,) if following is None else (ready, following)
        return (*outputs, *chain(*placed.written))


class PagedFeaturePass(PagedPass):
    """One pass of a draft network that reads features; see `SlotFeaturePass`."""

    def forward(  # type: ignore[override]
        self,
        input_ids: Tensor,
        rows: PackedRows,
        features: Tensor,
        caches: Caches,
    ) -> tuple[Tensor, ...]:
        """With ``features [T, H]``; the head's input is followed by the next features ``[T,
        H]``."""
        return self.run(input_ids, rows, features, caches)


class PagedContext(nn.Module):
    """Writes the context rows of a network whose keys and values come from hidden states only (see
    `BlockDraft.forward`)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, rows: PackedRows, hidden_in: Tensor, caches: Caches) -> tuple[Tensor, ...]:
        """With the target's hidden states ``hidden_in [T, n * H_t]``. Returns what is made of them
        ``[T, H]``, and the caches."""
        placed = plugin_rows(rows)
        (context,) = self.model(rows.positions, placed, hidden_in, caches)
        return (context, *chain(*placed.written))


def plugin_rows(rows: PackedRows) -> PluginRows:
    """The rows in the form of the plugin, which has no boolean inputs."""
    return PluginRows(rows._replace(is_tree=rows.is_tree.to(torch.int32)))
