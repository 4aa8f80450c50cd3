"""LatentAttentionSpec: multi-head latent attention of one layer, as plain data."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from trtspec.config.norm_spec import NormSpec
from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError


@strict_config()
@dataclass(frozen=True)
class LatentAttentionSpec:
    """MLA (DeepSeek-V2, arXiv 2405.04434): a cache holds, for all heads, one latent of ``kv_rank``
    elements and one rotated key of ``rope_dim`` a token. Sizes are in elements.

    q_rank: width of the latent that queries are made of; None: of the hidden state itself.
    plain_dim: elements of a head's query and key that are not rotated, beside ``rope_dim`` that
    are. value_dim: of a head's value. norm: of the latents. rope: its table among
    ``ModelConfig.ropes``. interleaved, scale: as in `AttentionSpec`; scale None: one over the
    root of `query_dim`. bias: of the matrices that make latents; output_bias: of o.

    Raises ConfigError for sizes that are none.
    """

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
