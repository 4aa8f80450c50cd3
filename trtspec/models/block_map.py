"""Maps the parts of a layer's spec to the blocks that implement them. Parts without a block, or
without a kernel on a device, are refused by name before anything is built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch

from trtspec.config.feed_forwards.dense import DenseSpec
from trtspec.config.layer import LayerSpec
from trtspec.config.layer_part import LayerPart
from trtspec.config.mixers.attention import AttentionSpec
from trtspec.config.model import ModelConfig
from trtspec.errors import ConfigError
from trtspec.formats.network_formats import NetworkFormats
from trtspec.models.block import Block, Kernels
from trtspec.models.feed_forwards.dense import DENSE
from trtspec.models.feed_forwards.experts import MIXTURE
from trtspec.models.mixers.attention import ATTENTION
from trtspec.models.mixers.gated_delta import GATED_DELTA
from trtspec.models.mixers.latent_attention import LATENT_ATTENTION
from trtspec.models.mixers.mamba2 import MAMBA2

BLOCKS: dict[type[LayerPart], Block] = {
    block.spec: block
    for block in (ATTENTION, LATENT_ATTENTION, GATED_DELTA, MAMBA2, DENSE, MIXTURE)
}
"""All blocks: a new one is a name in this line."""


def make_mixer(spec: LayerSpec, hidden: int, dtype: torch.dtype, formats: NetworkFormats) -> Any:
    """The block of a layer's mixer; all have the same interface.

    Raises:
        ConfigError: no block implements a part of the layer.
    """
    require_layer(spec)
    return BLOCKS[type(spec.mixer)].make(spec.mixer, hidden, dtype, formats=formats)


def make_feed_forward(
    spec: LayerSpec, hidden: int, dtype: torch.dtype, formats: NetworkFormats
) -> Any:
    """The block of a layer's feed-forward part; all have the same interface.

    Raises:
        ConfigError: no block implements a part of the layer.
    """
    require_layer(spec)
    assert spec.ffn is not None, "layers without one were refused"
    return BLOCKS[type(spec.ffn)].make(spec.ffn, hidden, dtype, formats=formats)


def attention_of(spec: LayerSpec) -> AttentionSpec:
    """The mixer of a layer in a network that only supports attention.

    Raises:
        ConfigError: see `require_layer`; or its mixer is another.
    """
    require_layer(spec)
    return AttentionSpec.of(spec.mixer)


def dense_of(spec: LayerSpec) -> DenseSpec:
    """The feed-forward part of a layer, which must be dense.

    Raises:
        ConfigError: see `require_layer`; or it has another part.
    """
    require_layer(spec)
    return DenseSpec.of(spec.ffn)


def missing_blocks(config: ModelConfig) -> list[str]:
    """The parts of a decoder that no block implements, in words."""
    return list(dict.fromkeys(part for spec in config.layers.specs for part in _of_layer(spec)))


def require_blocks(config: ModelConfig) -> None:
    """Check that blocks implement the whole decoder.

    Raises:
        ConfigError: they do not; all missing parts are named.
    """
    _refuse(missing_blocks(config), config.architecture)


def require_layer(spec: LayerSpec) -> None:
    """Check that blocks implement the whole layer.

    Raises:
        ConfigError: they do not; all missing parts are named.
    """
    _refuse(_of_layer(spec), "a layer")


def require_kernels(config: ModelConfig, device: str) -> None:
    """Check that a device, cpu or cuda, has kernels for every op of the decoder.

    Raises:
        ConfigError: an op has none.
    """
    for what in without_kernels(config, Kernels(device)):
        raise ConfigError(
            f"{config.architecture} has {what}, for which {device} has no kernel in this version; "
            "build it for a CPU (--device cpu)"
        )


def without_kernels(config: ModelConfig, kernels: Kernels) -> Iterator[str]:
    """The parts of a decoder that such kernels do not support, in words."""
    for spec in config.layers.specs:
        for part in (spec.mixer, spec.ffn):
            block = BLOCKS.get(type(part))  # type: ignore[arg-type]
            if block is not None:
                yield from block.lacks(part, kernels)


def without_adapters(config: ModelConfig) -> list[str]:
    """The parts of a decoder that do not support adapters, in words."""
    parts = [part for spec in config.layers.specs for part in (spec.mixer, spec.ffn)]
    bare = (part for part in parts if part is not None and not BLOCKS[type(part)].takes_adapters)
    return list(dict.fromkeys(part.words for part in bare))


def _refuse(missing: Iterable[str], what: str) -> None:
    parts = list(missing)
    if parts:
        *first, last = (spec.words for spec in BLOCKS)
        raise ConfigError(
            f"{what} has {', '.join(parts)}, which this version does not run; it runs "
            f"{', '.join(first)} and {last}"
        )


def _of_layer(spec: LayerSpec) -> Iterator[str]:
    yield from _of_part(spec.mixer)
    if spec.ffn is None:
        yield "layers without feed-forward"
    else:
        yield from _of_part(spec.ffn)
    if spec.parallel and (spec.per_layer is not None or spec.output_scale):
        yield "attention and feed-forward in parallel with per-layer embeddings or a scaled output"
    if spec.parallel and (spec.norm_place != "before" or spec.residual_scale != 1):
        yield "attention and feed-forward in parallel with norms behind them or scaled residuals"


def _of_part(part: LayerPart) -> Iterator[str]:
    block = BLOCKS.get(type(part))
    return iter((part.words,)) if block is None else block.missing(part)
