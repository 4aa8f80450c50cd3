"""Rows over a linear cache: padded to the same number for every sequence, in standard ONNX ops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from trtspec.models import onnx_ops


@dataclass
class LinearRows:
    """S rows of each of B sequences over caches ``[B, Hkv, L, D]``, for export (see `onnx_ops`).

    positions ``[B * S] i64``. write_indices ``[B] i64``: where in the cache the first of a
    sequence's rows goes, the others behind it. masks: by sliding window (0: none), the cache
    positions that each row sees, ``[B, 1, S, L] bool``, its own among them or others written
    before. k_caches, v_caches: as they are after each layer, in the order of the layers; an ONNX
    graph changes nothing in place.
    """

    positions: Tensor
    write_indices: Tensor
    masks: Mapping[int, Tensor]
    k_caches: list[Tensor] = field(default_factory=list)
    v_caches: list[Tensor] = field(default_factory=list)

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cos_sin: tuple[Tensor, Tensor],
        k_cache: Tensor,
        v_cache: Tensor,
        scale: float,
        sliding_window: int,
    ) -> Tensor:
        """See `Rows.attend`; what becomes of the caches is kept here."""
        mask = self.masks[sliding_window]
        batch, rows = mask.shape[0], mask.shape[2]
        cos, sin = (x.view(batch, rows, -1) for x in cos_sin)

        def heads_first(x: Tensor) -> Tensor:
            return x.view(batch, rows, -1, x.shape[-1]).transpose(1, 2)

        def turned(x: Tensor) -> Tensor:
            # In float32 with one rounding, as `rotate` does it.
            return onnx_ops.rotary_embedding(heads_first(x).float(), cos, sin).to(x.dtype)

        k_cache = onnx_ops.tensor_scatter(k_cache, turned(k), self.write_indices)
        v_cache = onnx_ops.tensor_scatter(v_cache, heads_first(v), self.write_indices)
        self.k_caches.append(k_cache)
        self.v_caches.append(v_cache)
        attended = onnx_ops.attention(turned(q), k_cache, v_cache, mask, scale)
        return attended.transpose(1, 2).reshape(q.shape)
