"""GatedDeltaSpec: the gated delta rule, as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from trtspec.config.cache_buffer import CacheBuffer
from trtspec.config.layer_part import check_sizes, share
from trtspec.config.mixers.base import MixerSpec
from trtspec.config.mixers.short_conv import conv_buffers, conv_tensors
from trtspec.config.norm_spec import NormSpec, Shape
from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError

_GATES = "attn.b.weight", "attn.a.weight"


@strict_config()
@dataclass(frozen=True)
class GatedDeltaSpec(MixerSpec):
    """The gated delta rule (arXiv 2412.06464), with a state ``[value heads, key_dim, value_dim]``.

    num_key_heads: heads of q and k; num_value_heads: heads of v, a multiple of them. tiled: value
    head h uses q and k of head ``h % num_key_heads``; otherwise neighbouring value heads share
    them. conv_width: newest rows that the convolution over q, k and v reads. norm: on each head's
    output, before its gate.

    Raises ConfigError when fields contradict each other.
    """

    words: ClassVar[str] = "the gated delta rule (linear attention)"
    kept_float: ClassVar[frozenset[str]] = frozenset(_GATES)

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    norm: NormSpec
    tiled: bool = False
    kind: Literal["gated_delta"] = "gated_delta"

    def __post_init__(self) -> None:
        check_sizes(self, "num_key_heads", "num_value_heads", "key_dim", "value_dim", "conv_width")
        if self.num_value_heads % self.num_key_heads:
            raise ConfigError(
                f"num_value_heads {self.num_value_heads} is not a multiple of num_key_heads "
                f"{self.num_key_heads}"
            )

    @property
    def values(self) -> int:
        """Elements of one row's values."""
        return self.num_value_heads * self.value_dim

    @property
    def channels(self) -> int:
        """Elements of one row's queries, keys and values, which the convolution reads."""
        return 2 * self.num_key_heads * self.key_dim + self.values

    @property
    def buffers(self) -> tuple[CacheBuffer, ...]:
        """See `MixerSpec.buffers`: those of the convolution, the state, and the gates of draft
        rows."""
        state = self.num_value_heads, self.key_dim * self.value_dim, "float32"
        return (
            *conv_buffers(self.channels, self.conv_width),
            CacheBuffer("state", *state, kind="slot"),
            CacheBuffer("gates", 1, 2 * self.num_value_heads, kind="step"),
        )

    def sharded(self, ranks: int) -> GatedDeltaSpec:
        """See `LayerPart.sharded`: some of the heads, with their states."""
        keys = share("num_key_heads", self.num_key_heads, ranks)
        values = share("num_value_heads", self.num_value_heads, ranks)
        return replace(self, num_key_heads=keys, num_value_heads=values)

    def sections(self, name: str) -> tuple[int, ...]:
        """See `LayerPart.sections`: a rank has the value heads of its key heads, some from each
        tile."""
        tiles = self.num_value_heads // self.num_key_heads if self.tiled else 1
        part, keys = name.split(".")[1], self.num_key_heads * self.key_dim
        of_head = self.value_dim if part in ("qkv", "conv", "z", "out") else 1
        values = (self.num_value_heads // tiles * of_head,) * tiles
        return (keys, keys, *values) if part in ("qkv", "conv") else values

    def tensors(self, hidden: int, width: int) -> Iterator[tuple[str, Shape]]:
        """See `MixerSpec.tensors`: q, k and v fused; z, the output gate; the gates b and a (see
        `trtspec.ops.gated_delta`)."""
        yield "attn.qkv.weight", (self.channels, width)
        yield "attn.z.weight", (self.values, width)
        for name in _GATES:
            yield name, (self.num_value_heads, width)
        yield from conv_tensors("attn.conv", self.channels, self.conv_width, bias=False)
        yield "attn.a_log", (self.num_value_heads,)
        yield "attn.dt_bias", (self.num_value_heads,)
        yield from self.norm.tensors("attn.norm", (self.value_dim,)).items()
        yield "attn.out.weight", (hidden, self.values)
