"""Replay: applies accepted draft nodes to the requests' recurrent states."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from trtspec.models.causal_lm import CausalLM
from trtspec.models.rows import Caches


class Replay(nn.Module):
    """A network's layers with recurrent states, applied to what a call left in their ``step``
    buffers: no pass over the weights. Their mixers have a method ``replay``, called like `forward`
    with the layer's own cache, which computes exactly what a call computes for the same rows, in
    its order."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        assert isinstance(model, CausalLM), "of a target"
        self.layers = model.layers  # so that weights have the names that they have in the model
        layers = zip(model.config.layers, model.layers, model.cache_places, strict=True)
        self.mixers: list[tuple[Any, int]] = [
            (layer.attn, place)
            for spec, layer, place in layers
            if any(buffer.kind == "slot" for buffer in spec.mixer.buffers)
        ]

    def forward(
        self, state_slots: Tensor, rows: Tensor, row_start: Tensor, caches: Caches
    ) -> tuple[Tensor]:
        """Apply rows of the last call, in order, to the states in ``state_slots [J] i32``:
        ``rows[row_start[j] : row_start[j + 1]]``, int64 [N] and int32 [J+1], to the j-th, at least
        one each. Returns the rows, as a graph must return something."""
        for mixer, place in self.mixers:
            mixer.replay(state_slots, rows, row_start, caches[place])
        return (rows.clone(),)
