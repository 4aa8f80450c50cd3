"""Rows over paged caches whose attention is a plugin, for export."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from trtspec.backends.tensorrt import plugin_ops
from trtspec.models.rope import Rotation, rotate
from trtspec.models.rows import Cache, Caches, PackedRows, Scoring


@dataclass
class PluginRows:
    """Packed rows as ONNX graphs see them (see `plugin_ops.paged_tree_attention`).

    rows: with ``is_tree`` as i32. written: each cache after the layer that writes it, in layer
    order: the same memory under a new name in the graph.
    """

    rows: PackedRows
    written: Caches = field(default_factory=list)

    @property
    def positions(self) -> Tensor:
        """``[T] i64``."""
        return self.rows.positions

    def offsets(self, count: int) -> Tensor:
        """See `Block.offsets`; the blocks of a call are of one size."""
        return torch.arange(count, device=self.positions.device) % self.rows.query_start[1]

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
        """See `Rows.attend` and `Block.attend`; the written caches are kept here."""
        assert not is_causal and scoring.sinks is None, "`check_paged` refuses these"
        turned = rotate(q, rotation), rotate(k, rotation)
        return self._call(self.rows, *turned, v, cache, scoring)

    def write(
        self,
        k: Tensor,
        v: Tensor,
        rotation: Rotation | None,
        cache: Cache,
    ) -> None:
        """See `Rows.write`; the written caches are kept here."""
        k, blind = rotate(k, rotation), self.rows.unseeing()
        self._call(blind, torch.zeros_like(k), k, v, cache, Scoring(1.0))

    def _call(
        self,
        rows: PackedRows,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        cache: Cache,
        scoring: Scoring,
    ) -> Tensor:
        k_cache, v_cache = cache
        out, *written = plugin_ops.paged_tree_attention(
            q,
            k,
            v,
            k_cache,
            v_cache,
            *rows,
            scale=scoring.scale,
            sliding_window=scoring.sliding_window,
            soft_cap=scoring.soft_cap,
        )
        self.written.append(tuple(written))
        return out
