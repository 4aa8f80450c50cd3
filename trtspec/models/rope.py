"""Rotary position embedding: frequencies of every supported type, rotation in float32."""

from __future__ import annotations

import math

import torch
from torch import Tensor, nn

from trtspec.config.model import ModelConfig
from trtspec.config.rope import RopeConfig
from trtspec.models.built import attention_of


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """Frequencies ``[head_dim // 2] f32`` (radians a position) and the factor on cos and sin.

    The arithmetic follows transformers' operation for operation, so that float32 models agree.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    periods: Tensor = rope.theta**exponents
    plain = 1.0 / periods
    if rope.type == "linear":
        return plain / rope.factor, 1.0
    if rope.type == "llama3":
        return _llama3(rope, plain), 1.0
    if rope.type == "yarn":
        return _yarn(rope, periods, head_dim), _yarn_attention_factor(rope)
    return plain, 1.0


def _llama3(rope: RopeConfig, plain: Tensor) -> Tensor:
    """Long waves are stretched, short waves kept, waves between blended."""
    original = rope.original_max_position_embeddings
    low, high = rope.low_freq_factor, rope.high_freq_factor
    assert original is not None and low is not None and high is not None  # RopeConfig checked
    wavelengths = 2 * math.pi / plain
    smooth = (original / wavelengths - low) / (high - low)
    blended = (1 - smooth) * plain / rope.factor + smooth * plain
    between = ~(wavelengths < original / high) & ~(wavelengths > original / low)
    outside = torch.where(wavelengths > original / low, plain / rope.factor, plain)
    return torch.where(between, blended, outside)


def _yarn(rope: RopeConfig, periods: Tensor, head_dim: int) -> Tensor:
    """Blend of stretched and plain frequencies along a ramp over the dimensions (Peng et al.)."""
    original = rope.original_max_position_embeddings
    assert original is not None  # RopeConfig checked

    def dimension(rotations: float) -> float:
        turns = math.log(original / (rotations * 2 * math.pi))
        return (head_dim * turns) / (2 * math.log(rope.theta))

    low, high = dimension(rope.beta_fast), dimension(rope.beta_slow)
    if rope.truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, head_dim - 1)
    if low == high:
        high += 0.001  # a ramp of width zero would divide by zero
    ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)
    plain_share = 1 - ramp.clamp(0, 1)
    stretched = 1.0 / (rope.factor * periods)
    return stretched * (1 - plain_share) + (1.0 / periods) * plain_share


def _yarn_attention_factor(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor

    def scale(mscale: float) -> float:
        return 1.0 if rope.factor <= 1 else 0.1 * mscale * math.log(rope.factor) + 1.0

    if rope.mscale and rope.mscale_all_dim:
        return scale(rope.mscale) / scale(rope.mscale_all_dim)
    return scale(1.0)


class RotaryEmbedding(nn.Module):
    """Cos and sin of a batch of positions. The frequencies are a buffer, so engines carry them as
    weights."""

    inv_freq: Tensor

    def __init__(self, rope: RopeConfig, head_dim: int) -> None:
        super().__init__()
        inv_freq, self.attention_factor = inverse_frequencies(rope, head_dim)
        self.register_buffer("inv_freq", inv_freq)

    def forward(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Cos and sin, each ``[T, 1, head_dim // 2] f32``, of ``positions [T] i64``."""
        angles = (positions[:, None].float() * self.inv_freq)[:, None, :]
        return angles.cos() * self.attention_factor, angles.sin() * self.attention_factor


class LayerRotary(RotaryEmbedding):
    """Cos and sin for every layer of a decoder. Its own frequencies are those of the first layer;
    ``others`` are those of layers with another table or head size."""

    def __init__(self, config: ModelConfig) -> None:
        specs = [attention_of(spec) for spec in config.layers]
        tables = [(spec.rope or 0, spec.head_dim) for spec in specs]
        first, *others = dict.fromkeys(tables)
        super().__init__(config.ropes[first[0]], first[1])
        self.others = nn.ModuleList(
            RotaryEmbedding(config.ropes[rope], head_dim) for rope, head_dim in others
        )
        self._of_layer = [[first, *others].index(table) for table in tables]

    def of_layers(self, positions: Tensor) -> list[tuple[Tensor, Tensor]]:
        """What `forward` returns, for each layer."""
        found = [self(positions), *(other(positions) for other in self.others)]
        return [found[table] for table in self._of_layer]


def rotate(x: Tensor, cos_sin: tuple[Tensor, Tensor]) -> Tensor:
    """Rotate heads ``x [T, heads, head_dim]``: in float32, one rounding back to x's dtype.

    Dimension i turns with dimension i + head_dim / 2 (the half-split layout of Hugging Face).
    """
    cos, sin = cos_sin
    first, second = x.float().chunk(2, dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    return torch.cat([half.to(x.dtype) for half in turned], dim=-1)
