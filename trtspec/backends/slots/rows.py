"""Rows over a slot cache: padded to the same number for every sequence, in standard ONNX ops."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from torch import Tensor

from trtspec.backends.parts import MaskKind
from trtspec.models import export_ops


@dataclass
class SlotRows:
    """S rows of each of B sequences over caches ``[B, Hkv, L, D]``, for export (see `export_ops`).

    padded_positions ``[B, S] i64``. write_indices ``[B] i64``: where in the cache the first of a
    sequence's rows goes, the others behind it. masks: by kind, the cache positions that each row
    sees, ``[B, 1, S, L'] bool``: its own, or positions written before. Positions behind the first
    L' are never seen. k_caches, v_caches: the caches after each layer, in the order of the layers,
    as an ONNX graph changes nothing in place.
    """

    padded_positions: Tensor
    write_indices: Tensor
    masks: Mapping[MaskKind, Tensor]
    k_caches: list[Tensor] = field(default_factory=list)
    v_caches: list[Tensor] = field(default_factory=list)

    @property
    def positions(self) -> Tensor:
        """``[B * S] i64``."""
        return self.padded_positions.flatten()

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
        is_causal: bool = False,
    ) -> Tensor:
        """See `Rows.attend` and `Block.attend`; the changed caches are kept here."""
        mask = self.masks[MaskKind(sliding_window, is_causal)]
        self.write(k, v, cos_sin, k_cache, v_cache)
        seen = mask.shape[3]
        k_seen, v_seen = (cache[-1][:, :, :seen] for cache in (self.k_caches, self.v_caches))
        attended = export_ops.attention(self._turned(q, cos_sin), k_seen, v_seen, mask, scale)
        return attended.transpose(1, 2).reshape(q.shape)

    def write(
        self,
        k: Tensor,
        v: Tensor,
        cos_sin: tuple[Tensor, Tensor],
        k_cache: Tensor,
        v_cache: Tensor,
    ) -> None:
        """See `Rows.write`; the changed caches are kept here."""
        keys, values = self._turned(k, cos_sin), self._heads_first(v)
        self.k_caches.append(export_ops.tensor_scatter(k_cache, keys, self.write_indices))
        self.v_caches.append(export_ops.tensor_scatter(v_cache, values, self.write_indices))

    def _heads_first(self, x: Tensor) -> Tensor:
        return x.view(*self.padded_positions.shape, -1, x.shape[-1]).transpose(1, 2)

    def _turned(self, x: Tensor, cos_sin: tuple[Tensor, Tensor]) -> Tensor:
        """In float32 with one rounding, as `rotate` does it."""
        cos, sin = (y.view(*self.padded_positions.shape, -1) for y in cos_sin)
        return export_ops.rotary_embedding(self._heads_first(x).float(), cos, sin).to(x.dtype)
