"""GatedDeltaSpec: the gated delta rule of one layer, as plain data."""

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
class GatedDeltaSpec(MixerSpec):
    """The gated delta rule (arXiv 2412.06464): a state ``[value heads, key_dim, value_dim]``.

    num_key_heads: heads of q and k; num_value_heads: of v, a multiple. conv_width: newest rows that
    the convolution over q, k and v reads. norm: of each head's output, before its gate.

    Raises ConfigError when fields contradict each other.
    """

    words: ClassVar[str] = "the gated delta rule (linear attention)"

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    norm: NormSpec
    kind: Literal["gated_delta"] = "gated_delta"

    def __post_init__(self) -> None:
        check_sizes(self, "num_key_heads", "num_value_heads", "key_dim", "value_dim", "conv_width")
        if self.num_value_heads % self.num_key_heads:
            raise ConfigError(
                f"num_value_heads {self.num_value_heads} is not a multiple of num_key_heads "
                f"{self.num_key_heads}"
            )
