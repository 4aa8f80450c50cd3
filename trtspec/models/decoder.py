"""The decoder layer of language models and most drafts."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor, nn

from trtspec.config.layer import LayerSpec
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import IN_PANELS
from trtspec.models.block_map import make_feed_forward, make_mixer
from trtspec.models.norm import Norm, make_norm
from trtspec.models.per_layer import PerLayerPart
from trtspec.models.ranks import Ranks
from trtspec.models.rope import Rotation
from trtspec.models.rows import Cache, Rows


class DecoderLayer(nn.Module):
    """Attention and feed-forward with the norms of the spec (without ``input_norm`` none before
    attention); the residual stream keeps the model's dtype.

    Raises ConfigError for a spec that no block implements.
    """

    output_scale: Tensor | None

    def __init__(
        self,
        spec: LayerSpec,
        hidden: int,
        dtype: torch.dtype,
        input_norm: bool = True,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__()

        def norm(exists: bool) -> Norm | None:
            return make_norm(spec.norm, hidden, dtype) if exists else None

        before, after = spec.norm_place != "after", spec.norm_place != "before"
        self.parallel = spec.parallel
        self.residual_scale = spec.residual_scale
        self.input_norm = norm(before and input_norm)
        self.attn = make_mixer(spec, hidden, dtype, formats.at("attn"))
        self.attn_out_norm = norm(after)
        self.post_attention_norm = norm(before and not spec.parallel)
        self.mlp = make_feed_forward(spec, hidden, dtype, formats.at("mlp"))
        self.mlp_out_norm = norm(after)
        self.per_layer: PerLayerPart | None = None
        if spec.per_layer is not None:
            self.per_layer = PerLayerPart(
                spec, spec.per_layer, hidden, dtype, formats.at("per_layer")
            )
        # Of two dimensions: AOTInductor compiles what a short vector holds by then as a constant.
        factor = torch.empty(1, 1, dtype=dtype) if spec.output_scale else None
        self.register_buffer("output_scale", factor)

    def forward(
        self,
        x: Tensor,
        rows: Rows,
        rotation: Rotation | None,
        cache: Cache,
        kept: Tensor | None = None,
        given: Tensor | None = None,
        ranks: Ranks | None = None,
        adapters: Tensor | None = None,
    ) -> Tensor:
        """``x [T, hidden]`` -> ``[T, hidden]``, or the rows ``kept [R] i64`` of that. Of the rows
        that are not kept, only K and V are computed. ``given [T, P]``: the layer's part of the
        tokens' per-layer embeddings, where it reads one. ``ranks``: those that the layer is split
        over, see `LayerSpec.sharded`. ``adapters [T] i32``: those of the rows, of a network that
        has such."""
        if ranks is None:
            x = self._both(x, rows, rotation, cache, kept, adapters)
        else:
            x = self._both_over(ranks, x, rows, rotation, cache, kept)
        if self.per_layer is not None:
            assert given is not None, "the network has per-layer embeddings"
            x = self.per_layer(x, given if kept is None else given[kept])
        return x if self.output_scale is None else x * self.output_scale

    def _both(
        self,
        x: Tensor,
        rows: Rows,
        rotation: Rotation | None,
        cache: Cache,
        kept: Tensor | None,
        adapters: Tensor | None,
    ) -> Tensor:
        attn = partial(self.attn, rows=rows, rotation=rotation, cache=cache, kept=kept)
        mlp = self.mlp
        if adapters is not None:
            attn = partial(attn, adapters=adapters)
            mlp = partial(mlp, adapters=adapters if kept is None else adapters[kept])
        if self.parallel:
            normed = x if self.input_norm is None else self.input_norm(x)
            x = attn(normed, norm=None, residual=x)
            both: Tensor = mlp(normed if kept is None else normed[kept], norm=None, residual=x)
            return both
        if self.attn_out_norm is None and self.residual_scale == 1:
            # The products add the residual.
            x = attn(x, norm=self.input_norm, residual=x)
            out: Tensor = mlp(x, norm=self.post_attention_norm, residual=x)
            return out
        y = attn(x, norm=self.input_norm, residual=None)
        x = self._sum(x if kept is None else x[kept], y, self.attn_out_norm)
        y = mlp(x, norm=self.post_attention_norm, residual=None)
        return self._sum(x, y, self.mlp_out_norm)

    def _both_over(
        self,
        ranks: Ranks,
        x: Tensor,
        rows: Rows,
        rotation: Rotation | None,
        cache: Cache,
        kept: Tensor | None,
    ) -> Tensor:
        """The same where the ranks' outputs of a part are summed."""
        normed, norm = x, self.input_norm
        if self.parallel:
            normed, norm = x if norm is None else norm(x), None
        at = (rows, rotation, cache)
        y = self.attn(normed, *at, norm=norm, residual=None, kept=kept, ranks=ranks)
        x = x if kept is None else x[kept]
        if self.parallel:  # one sum for both parts
            y = self.mlp(normed if kept is None else normed[kept], norm=None, residual=y)
            return x + ranks.sum(y)
        x = self._sum(x, ranks.sum(y), self.attn_out_norm)
        y = self.mlp(x, norm=self.post_attention_norm, residual=None)
        return self._sum(x, ranks.sum(y), self.mlp_out_norm)

    def _sum(self, x: Tensor, y: Tensor, norm: Norm | None) -> Tensor:
        y = y if norm is None else norm(y)
        return x + (y if self.residual_scale == 1 else y * self.residual_scale)
