"""From the mixer of a layer's spec to the block that runs it."""

from __future__ import annotations

import torch

from trtspec.config.layer import LayerSpec
from trtspec.config.mixers.latent_attention import LatentAttentionSpec
from trtspec.formats.network_formats import NetworkFormats
from trtspec.models.block_map import mixer_of
from trtspec.models.mixers.attention import Attention
from trtspec.models.mixers.latent_attention import LatentAttention


def make_mixer(
    spec: LayerSpec, hidden: int, dtype: torch.dtype, formats: NetworkFormats
) -> Attention | LatentAttention:
    """The block of a layer's mixer; all are called alike.

    Raises:
        ConfigError: no block runs a part of the layer.
    """
    mixer = mixer_of(spec)
    if isinstance(mixer, LatentAttentionSpec):
        return LatentAttention(mixer, hidden, dtype, formats=formats)
    return Attention(mixer, hidden, dtype, formats=formats)
