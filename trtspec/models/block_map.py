"""From a `LayerSpec` to its tensors, its cache, its matrices and what these cost.

Whoever plans memory or estimates time asks here; nobody else has a formula. The block of every spec
is `DecoderLayer`; what no block runs is refused (see `trtspec.models.built`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import TypeAlias

import torch

from trtspec.config.layer import LayerSpec
from trtspec.config.layer_tensors import Shape, is_matrix, layer_tensors
from trtspec.config.model import ModelConfig
from trtspec.formats.base import WeightFormat
from trtspec.models.built import attention_of

Matrix: TypeAlias = tuple[int, int]
"""Outputs and inputs of a linear layer."""


@dataclass(frozen=True)
class KVCache:
    """What a layer keeps of every token: K and V of ``num_kv_heads`` heads, ``head_dim`` elements
    each."""

    num_kv_heads: int
    head_dim: int

    @property
    def elements_per_token(self) -> int:
        """Elements of K and V together."""
        return 2 * self.num_kv_heads * self.head_dim


@dataclass(frozen=True)
class LayerFacts:
    """tensors: shapes by name, see `layer_tensors`. window: newest tokens that it sees, 0: all."""

    tensors: Mapping[str, Shape]
    cache: KVCache
    window: int

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """The matrices that every row is multiplied with."""
        found = (shape for name, shape in self.tensors.items() if is_matrix(name, shape))
        return tuple((shape[0], shape[1]) for shape in found)

    @property
    def operations(self) -> int:
        """Multiplications of a row with the layer's matrices. Those of attention depend on the
        context, and are left out."""
        return sum(n * k for n, k in self.matrices)

    def bytes(self, weights: WeightFormat, dtype: torch.dtype) -> int:
        """Bytes that a pass reads of the layer's matrices, kept in that format in a network of
        ``dtype``."""
        return matrix_bytes(self.matrices, weights, dtype)


@cache
def layer_facts(spec: LayerSpec, hidden: int, width: int | None = None) -> LayerFacts:
    """The facts of a layer, in a network of ``hidden`` elements a row. ``width``: elements that its
    q, k and v read, if they are not as many.

    Raises:
        ConfigError: no block runs it.
    """
    mixer = attention_of(spec)
    tensors = MappingProxyType(layer_tensors(spec, hidden, width))
    return LayerFacts(tensors, KVCache(mixer.num_kv_heads, mixer.head_dim), mixer.window)


def decoder_facts(config: ModelConfig) -> list[LayerFacts]:
    """The facts of each layer of a decoder."""
    return [layer_facts(spec, config.hidden_size) for spec in config.layers]


def decoder_matrices(config: ModelConfig) -> list[Matrix]:
    """The matrices of all layers of a decoder."""
    return [matrix for facts in decoder_facts(config) for matrix in facts.matrices]


def matrix_bytes(matrices: Iterable[Matrix], weights: WeightFormat, dtype: torch.dtype) -> int:
    """Bytes that a pass over linear layers reads of their weights, in a network of ``dtype``."""
    return sum(weights.bytes(n, k, dtype) for n, k in matrices)


def kv_elements_per_token(config: ModelConfig) -> int:
    """Elements of K and V of one token over all layers."""
    return sum(facts.cache.elements_per_token for facts in decoder_facts(config))
