"""LatentAttentionSpec: multi-head latent attention, as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar, Literal

from trtspec.config.cache_buffer import CacheBuffer, cache_buffers
from trtspec.config.kv import CacheDtype
from trtspec.config.layer_part import share
from trtspec.config.mixers.base import MixerSpec, Turn
from trtspec.config.norm_spec import NormSpec, Shape
from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError

UP = "attn.kv_b.weight"
"""Suffix of a layer's name: the matrix that expands latents to keys and values."""


@strict_config()
@dataclass(frozen=True)
class LatentAttentionSpec(MixerSpec):
    """MLA (DeepSeek-V2, arXiv 2405.04434): for each token the cache holds one latent of ``kv_rank``
    elements and one rotated key of ``rope_dim``, shared by all heads. Sizes are in elements.

    q_rank: width of the latent that queries are made from; None: the hidden state itself.
    plain_dim: unrotated elements of a head's query and key, besides the ``rope_dim`` rotated ones.
    value_dim: of a head's value. norm: on latents. rope: index of its table in
    ``ModelConfig.ropes``. interleaved, scale: as in `AttentionSpec`; scale None: one over the root
    of `query_dim`. bias: of the matrices that make latents; output_bias: of o. cache_dtype: that of
    latents and keys (see `cache_buffers`).

    Raises ConfigError for invalid sizes.
    """

    words: ClassVar[str] = "latent attention"
    kept_float: ClassVar[frozenset[str]] = frozenset({UP})

    num_heads: int
    kv_rank: int
    plain_dim: int
    rope_dim: int
    value_dim: int
    norm: NormSpec
    q_rank: int | None = None
    rope: int = 0
    interleaved: bool = True
    scale: float | None = None
    bias: bool = False
    output_bias: bool = False
    cache_dtype: CacheDtype | None = None
    kind: Literal["latent_attention"] = "latent_attention"

    @property
    def query_dim(self) -> int:
        """Elements of a head's query and key."""
        return self.plain_dim + self.rope_dim

    def __post_init__(self) -> None:
        for name in ("num_heads", "kv_rank", "plain_dim", "rope_dim", "value_dim", "q_rank"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")
        if self.rope_dim % 2:
            raise ConfigError(f"rope_dim is {self.rope_dim}; rotary embedding needs an even number")
        if self.scale is not None and not self.scale > 0:
            raise ConfigError(f"scale is {self.scale}; it must be above 0")

    @property
    def turn(self) -> Turn:
        """See `MixerSpec.turn`."""
        return Turn(self.rope, self.rope_dim, self.interleaved)

    @property
    def buffers(self) -> tuple[CacheBuffer, ...]:
        """See `MixerSpec.buffers`: normed latents and rotated keys, a single head shared by all."""
        rows = {"latent": (1, self.kv_rank), "key": (1, self.rope_dim)}
        return cache_buffers(rows, self.cache_dtype)

    def with_cache(self, dtype: CacheDtype | None) -> LatentAttentionSpec:
        """See `MixerSpec.with_cache`."""
        return dataclasses.replace(self, cache_dtype=dtype)

    def sharded(self, ranks: int) -> LatentAttentionSpec:
        """See `LayerPart.sharded`: some of the heads. Latents are computed and kept by every
        rank."""
        return dataclasses.replace(self, num_heads=share("num_heads", self.num_heads, ranks))

    def tensors(self, hidden: int, width: int) -> Iterator[tuple[str, Shape]]:
        """See `MixerSpec.tensors`."""
        queries = self.num_heads * self.query_dim
        down = {"kv_a": self.kv_rank + self.rope_dim}
        if self.q_rank is None:
            yield "attn.q.weight", (queries, width)
        else:
            down["q_a"] = self.q_rank
            yield from self.norm.tensors("attn.q_a_norm", (self.q_rank,)).items()
            yield "attn.q_b.weight", (queries, self.q_rank)
        for part, size in down.items():
            yield f"attn.{part}.weight", (size, width)
            if self.bias:
                yield f"attn.{part}.bias", (size,)
        yield from self.norm.tensors("attn.kv_a_norm", (self.kv_rank,)).items()
        yield UP, (self.num_heads * (self.plain_dim + self.value_dim), self.kv_rank)
        yield "attn.o.weight", (hidden, self.num_heads * self.value_dim)
        if self.output_bias:
            yield "attn.o.bias", (hidden,)
