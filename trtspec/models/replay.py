"""Replay: how the states of requests take in the draft nodes that were accepted."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from trtspec.models.causal_lm import CausalLM
from trtspec.models.rows import Caches


class Replay(nn.Module):
    """A target's layers with states, over what a call left in their ``step`` buffers: no pass over
    the weights. Their mixers have a method ``replay``, called as `forward` is with the layer's own
    cache, which computes what a call does of the same rows, in its order: to the bit."""

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
        """Let the states in ``state_slots [J] i32`` take in rows of the last call, in order:
        ``rows[row_start[j] : row_start[j + 1]]``, int64 [N] and int32 [J+1], at least one each, of
        the j-th. Returns the rows, as a graph returns something."""
        for mixer, place in self.mixers:
            mixer.replay(state_slots, rows, row_start, caches[place])
        return (rows.clone(),)
