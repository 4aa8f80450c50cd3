"""GatedDeltaSpec, Mamba2Spec: mixers that keep a state a request, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtspec.config.norm_spec import NormSpec
from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError


@strict_config()
@dataclass(frozen=True)
class GatedDeltaSpec:
    """The gated delta rule (arXiv 2412.06464): a state ``[value heads, key_dim, value_dim]``.

    num_key_heads: heads of q and k; num_value_heads: of v, a multiple. conv_width: newest rows that
    the convolution over q, k and v reads. norm: of each head's output, before its gate.

    Raises ConfigError when fields contradict each other.
    """

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int
    norm: NormSpec
    kind: Literal["gated_delta"] = "gated_delta"

    def __post_init__(self) -> None:
        _check_sizes(self, "num_key_heads", "num_value_heads", "key_dim", "value_dim", "conv_width")
        if self.num_value_heads % self.num_key_heads:
            raise ConfigError(
                f"num_value_heads {self.num_value_heads} is not a multiple of num_key_heads "
                f"{self.num_key_heads}"
            )


@strict_config()
@dataclass(frozen=True)
class Mamba2Spec:
    """Mamba-2 (arXiv 2405.21060): a state ``[num_heads, head_dim, state_size]``.

    num_groups: groups of heads that share B and C. conv_width: newest rows that the convolution
    over x, B and C reads; conv_bias: of it. bias: of the matrices in and out. norm: of the gated
    output, over each group.

    Raises ConfigError when fields contradict each other.
    """

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
        _check_sizes(self, "num_heads", "head_dim", "state_size", "num_groups", "conv_width")
        if self.num_heads % self.num_groups:
            raise ConfigError(
                f"num_heads {self.num_heads} is not a multiple of num_groups {self.num_groups}"
            )


def _check_sizes(spec: object, *names: str) -> None:
    for name in names:
        if getattr(spec, name) < 1:
            raise ConfigError(f"{name} is {getattr(spec, name)}; it must be at least 1")
