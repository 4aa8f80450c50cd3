"""Rotary position embedding: frequencies of every supported type, rotation in float32."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trtspec.config.model import ModelConfig
from trtspec.config.rope import RopeConfig
from trtspec.errors import ConfigError


def inverse_frequencies(rope: RopeConfig, head_dim: int) -> tuple[Tensor, float]:
    """Frequencies ``[head_dim // 2] f32`` (radians per position) and the factor on cos and sin.

    The arithmetic follows transformers' operation by operation, so that float32 models agree.
    """
    exponents = torch.arange(0, head_dim, 2, dtype=torch.float32) / head_dim
    periods: Tensor = rope.theta**exponents
    plain = 1.0 / periods
    if rope.type == "linear":
        return plain / rope.factor, 1.0
    if rope.type == "proportional":
        turning = torch.arange(head_dim // 2) < int(rope.turning * head_dim // 2)
        return torch.where(turning, plain, 0.0) / rope.factor, 1.0
    if rope.type == "llama3":
        return _llama3(rope, plain), 1.0
    if rope.type == "yarn":
        return _yarn(rope, periods, head_dim), _yarn_attention_factor(rope)
    if rope.type == "longrope":
        return _longrope(rope, periods), _longrope_attention_factor(rope)
    return plain, 1.0


def _longrope(rope: RopeConfig, periods: Tensor) -> Tensor:
    """Each frequency divided by its own factor (Ding et al., arXiv 2402.13753)."""
    factors = torch.tensor(rope.factors, dtype=torch.float32)
    if len(factors) != len(periods):
        raise ConfigError(
            f"rope type longrope has factors of {len(factors)} frequencies, heads turn by "
            f"{len(periods)}"
        )
    return 1.0 / (factors * periods)


def _longrope_attention_factor(rope: RopeConfig) -> float:
    if rope.attention_factor is not None:
        return rope.attention_factor
    original = rope.original_max_position_embeddings
    assert original is not None  # RopeConfig checked
    return 1.0 if rope.factor <= 1 else math.sqrt(1 + math.log(rope.factor) / math.log(original))


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


class Rotation(NamedTuple):
    """How rows are rotated: cos and sin at their positions, each ``[T, 1, n / 2] f32`` for the
    first n elements of a head. ``interleaved``: element 2i is paired with 2i + 1 instead of i with
    i + n / 2 (the half-split layout of Hugging Face)."""

    cos: Tensor
    sin: Tensor
    interleaved: bool = False

    def first(self, count: int) -> Rotation:
        """That of the first rows."""
        return self._replace(cos=self.cos[:count], sin=self.sin[:count])


class RotaryEmbedding(nn.Module):
    """The rotation of a batch of positions. The frequencies are a buffer, so engines carry them as
    weights."""

    inv_freq: Tensor

    def __init__(self, rope: RopeConfig, rotary_dim: int, interleaved: bool = False) -> None:
        super().__init__()
        self.interleaved = interleaved
        inv_freq, self.attention_factor = inverse_frequencies(rope, rotary_dim)
        self.register_buffer("inv_freq", inv_freq)

    def forward(self, positions: Tensor) -> Rotation:
        """Of ``positions [T] i64``."""
        angles = (positions[:, None].float() * self.inv_freq)[:, None, :]
        factor = self.attention_factor
        return Rotation(angles.cos() * factor, angles.sin() * factor, self.interleaved)


class LayerRotary(RotaryEmbedding):
    """The rotation of every layer of a decoder. Its own frequencies are those of the first layer
    that has one; ``others`` are those of layers with different tables. Without any rotated layer it
    has no frequencies."""

    def __init__(self, config: ModelConfig) -> None:
        turns = [spec.mixer.turn for spec in config.layers]
        order = list(dict.fromkeys(turn for turn in turns if turn is not None))
        if order:
            first = order[0]
            super().__init__(config.ropes[first.rope], first.rotary_dim, first.interleaved)
        else:
            nn.Module.__init__(self)
        self.others = nn.ModuleList(
            RotaryEmbedding(config.ropes[turn.rope], turn.rotary_dim, turn.interleaved)
            for turn in order[1:]
        )
        self._of_layer = [None if turn is None else order.index(turn) for turn in turns]

    def of_layers(self, positions: Tensor) -> list[Rotation | None]:
        """The result of `forward` for each layer; None for unrotated layers."""
        if all(table is None for table in self._of_layer):
            return [None] * len(self._of_layer)
        found = [self(positions), *(other(positions) for other in self.others)]
        return [None if table is None else found[table] for table in self._of_layer]


def rotate(x: Tensor, rotation: Rotation | None) -> Tensor:
    """Rotate heads ``x [T, heads, head_dim]``: in float32, one rounding back to x's dtype; without
    a rotation, x itself."""
    if rotation is None:
        return x
    cos, sin, interleaved = rotation
    size = 2 * cos.shape[-1]
    part, rest = x, []
    if size < x.shape[-1]:
        part, rest = x[..., :size], [x[..., size:]]
    if interleaved:
        first, second = part.float().reshape(*x.shape[:-1], size // 2, 2).unbind(-1)
    else:
        first, second = part.float().chunk(2, dim=-1)
    turned = (first * cos - second * sin, second * cos + first * sin)
    if interleaved:
        return torch.cat([torch.stack(turned, dim=-1).flatten(-2).to(x.dtype), *rest], dim=-1)
    return torch.cat([*(half.to(x.dtype) for half in turned), *rest], dim=-1)
