"""From the feed-forward part of a layer's spec to the block that runs it."""

from __future__ import annotations

import torch

from trtspec.config.feed_forwards.experts import ExpertsSpec
from trtspec.config.layer import LayerSpec
from trtspec.formats.network_formats import NetworkFormats
from trtspec.models.block_map import feed_forward_of
from trtspec.models.feed_forwards.dense import DenseFeedForward
from trtspec.models.feed_forwards.experts import Experts


def make_feed_forward(
    spec: LayerSpec, hidden: int, dtype: torch.dtype, formats: NetworkFormats
) -> DenseFeedForward | Experts:
    """The block of a layer's feed-forward part; both are called alike.

    Raises:
        ConfigError: no block runs a part of the layer.
    """
    ffn = feed_forward_of(spec)
    if isinstance(ffn, ExpertsSpec):
        return Experts(ffn, hidden, dtype, formats=formats)
    return DenseFeedForward(ffn, hidden, dtype, formats=formats)
