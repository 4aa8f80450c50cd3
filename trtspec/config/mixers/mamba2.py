"""Mamba2Spec: Mamba-2 of one layer, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

from trtspec.config.layer_part import check_sizes
from trtspec.config.mixers.base import MixerSpec
from trtspec.config.norm_spec import NormSpec
from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError


@strict_config()
@dataclass(frozen=True)
class Mamba2Spec(MixerSpec):
    """Mamba-2 (arXiv 2405.21060): a state ``[num_heads, head_dim, state_size]``.

    num_groups: groups of heads that share B and C. conv_width: newest rows that the convolution
    over x, B and C reads; conv_bias: of it. bias: of the matrices in and out. norm: of the gated
    output, over each group.

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
    kind: Literal["mamba2"] = "mamba2"

    def __post_init__(self) -> None:
        check_sizes(self, "num_heads", "head_dim", "state_size", "num_groups", "conv_width")
        if self.num_heads % self.num_groups:
            raise ConfigError(
                f"num_heads {self.num_heads} is not a multiple of num_groups {self.num_groups}"
            )
