"""Attention over K/V heads as latent attention that computes the same.

The latent keeps the source's values, its one rotated key those of all K/V heads side by side, and a
head's query is zero where another one's key is. A norm stands between: some of its inputs are a
bias of 2^14, beside whose squares those of values vanish, so that it divides by a constant. The
parts of queries that do not turn are random and meet keys of zero; heads that are added compute
with random weights and add nothing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from trtspec.bench.widen import Axis, noise
from trtspec.config.model import ModelConfig
from trtspec.errors import ConfigError
from trtspec.models.rope import inverse_frequencies

LOUD = 2.0**14
"""Within float16, and far above all values."""


@dataclass(frozen=True)
class LatentSpace:
    """Where ``heads`` over ``kv_heads`` of ``head_dim`` lie in ``wide_heads`` over latents of
    ``rank``; ``plain_dim``: what a head's query and key have beside what turns.

    Raises ConfigError for a rank without room for the values and the bias.
    """

    heads: int
    kv_heads: int
    head_dim: int
    wide_heads: int
    rank: int
    plain_dim: int

    def __post_init__(self) -> None:
        if self.kv_heads * self.head_dim + self.loud > self.rank:
            raise ConfigError(
                f"{self.kv_heads} K/V heads of {self.head_dim} do not fit into latents of "
                f"{self.rank}, of which {self.loud} are a bias"
            )

    @property
    def rope_dim(self) -> int:
        """Elements of the rotated key."""
        return self.kv_heads * self.head_dim

    @property
    def query_dim(self) -> int:
        """Elements of a head's query."""
        return self.plain_dim + self.rope_dim

    @property
    def gain(self) -> float:
        """Of queries, as scores are divided by the root of `query_dim`; 2 where that is 4 heads."""
        return float((self.query_dim / self.head_dim) ** 0.5)

    @property
    def loud(self) -> int:
        """Elements of a latent that are the bias: the norm's factor is a power of 2 where the rank
        is a multiple of a power of 4 by so many."""
        rank = self.rank
        while rank % 4 == 0:
            rank //= 4
        return rank

    def _turning(self, kv_head: Tensor) -> Tensor:
        """Places ``[N, head_dim]`` of the keys of heads ``[N]`` in the rotated key, whose first and
        second halves turn together."""
        half = self.head_dim // 2
        first = kv_head[:, None] * half + torch.arange(half)
        return torch.cat((first, first + self.rope_dim // 2), dim=1)

    def queries(self) -> Axis:
        """Rows of q_proj."""
        head = torch.arange(self.heads)
        start = head * self.query_dim + self.plain_dim
        group = self.heads // self.kv_heads
        places = (start[:, None] + self._turning(head // group)).flatten()
        turning = (start[:, None] + torch.arange(self.rope_dim)).flatten()
        zero = turning[~torch.isin(turning, places)]
        return Axis(self.wide_heads * self.query_dim, (places,), zero)

    def latents(self) -> Axis:
        """Values among the elements of a latent."""
        loud = torch.arange(self.rank - self.loud, self.rank)
        return Axis(self.rank, (torch.arange(self.rope_dim),), loud)

    def keys(self) -> Axis:
        """Keys of all K/V heads in the rotated one."""
        places = self._turning(torch.arange(self.kv_heads)).flatten()
        return Axis.at(places, self.rope_dim, silent=False)

    def results(self) -> Axis:
        """Columns of o_proj."""
        count = self.heads * self.head_dim
        return Axis.prefix(count, self.wide_heads * self.head_dim, silent=True)

    def bias(self, dtype: torch.dtype) -> Tensor:
        """Of what makes latents and the rotated key."""
        found = torch.zeros(self.rank + self.rope_dim, dtype=dtype)
        found[self.rank - self.loud : self.rank] = LOUD
        return found

    def norm(self, dtype: torch.dtype) -> Tensor:
        """The weight that undoes the norm of latents, and silences their bias."""
        found = torch.full((self.rank,), LOUD * (self.loud / self.rank) ** 0.5, dtype=dtype)
        found[self.rank - self.loud :] = 0
        return found

    def of_heads(self, dtype: torch.dtype, generator: torch.Generator) -> Tensor:
        """What makes a head's keys, which are zero, and values of latents, ``[wide_heads *
        (plain_dim + head_dim), rank]``."""
        parts = noise(
            (self.wide_heads, self.plain_dim + self.head_dim, self.rank), dtype, generator
        )
        parts[:, : self.plain_dim] = 0
        parts[: self.heads] = 0
        group, element = self.heads // self.kv_heads, torch.arange(self.head_dim)
        for head in range(self.heads):
            values = head // group * self.head_dim + element
            parts[head, self.plain_dim + element, values] = 1
        return parts.flatten(0, 1)

    def config(self, source: ModelConfig, layers: int) -> dict[str, Any]:
        """What config.json says of it, and of layers that are all dense. Every frequency of the
        rotated key has the factor that makes it the source's."""
        (rope,) = source.ropes
        wanted, _ = inverse_frequencies(rope, self.head_dim)
        turned = torch.arange(0, self.rope_dim, 2, dtype=torch.float64) / self.rope_dim
        periods = 1 / wanted.double().repeat(self.kv_heads)
        factors = (periods / rope.theta**turned).tolist()
        return {
            "num_key_value_heads": self.wide_heads,
            "head_dim": self.rope_dim,
            "q_lora_rank": None,
            "kv_lora_rank": self.rank,
            "qk_nope_head_dim": self.plain_dim,
            "qk_rope_head_dim": self.rope_dim,
            "v_head_dim": self.head_dim,
            "attention_bias": True,
            "rope_interleave": False,
            "first_k_dense_replace": layers,
            "rope_scaling": None,
            "rope_parameters": {
                "rope_type": "longrope",
                "rope_theta": rope.theta,
                "factor": 1.0,
                "attention_factor": 1.0,
                "original_max_position_embeddings": source.max_position_embeddings,
                "short_factor": factors,
                "long_factor": factors,
            },
        }
