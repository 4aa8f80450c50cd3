"""The networks as ONNX graphs see them: modules over padded rows and slot caches, for export.

A padded call has S rows of each of B sequences (see `SlotRows`). In addition to the outputs named
by a module's ``forward``, all caches are returned as they are after the call, layer by layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

from torch import Tensor, nn

from trtspec.backends.parts import MaskKind
from trtspec.backends.slots.rows import SlotRows
from trtspec.models.causal_lm import CausalLM
from trtspec.models.rows import Caches


class SlotModel(nn.Module):
    """A language model that returns logits."""

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
        caches: Caches,
    ) -> tuple[Tensor, ...]:
        """``input_ids`` and ``positions [B, S] i64``, ``write_indices [B] i64``, a mask ``[B, 1, S,
        L'] bool`` of each kind; ``logits_rows [R] i64`` indexes all B * S rows. Returns what
        `CausalLM.forward` returns, and the caches."""
        rows = SlotRows(positions, write_indices, dict(zip(self.kinds, masks, strict=True)))
        outputs = self.model(input_ids.flatten(), rows, logits_rows, caches)
        return (*outputs, *chain(*rows.written))


class SlotPass(nn.Module):
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
        caches: Caches,
    ) -> tuple[Tensor, ...]:
        """Inputs as in `SlotModel`. Returns the rows that its head reads ``[B * S, H]``, and the
        caches."""
        return self.run(input_ids, positions, write_indices, masks, None, caches)

    def run(
        self,
        input_ids: Tensor,
        positions: Tensor,
        write_indices: Tensor,
        masks: list[Tensor],
        features: Tensor | None,
        caches: Caches,
    ) -> tuple[Tensor, ...]:
        """The pass, with features for a network that reads them."""
        rows = SlotRows(positions, write_indices, dict(zip(self.kinds, masks, strict=True)))
        flat = None if features is None else features.flatten(0, 1)
        network: Any = self.model.get_submodule(self.part)
        following, ready = network.draft(input_ids.flatten(), flat, rows, caches)
        outputs = (ready,) if following is None else (ready, following)
        return (*outputs, *chain(*rows.written))


class SlotFeaturePass(SlotPass):
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
        caches: Caches,
    ) -> tuple[Tensor, ...]:
        """As `SlotPass.forward`, with ``features [B, S, H]``; the head's input is followed by the
        next features ``[B * S, H]``."""
        return self.run(input_ids, positions, write_indices, masks, features, caches)


class SlotContext(nn.Module):
    """Writes the context rows of a network whose keys and values come from hidden states only (see
    `BlockDraft.forward`)."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(
        self,
        positions: Tensor,
        write_indices: Tensor,
        hidden_in: Tensor,
        caches: Caches,
    ) -> tuple[Tensor, ...]:
        """Inputs as in `SlotModel`, with the target's hidden states ``hidden_in [B, S, n * H_t]``.
        Returns what is made of them ``[B * S, H]``, and the caches."""
        rows, flat = SlotRows(positions, write_indices, {}), hidden_in.flatten(0, 1)
        (context,) = self.model(rows.positions, rows, flat, caches)
        return (context, *chain(*rows.written))


class SlotMethod(nn.Module):
    """One method of a network that needs neither rows nor caches."""

    def __init__(self, model: nn.Module, name: str, part: str = "") -> None:
        """``part``: see `SlotPass`."""
        super().__init__()
        self.model = model
        self.name = name
        self.part = part

    def forward(self, hidden: Tensor) -> tuple[Tensor]:
        """``hidden [R, H]`` -> the method's result."""
        return (getattr(self.model.get_submodule(self.part), self.name)(hidden),)
