"""From a `LayerSpec` to its tensors, cache, matrices and their costs.

All memory plans and time estimates use these functions; there are no other formulas. The block of
every spec is `DecoderLayer`; unsupported specs are refused (see `trtspec.models.block_map`).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import NamedTuple, TypeAlias

import torch

from trtspec.config.cache_buffer import BufferKind, CacheBuffer
from trtspec.config.feed_forwards.experts import EXPERTS
from trtspec.config.layer import LayerSpec
from trtspec.config.layer_tensors import (
    PER_LAYER,
    is_matrix,
    layer_tensors,
)
from trtspec.config.model import ModelConfig
from trtspec.config.norm_spec import Shape
from trtspec.formats.base import WeightFormat
from trtspec.formats.network_formats import NetworkFormats
from trtspec.models.block_map import require_layer


class Matrix(NamedTuple):
    """A matrix that rows are multiplied with. name: of its weight in the checkpoint, without
    ``.weight``; empty for the target's head, which a draft borrows. stays_float: it is in the
    network's dtype, whatever the weight format."""

    outputs: int
    inputs: int
    name: str = ""
    is_head: bool = False
    stays_float: bool = False


class ExpertSet(NamedTuple):
    """``num_experts`` of a layer, each with matrices like the first one's, of which a row reads
    ``top_k``: on a rank, the expected number."""

    num_experts: int
    top_k: float
    matrices: tuple[Matrix, ...]


Read: TypeAlias = Matrix | ExpertSet
"""Something a pass reads: a matrix, or some of a set."""


@dataclass(frozen=True)
class LayerFacts:
    """tensors: shapes by name, see `layer_tensors`. buffers: of its cache; none for a layer that
    reads an earlier one's. window: newest tokens that it sees, 0: all. experts: of a mixture; None:
    it has none. kept_float: see `LayerPart`."""

    tensors: Mapping[str, Shape]
    buffers: tuple[CacheBuffer, ...]
    window: int
    experts: ExpertSet | None = None
    kept_float: frozenset[str] = frozenset()

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """The matrices that every row is multiplied with."""
        kept = self.kept_float
        return tuple(
            Matrix(shape[0], shape[1], name.removesuffix(".weight"), stays_float=name in kept)
            for name, shape in self.tensors.items()
            if is_matrix(name, shape) and not name.startswith(EXPERTS)
        )

    @property
    def reads(self) -> tuple[Read, ...]:
        """What a pass reads: these matrices, and some of the experts."""
        return self.matrices if self.experts is None else (*self.matrices, self.experts)

    @property
    def operations(self) -> int:
        """Multiplications of a row with the layer's matrices. Attention depends on the context and
        is left out."""
        own = sum(each.outputs * each.inputs for each in self.matrices)
        if self.experts is None:
            return own
        chosen = sum(each.outputs * each.inputs for each in self.experts.matrices)
        return own + round(self.experts.top_k * chosen)

    def bytes(self, formats: NetworkFormats, dtype: torch.dtype) -> int:
        """Bytes of the layer's matrices in their weight formats, in a network of ``dtype``."""
        return matrix_bytes(self.reads, formats, dtype)

    def named(self, layer: int) -> list[Read]:
        """What a pass reads of it as layer ``layer`` of a network."""
        return [within(f"layers.{layer}.", read) for read in self.reads]


@cache
def layer_facts(spec: LayerSpec, hidden: int, width: int | None = None) -> LayerFacts:
    """The facts of a layer in a network of width ``hidden``. ``width``: the input width of q, k and
    v, if different.

    Raises:
        ConfigError: no block implements it.
    """
    require_layer(spec)
    tensors = MappingProxyType(layer_tensors(spec, hidden, width))
    kept = spec.mixer.kept_float
    return LayerFacts(tensors, spec.mixer.buffers, spec.window, _experts(spec, tensors), kept)


def _experts(spec: LayerSpec, tensors: Mapping[str, Shape]) -> ExpertSet | None:
    chosen, count = (0, 0) if spec.ffn is None else spec.ffn.choice
    if not count:
        return None
    first = f"{EXPERTS}0."
    matrices = (
        Matrix(*shape, name.removesuffix(".weight"))
        for name, shape in tensors.items()
        if name.startswith(first) and len(shape) == 2
    )
    return ExpertSet(count, chosen, tuple(matrices))


def decoder_facts(config: ModelConfig) -> list[LayerFacts]:
    """The facts of each layer of a decoder."""
    return [layer_facts(spec, config.hidden_size) for spec in config.layers]


def decoder_caches(config: ModelConfig) -> list[tuple[CacheBuffer, ...]]:
    """The buffers of each cache of a decoder, in the order of the layers that have one."""
    return [facts.buffers for facts in decoder_facts(config) if facts.buffers]


def cache_places(config: ModelConfig) -> list[int]:
    """For each layer, which one of `decoder_caches` it reads."""
    owners = [spec.mixer.kv_from for spec in config.layers]
    own = [layer for layer, source in enumerate(owners) if source is None]
    return [own.index(i if source is None else source) for i, source in enumerate(owners)]


def decoder_matrices(config: ModelConfig) -> list[Read]:
    """The matrices of all layers of a decoder, their experts, and those of per-layer embeddings."""
    given, facts = config.embedding.per_layer, enumerate(decoder_facts(config))
    shared: list[Read] = []
    if given is not None:
        rows = config.num_layers * given.size
        shared = [Matrix(rows, config.hidden_size, f"{PER_LAYER}projection")]
    return shared + [read for layer, each in facts for read in each.named(layer)]


def within(start: str, read: Read) -> Read:
    """With the prefix ``start`` on all names."""
    if isinstance(read, ExpertSet):
        matrices = (m._replace(name=start + m.name) for m in read.matrices)
        return read._replace(matrices=tuple(matrices))
    return read._replace(name=start + read.name) if read.name else read


def matrix_bytes(reads: Iterable[Read], formats: NetworkFormats, dtype: torch.dtype) -> int:
    """Bytes of linear layers' weights, in a network of ``dtype``, including all experts."""
    total = 0
    for read in reads:
        if isinstance(read, ExpertSet):
            total += read.num_experts * matrix_bytes(read.matrices, formats, dtype)
        elif read.stays_float:
            total += read.outputs * read.inputs * dtype.itemsize
        else:
            total += _format_of(read, formats).bytes(read.outputs, read.inputs, dtype)
    return total


@dataclass(frozen=True)
class PassBytes:
    """Bytes of weights that one pass reads. always: those that every row is multiplied with.
    mixtures: for each layer with experts their number, how many a row chooses, and the bytes of
    one."""

    always: int = 0
    mixtures: tuple[tuple[int, float, int], ...] = ()

    def of_experts(self, rows: int) -> int:
        """Bytes of the distinct experts that this many rows are expected to choose, assuming
        uniform, independent choices; rows of one text share more of them."""
        return round(
            sum(
                size * count * (1 - (1 - chosen / count) ** rows)
                for count, chosen, size in self.mixtures
            )
        )

    def expected(self, rows: int) -> int:
        """Everything that a pass of this many rows is expected to read."""
        return self.always + self.of_experts(rows)


def pass_bytes(
    reads: Iterable[Read], formats: NetworkFormats, dtype: torch.dtype, device: str
) -> PassBytes:
    """The weights of linear layers that a pass reads on a device, in a network of ``dtype``."""
    always, mixtures = 0, []
    for read in reads:
        if isinstance(read, ExpertSet) and _format_of(
            read.matrices[0], formats
        ).reads_chosen_experts(device):
            size = matrix_bytes(read.matrices, formats, dtype)
            mixtures.append((read.num_experts, read.top_k, size))
        else:
            always += matrix_bytes([read], formats, dtype)
    return PassBytes(always, tuple(mixtures))


def _format_of(matrix: Matrix, formats: NetworkFormats) -> WeightFormat:
    if not matrix.name:
        return formats.target_head
    if matrix.is_head:
        return formats.of_head(matrix.name)
    return formats.of({matrix.name: matrix.outputs})


def buffer_dtype(buffer: CacheBuffer, dtype: torch.dtype) -> torch.dtype:
    """The dtype of a buffer, in a network of ``dtype``."""
    own: torch.dtype = dtype if buffer.dtype is None else getattr(torch, buffer.dtype)
    return own


def keeps_states(config: ModelConfig) -> bool:
    """Whether its requests have recurrent states in addition to token rows."""
    return any(b.kind != "paged" for buffers in decoder_caches(config) for b in buffers)


def cache_row_bytes(config: ModelConfig, dtype: torch.dtype, kind: BufferKind) -> int:
    """Bytes of one row of all buffers of a kind, in a network of ``dtype``: per token, per
    request's state, or per row of a call."""
    return sum(
        buffer.heads * buffer.size * buffer_dtype(buffer, dtype).itemsize
        for buffers in decoder_caches(config)
        for buffer in buffers
        if buffer.kind == kind
    )
