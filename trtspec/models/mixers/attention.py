"""Grouped-query attention."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from trtspec.config.mixers.attention import AttentionSpec
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import IN_PANELS
from trtspec.models.block import Block, Kernels
from trtspec.models.linear import Linear
from trtspec.models.norm import Norm, RMSNorm, UnweightedRMSNorm, make_norm
from trtspec.models.ranks import Ranks
from trtspec.models.rope import Rotation
from trtspec.models.rows import Cache, Rows, Scoring

MOST_HEAD = 256
"""Largest head size of the CUDA attention kernels."""


def make_qk_norms(spec: AttentionSpec, dtype: torch.dtype) -> tuple[Norm | None, Norm | None]:
    """The norms of queries and of keys, if the layer has them, with `qk_norm_shape`."""
    if spec.qk_norm is None:
        return None, None
    shapes = (spec.qk_norm_shape(heads) for heads in (spec.num_heads, spec.num_kv_heads))
    queries, keys = (make_norm(spec.qk_norm, shape, dtype) for shape in shapes)
    return queries, keys if spec.kv_from is None else None


def norm_heads(x: Tensor, norm: Norm | None, ranks: Ranks | None = None) -> Tensor:
    """Heads ``x [T, heads, D]`` under a norm of shape ``D``, ``[heads, D]`` or ``heads * D``; with
    ``ranks``, over the heads of all ranks."""
    if norm is None:
        return x
    if ranks is not None:
        assert isinstance(norm, RMSNorm), "specs refuse others"
        flat = x.flatten(1)
        return norm.scaled(flat, ranks.mean_square(flat)).view(x.shape)
    if norm.weight.shape[-1] == x.shape[-1]:
        normed: Tensor = norm(x)
        return normed
    over_all: Tensor = norm(x.flatten(1))
    return over_all.view(x.shape)


class Attention(nn.Module):
    """Grouped-query attention: q, k and v fused, optional norms on each, rotary. There is no v if
    the values are the keys, and only q if K and V are an earlier layer's. It may have ``sinks
    [heads] f32``, and output gates beside the queries.

    ``in_features`` is the input width of q, k and v, by default ``hidden``; ``formats`` are those
    of its weights.
    """

    sinks: Tensor | None

    def __init__(
        self,
        spec: AttentionSpec,
        hidden: int,
        dtype: torch.dtype,
        in_features: int | None = None,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__()
        self.num_heads = spec.num_heads
        self.num_kv_heads = spec.num_kv_heads
        self.head_dim = spec.head_dim
        self.scoring = Scoring.of(spec)
        self.parts = "q" if spec.kv_from is not None else "qk" if spec.values_are_keys else "qkv"
        self.gated = spec.gated
        q_size, kv_size = spec.num_heads * spec.head_dim, spec.num_kv_heads * spec.head_dim
        read_size = 2 * q_size if spec.gated else q_size
        sizes = {part: read_size if part == "q" else kv_size for part in self.parts}
        width, joined = in_features or hidden, formats.of(sizes)
        read = Linear(width, sum(sizes.values()), dtype, spec.bias, format=joined)
        self.add_module(self.parts, read)
        o = formats.of({"o": hidden})
        self.o = Linear(q_size, hidden, dtype, spec.output_bias, format=o)
        self.q_norm, self.k_norm = make_qk_norms(spec, dtype)
        self.norms_over_ranks = spec.norms_over_ranks > 0
        self.v_norm = UnweightedRMSNorm(spec.v_norm.eps) if spec.v_norm is not None else None
        sinks = torch.empty(spec.num_heads, dtype=torch.float32) if spec.sinks else None
        self.register_buffer("sinks", sinks)

    def forward(
        self,
        x: Tensor,
        rows: Rows,
        rotation: Rotation | None,
        cache: Cache,
        *,
        norm: Norm | None,
        residual: Tensor | None,
        kept: Tensor | None = None,
        ranks: Ranks | None = None,
        adapters: Tensor | None = None,
    ) -> Tensor:
        """The attention of ``norm(x) [T, in_features]``, with the sum of ``residual [T, hidden]``
        if one is given; if ``kept [R] i64`` is, of these rows alone. Writes K and V of all rows
        into the caches. ``ranks``: those that have the other heads, of a norm over all.
        ``adapters``: see `Linear.forward`."""
        read = self.get_submodule(self.parts)
        heads = read(x, norm=norm, adapters=adapters).view(x.shape[0], -1, self.head_dim)
        counts = [self.num_heads * (2 if self.gated else 1)]
        counts += [self.num_kv_heads] * (len(self.parts) - 1)
        q, *kv = torch.split(heads, counts, dim=1)
        if self.gated:  # a head's gate lies behind its query
            q, gate = torch.unflatten(q, 1, (-1, 2)).unbind(2)
            attended = self._attend(q, kv, rows, rotation, cache, ranks)
            # Written out: see `trtspec.ops.linear.swiglu`.
            attended = (attended / (1 + torch.exp(-gate.float()))).to(x.dtype)
        else:
            attended = self._attend(q, kv, rows, rotation, cache, ranks)
        attended = attended.flatten(1)
        if kept is not None:
            attended = attended[kept]
            residual = None if residual is None else residual[kept]
            adapters = None if adapters is None else adapters[kept]
        out: Tensor = self.o(attended, residual=residual, adapters=adapters)
        return out

    def _attend(
        self,
        q: Tensor,
        kv: list[Tensor],
        rows: Rows,
        rotation: Rotation | None,
        cache: Cache,
        ranks: Ranks | None,
    ) -> Tensor:
        over = ranks if self.norms_over_ranks else None
        q, scoring = norm_heads(q, self.q_norm, over), self.scoring._replace(sinks=self.sinks)
        if not kv:
            return rows.read(q, rotation, cache, scoring)
        k, v = norm_heads(kv[0], self.k_norm, over), kv[-1]
        if self.v_norm is not None:
            v = self.v_norm(v)
        return rows.attend(q, k, v, rotation, cache, scoring)


def _missing(spec: AttentionSpec) -> Iterator[str]:
    if spec.qk_norm_over == "own" and spec.qk_norm is not None and spec.qk_norm.kind == "rms":
        yield "RMS norms of queries and keys with weights for each head"


def _lacks(spec: AttentionSpec, kernels: Kernels) -> Iterator[str]:
    if kernels is Kernels.CPU:
        return
    if spec.sinks:
        yield "attention sinks"
    if kernels is Kernels.PLUGINS and spec.cache_dtype is not None:
        yield f"K/V in {spec.cache_dtype}"
    if kernels is Kernels.PLUGINS and spec.kv_from is not None:
        yield "layers that read K and V of an earlier one"
    if spec.head_dim > MOST_HEAD:
        yield f"heads of {spec.head_dim} elements (up to {MOST_HEAD})"


ATTENTION = Block(AttentionSpec, Attention, _missing, _lacks, takes_adapters=True)
