"""Multi-head latent attention (MLA): a cache of latents, which all heads read."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor, nn

from trtspec.config.kv import EIGHT_BITS
from trtspec.config.mixers.latent_attention import LatentAttentionSpec
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import IN_PANELS
from trtspec.formats.stored import StoredWeight
from trtspec.models.block import Block, Kernels
from trtspec.models.linear import Linear
from trtspec.models.norm import Norm, make_norm
from trtspec.models.ranks import Ranks
from trtspec.models.rope import Rotation
from trtspec.models.rows import Cache, Rows
from trtspec.ops.head_products import head_products


class HeadMatrices(nn.Module):
    """Expand latents to keys and values, absorbed into queries and outputs: buffers ``k_up [H,
    plain_dim, R]`` and ``v_up [H, R, value_dim]``, whatever the format of the linear layers. They
    are multiplied head by head, from either side, in the float dtype of the latents that they meet.
    """

    k_up: Tensor
    v_up: Tensor

    def __init__(self, spec: LatentAttentionSpec, dtype: torch.dtype) -> None:
        super().__init__()
        heads, rank = spec.num_heads, spec.kv_rank
        if spec.cache_dtype not in (None, EIGHT_BITS):
            dtype = getattr(torch, spec.cache_dtype)
        self.register_buffer("k_up", torch.empty(heads, spec.plain_dim, rank, dtype=dtype))
        self.register_buffer("v_up", torch.empty(heads, rank, spec.value_dim, dtype=dtype))

    def queries(self, q: Tensor) -> Tensor:
        """The unrotated parts of queries ``[T, H, plain_dim]``, projected to latent space ``[T, H,
        R]``."""
        return _products(q.to(self.k_up.dtype), self.k_up).to(q.dtype)

    def values(self, latents: Tensor) -> Tensor:
        """Weighted sums of latents ``[T, H, R]`` as sums of values ``[T, H, value_dim]``."""
        return _products(latents.to(self.v_up.dtype), self.v_up).to(latents.dtype)

    def load(self, weight: StoredWeight) -> None:
        """Load from ``[H * (plain_dim + value_dim), R]``."""
        plain = self.k_up.shape[1]
        of_heads = weight.floats().view(self.k_up.shape[0], -1, self.k_up.shape[2])
        self.k_up.copy_(of_heads[:, :plain])
        self.v_up.copy_(of_heads[:, plain:].transpose(1, 2))


class LatentAttention(nn.Module):
    """MLA in its absorbed form: queries are projected to latent space, so that cached latents are
    read as they are, once for all heads.

    Both latents come from one product if queries have one (``q_kv_a``), otherwise beside ``q``.
    """

    def __init__(
        self,
        spec: LatentAttentionSpec,
        hidden: int,
        dtype: torch.dtype,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__()
        self.spec = spec
        self.scale = spec.query_dim**-0.5 if spec.scale is None else spec.scale
        queries, latents = spec.num_heads * spec.query_dim, spec.kv_rank + spec.rope_dim

        def linear(inputs: int, outputs: dict[str, int], bias: bool = False) -> Linear:
            format = formats.of(outputs)
            return Linear(inputs, sum(outputs.values()), dtype, bias, format=format)

        self.q_kv_a = self.q_b = self.q_a_norm = self.q = self.kv_a = None
        if spec.q_rank is None:
            self.q = linear(hidden, {"q": queries})
            self.kv_a = linear(hidden, {"kv_a": latents}, spec.bias)
        else:
            both = {"q_a": spec.q_rank, "kv_a": latents}
            self.q_kv_a = linear(hidden, both, spec.bias)
            self.q_a_norm = make_norm(spec.norm, spec.q_rank, dtype)
            self.q_b = linear(spec.q_rank, {"q_b": queries})
        self.kv_a_norm = make_norm(spec.norm, spec.kv_rank, dtype)
        self.kv_b = HeadMatrices(spec, dtype)
        self.o = linear(spec.num_heads * spec.value_dim, {"o": hidden}, spec.output_bias)

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
    ) -> Tensor:
        """See `Attention.forward`."""
        spec = self.spec
        q, latents = self._project(x, norm)
        latent, key = self.kv_a_norm(latents[:, : spec.kv_rank]), latents[:, spec.kv_rank :]
        q = q.view(x.shape[0], spec.num_heads, spec.query_dim)
        plain, rope = self.kv_b.queries(q[..., : spec.plain_dim]), q[..., spec.plain_dim :]
        assert rotation is not None, "latent attention has a rope table"
        attended = rows.attend_latents(plain, rope, latent, key, rotation, cache, self.scale)
        if kept is not None:
            attended = attended[kept]
            residual = None if residual is None else residual[kept]
        out: Tensor = self.o(self.kv_b.values(attended).flatten(1), residual=residual)
        return out

    def _project(self, x: Tensor, norm: Norm | None) -> tuple[Tensor, Tensor]:
        """Queries ``[T, H * query_dim]`` and, side by side, latents and keys ``[T, R + P]``."""
        if self.q_kv_a is None or self.q_b is None:
            assert self.q is not None and self.kv_a is not None
            return self.q(x, norm=norm), self.kv_a(x, norm=norm)
        q_rank = self.q_b.in_features
        both = self.q_kv_a(x, norm=norm)
        return self.q_b(both[:, :q_rank], norm=self.q_a_norm), both[:, q_rank:]


def _products(x: Tensor, weight: Tensor) -> Tensor:
    if torch.onnx.is_in_onnx_export():
        return (x.transpose(0, 1) @ weight).transpose(0, 1)
    return head_products(x, weight)


def _lacks(spec: LatentAttentionSpec, kernels: Kernels) -> Iterator[str]:
    if kernels is not Kernels.CPU:
        yield spec.words


LATENT_ATTENTION = Block(LatentAttentionSpec, LatentAttention, lacks=_lacks)
