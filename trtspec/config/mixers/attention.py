"""AttentionSpec: grouped-query attention, as plain data."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

from trtspec.config.cache_buffer import CacheBuffer, cache_buffers
from trtspec.config.kv import CacheDtype
from trtspec.config.layer_part import share
from trtspec.config.mixers.base import MixerSpec, Turn
from trtspec.config.norm_spec import NormSpec, Shape
from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError


@strict_config()
@dataclass(frozen=True)
class AttentionSpec(MixerSpec):
    """Sizes are in elements.

    window: newest tokens that a row sees, itself included; 0: all. rope: index of its table in
    ``ModelConfig.ropes``; None: no rotation. rotary_dim: leading elements of a head that are
    rotated; None: all. interleaved: rotate neighbouring elements, not the halves of a head.
    qk_norm: a norm on queries and keys before rotation, per head or over all heads
    (``qk_norm_over``; ``own``: per head, each with its own weights). v_norm: a norm without weight
    on each head's values. scale: on scores; None: ``head_dim ** -0.5``. soft_cap: scores s become
    ``cap * tanh(s / cap)``. sinks: each head has a learned score that takes part in the softmax but
    contributes no value. bias: of q, k and v; output_bias: of o. gated: the output is multiplied by
    the sigmoid of a gate that q's matrix also computes. values_are_keys: v is k before norm and
    rotation. kv_from: the earlier layer whose K and V it reads; it has none of its own.
    cache_dtype: that of K and V (see `cache_buffers`).

    Raises ConfigError when fields contradict each other.
    """

    words: ClassVar[str] = "attention"

    num_heads: int
    num_kv_heads: int
    head_dim: int
    window: int = 0
    rope: int | None = 0
    rotary_dim: int | None = None
    interleaved: bool = False
    qk_norm: NormSpec | None = None
    qk_norm_over: Literal["head", "all", "own"] = "head"
    v_norm: NormSpec | None = None
    scale: float | None = None
    soft_cap: float | None = None
    sinks: bool = False
    bias: bool = False
    output_bias: bool = False
    gated: bool = False
    values_are_keys: bool = False
    kv_from: int | None = None
    cache_dtype: CacheDtype | None = None
    kind: Literal["attention"] = "attention"

    def __post_init__(self) -> None:
        for name in ("num_heads", "num_kv_heads", "head_dim"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        if self.num_heads % self.num_kv_heads:
            raise ConfigError(
                f"num_heads {self.num_heads} is not a multiple of num_kv_heads {self.num_kv_heads}"
            )
        if self.rope is not None and self.head_dim % 2 and self.rotary_dim is None:
            raise ConfigError(f"head_dim is {self.head_dim}; rotary embedding needs an even number")
        if self.rotary_dim is not None and (
            self.rope is None or self.rotary_dim % 2 or not 0 < self.rotary_dim <= self.head_dim
        ):
            raise ConfigError(
                f"rotary_dim is {self.rotary_dim}; with a rope table it may be an even number from "
                f"2 to head_dim {self.head_dim}"
            )
        if self.window < 0:
            raise ConfigError(f"sliding_window is {self.window}; it must be at least 1")
        for name in ("scale", "soft_cap"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ConfigError(f"{name} is {value}; it must be above 0")

    @property
    def turn(self) -> Turn | None:
        """See `MixerSpec.turn`."""
        if self.rope is None:
            return None
        return Turn(self.rope, self.rotary_dim or self.head_dim, self.interleaved)

    @property
    def buffers(self) -> tuple[CacheBuffer, ...]:
        """See `MixerSpec.buffers`: keys, then values."""
        if self.kv_from is not None:
            return ()
        row = self.num_kv_heads, self.head_dim
        return cache_buffers({"k": row, "v": row}, self.cache_dtype)

    @property
    def norms_over_ranks(self) -> int:
        """See `MixerSpec.norms_over_ranks`: of queries, and of keys where it has any."""
        if self.qk_norm is None or self.qk_norm_over != "all":
            return 0
        return 1 if self.kv_from is not None else 2

    def qk_norm_shape(self, heads: int) -> Shape:
        """Shape of the norm weights for that many heads of queries or keys."""
        size = self.head_dim
        return {"head": (size,), "all": (heads * size,), "own": (heads, size)}[self.qk_norm_over]

    def with_cache(self, dtype: CacheDtype | None) -> AttentionSpec:
        """See `MixerSpec.with_cache`."""
        return dataclasses.replace(self, cache_dtype=dtype)

    def sharded(self, ranks: int) -> AttentionSpec:
        """See `LayerPart.sharded`: some of the heads. Where there are fewer heads of K and V than
        ranks, several ranks have the same one."""
        if self.norms_over_ranks and self.qk_norm is not None and self.qk_norm.kind != "rms":
            raise ConfigError(
                f"a norm of kind {self.qk_norm.kind} over all heads of queries and keys is not "
                "split over ranks in this version, one of kind rms is; leave tensor_parallel_size "
                "out"
            )
        few, many = sorted((self.num_kv_heads, ranks))
        if many % few:
            raise ConfigError(
                f"num_kv_heads is {self.num_kv_heads}, tensor_parallel_size {ranks}: one must "
                "divide the other; choose another number of ranks"
            )
        heads = share("num_heads", self.num_heads, ranks)
        return dataclasses.replace(
            self, num_heads=heads, num_kv_heads=max(1, self.num_kv_heads // ranks)
        )

    def tensors(self, hidden: int, width: int) -> Iterator[tuple[str, Shape]]:
        """See `MixerSpec.tensors`."""
        queries, keys = self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        rows = {"q": 2 * queries if self.gated else queries}
        if self.kv_from is None:
            rows |= {"k": keys} if self.values_are_keys else {"k": keys, "v": keys}
        for part, size in rows.items():
            yield f"attn.{part}.weight", (size, width)
            if self.bias:
                yield f"attn.{part}.bias", (size,)
        yield "attn.o.weight", (hidden, queries)
        if self.output_bias:
            yield "attn.o.bias", (hidden,)
        if self.sinks:
            yield "attn.sinks", (self.num_heads,)
        if self.qk_norm is not None:
            for part, heads in (("q", self.num_heads), ("k", self.num_kv_heads)):
                if part in rows:
                    shape = self.qk_norm_shape(heads)
                    yield from self.qk_norm.tensors(f"attn.{part}_norm", shape).items()

    def check_in(self, index: int, mixers: Sequence[MixerSpec], num_ropes: int) -> None:
        """See `MixerSpec.check_in`."""
        super().check_in(index, mixers, num_ropes)
        source = self.kv_from
        if source is None:
            return
        reads = f"layer {index} reads K and V of layer {source} (kv_from)"
        if not 0 <= source < index:
            raise ConfigError(f"{reads}, which must be one of the {index} before it")
        # Readers see as far as their source: nothing keeps K and V behind its window for them.
        wanted = self.num_kv_heads, self.head_dim, self.window
        other, own = AttentionSpec.maybe(mixers[source]), None
        if other is not None and other.kv_from is None:
            own = other.num_kv_heads, other.head_dim, other.window
        if own != wanted:
            raise ConfigError(
                f"{reads}, which has none of its own with {wanted[0]} x {wanted[1]} and window "
                f"{wanted[2]}"
            )

    def as_stored(self, has: Callable[[str], bool], norm: NormSpec) -> AttentionSpec:
        """See `MixerSpec.as_stored`."""
        return dataclasses.replace(
            self,
            bias=has("attn.q.bias"),
            output_bias=has("attn.o.bias"),
            qk_norm=norm if has("attn.q_norm.weight") else None,
            window=0,
        )
