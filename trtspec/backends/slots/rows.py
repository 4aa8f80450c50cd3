"""Rows over a slot cache: padded to the same number for every sequence, in standard ONNX ops."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

from trtspec.backends.parts import MaskKind
from trtspec.models import export_ops
from trtspec.models.rope import Rotation
from trtspec.models.rows import Cache, Caches, Scoring


@dataclass
class SlotRows:
    """S rows of each of B sequences over caches ``[B, Hkv, L, D]``, for export (see `export_ops`).

    padded_positions ``[B, S] i64``. write_indices ``[B] i64``: where in the cache the first of a
    sequence's rows goes, followed by the others. masks: by kind, the cache positions that each row
    sees, ``[B, 1, S, L'] bool``: its own, or positions written before. Positions after the first L'
    are never seen. written: each cache after the layer that writes it, in layer order, as an ONNX
    graph changes nothing in place; given: what they were before.
    """

    padded_positions: Tensor
    write_indices: Tensor
    masks: Mapping[MaskKind, Tensor]
    written: Caches = field(default_factory=list)
    given: Caches = field(default_factory=list)

    @property
    def positions(self) -> Tensor:
        """``[B * S] i64``."""
        return self.padded_positions.flatten()

    def offsets(self, count: int) -> Tensor:
        """See `Block.offsets`."""
        shape = self.padded_positions.shape
        return torch.arange(shape[1], device=self.positions.device).expand(shape).flatten()

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rotation: Rotation | None,
        cache: Cache,
        scoring: Scoring,
        is_causal: bool = False,
    ) -> Tensor:
        """See `Rows.attend` and `Block.attend`; the changed caches are kept here."""
        self.write(k, v, rotation, cache)
        return self.read(q, rotation, cache, scoring, is_causal)

    def read(
        self,
        q: Tensor,
        rotation: Rotation | None,
        cache: Cache,
        scoring: Scoring,
        is_causal: bool = False,
    ) -> Tensor:
        """See `Rows.read`."""
        mask = self.masks[MaskKind(scoring.sliding_window, is_causal)]
        (place,) = (i for i, given in enumerate(self.given) if given[0] is cache[0])
        k_seen, v_seen = self._seen(place, mask)
        turned, cap = self._turned(q, rotation), scoring.soft_cap
        attended = export_ops.attention(
            turned, k_seen, v_seen, mask, scoring.scale, cap, scoring.sinks
        )
        return attended.transpose(1, 2).reshape(q.shape)

    def attend_latents(
        self,
        q_latent: Tensor,
        q_rope: Tensor,
        latent: Tensor,
        key: Tensor,
        rotation: Rotation,
        cache: Cache,
        scale: float,
    ) -> Tensor:
        """See `Rows.attend_latents`; the changed caches are kept here."""
        mask = self.masks[MaskKind()]
        latents, keys = self._heads_first(latent), self._turned(key, rotation)
        self._scatter(cache, (latents, keys))
        values, keys = self._seen(-1, mask)
        q = torch.cat((self._heads_first(q_latent), self._turned(q_rope, rotation)), -1)
        k = torch.cat((values, keys), -1)
        attended = export_ops.attention(q, k, values, mask, scale)
        return attended.transpose(1, 2).reshape(q_latent.shape)

    def write(
        self,
        k: Tensor,
        v: Tensor,
        rotation: Rotation | None,
        cache: Cache,
    ) -> None:
        """See `Rows.write`; the changed caches are kept here."""
        keys, values = self._turned(k, rotation), self._heads_first(v)
        self._scatter(cache, (keys, values))

    def _scatter(self, cache: Cache, rows: Sequence[Tensor]) -> None:
        self.given.append(cache)
        self.written.append(
            tuple(
                export_ops.tensor_scatter(buffer, own, self.write_indices)
                for buffer, own in zip(cache, rows, strict=True)
            )
        )

    def _seen(self, place: int, mask: Tensor) -> Cache:
        """The part of a written cache that a mask covers."""
        return tuple(buffer[:, :, : mask.shape[3]] for buffer in self.written[place])

    def _heads_first(self, x: Tensor) -> Tensor:
        return x.view(*self.padded_positions.shape, -1, x.shape[-1]).transpose(1, 2)

    def _turned(self, x: Tensor, rotation: Rotation | None) -> Tensor:
        """In float32 with a single rounding, like `rotate`."""
        if rotation is None:
            return self._heads_first(x)
        shape = self.padded_positions.shape
        cos, sin = rotation.cos.view(*shape, -1), rotation.sin.view(*shape, -1)
        heads = self._heads_first(x).float()
        return export_ops.rotary_embedding(heads, cos, sin, rotation.interleaved).to(x.dtype)
