"""Mamba2Spec: Mamba-2, as plain data."""

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


@strict_config()
@dataclass(frozen=True)
class Mamba2Spec(MixerSpec):
    """Mamba-2 (arXiv 2405.21060), with a state ``[num_heads, state_size, head_dim]``.

    num_groups: groups of heads that share B and C. conv_width: newest rows that the convolution
    over x, B and C reads; conv_bias: of it. bias: of the matrices in and out. norm: of the gated
    output, over each group; norm_over_ranks: the only group's is over the heads of all ranks.
    least_step, most_step: limits of time steps; None: there is none.

    Raises ConfigError when fields contradict each other.
    """

    words: ClassVar[str] = "Mamba-2"

    num_heads: int
    head_dim: int
    state_size: int
    num_groups: int
    conv_width: int
    norm: NormSpec
    conv_bias: bool = True
    bias: bool = False
    least_step: float = 0.0
    most_step: float | None = None
    norm_over_ranks: bool = False
    kind: Literal["mamba2"] = "mamba2"

    def __post_init__(self) -> None:
        check_sizes(self, "num_heads", "head_dim", "state_size", "num_groups", "conv_width")
        if self.num_heads % self.num_groups:
            raise ConfigError(
                f"num_heads {self.num_heads} is not a multiple of num_groups {self.num_groups}"
            )
        if self.most_step is not None and self.most_step < self.least_step:
            raise ConfigError(
                f"most_step {self.most_step} of time steps is below least_step {self.least_step}"
            )

    @property
    def inner(self) -> int:
        """Elements of all heads together."""
        return self.num_heads * self.head_dim

    @property
    def channels(self) -> int:
        """Channels of the convolution: all heads, plus B and C of each group."""
        return self.inner + 2 * self.num_groups * self.state_size

    @property
    def buffers(self) -> tuple[CacheBuffer, ...]:
        """See `MixerSpec.buffers`: those of the convolution, the states, and the time steps of
        draft rows."""
        size = self.state_size * self.head_dim
        return (
            *conv_buffers(self.channels, self.conv_width),
            CacheBuffer("state", self.num_heads, size, "float32", "slot"),
            CacheBuffer("time_step", 1, self.num_heads, kind="step"),
        )

    def sharded(self, ranks: int) -> Mamba2Spec:
        """See `LayerPart.sharded`: some of the groups of heads, with their states. Of a single
        group each rank has some heads, and B and C whole."""
        if self.num_groups == 1:
            heads = share("num_heads", self.num_heads, ranks)
            return replace(self, num_heads=heads, norm_over_ranks=True)
        groups = share("num_groups, of heads with one norm,", self.num_groups, ranks)
        return replace(self, num_heads=self.num_heads // ranks, num_groups=groups)

    @property
    def norms_over_ranks(self) -> int:
        """See `MixerSpec.norms_over_ranks`."""
        return int(self.norm_over_ranks)

    def sections(self, name: str) -> tuple[int, ...]:
        """See `LayerPart.sections`."""
        shared = self.num_groups * self.state_size
        channels = self.inner, shared, shared
        if name.startswith("attn.in_proj"):
            return self.inner, *channels, self.num_heads
        return channels if name.startswith("attn.conv") else ()

    def tensors(self, hidden: int, width: int) -> Iterator[tuple[str, Shape]]:
        """See `MixerSpec.tensors`: the input matrix computes gates, the convolution's channels and
        time steps, in this order."""
        matrices = {
            "in_proj": (self.inner + self.channels + self.num_heads, width),
            "out_proj": (hidden, self.inner),
        }
        for part, shape in matrices.items():
            yield f"attn.{part}.weight", shape
            if self.bias:
                yield f"attn.{part}.bias", shape[:1]
        yield from conv_tensors("attn.conv", self.channels, self.conv_width, self.conv_bias)
        for part in ("a_log", "dt_bias", "skip"):
            yield f"attn.{part}", (self.num_heads,)
        yield from self.norm.tensors("attn.norm", (self.inner,)).items()
