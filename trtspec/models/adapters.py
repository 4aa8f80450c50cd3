"""Low-rank adapters of a decoder, chosen per row and added to the products of its layers.

A network built for adapters reserves room for some among its weights (`AdapterSizes`), and is told
for each row which one to read. Adapters therefore come and go without compiling.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trtspec.config.adapters import AdapterSizes
from trtspec.config.model import ModelConfig
from trtspec.models.layer_facts import decoder_facts
from trtspec.models.linear import Linear
from trtspec.models.loading import FUSED
from trtspec.models.lora import Lora
from trtspec.models.rows import PackedRows, Rows

ADAPTED = ("attn.", "mlp.")
"""Prefixes, within a layer, of the products that can have adapters."""


class AdapterRows(NamedTuple):
    """The packed rows of a call of a network with adapters. ``adapters [T] i32``: the slot of each
    row's adapter, or -1 for none."""

    packed: PackedRows
    adapters: Tensor


def without_adapters(rows: Rows | AdapterRows) -> tuple[Rows, Tensor | None]:
    """The rows as layers take them, and the adapter slot of each ``[T] i32``, if they have one."""
    return rows if isinstance(rows, AdapterRows) else (rows, None)


@dataclass(frozen=True, eq=False)
class Adapter:
    """An adapter in memory. number: positive and never reused. layers: ``a [r, K]`` and ``b [N,
    r]`` (scaled) of linear layers, keyed by their names in a checkpoint without ``.weight``, in the
    network's dtype, on the host."""

    number: int
    name: str
    layers: Mapping[str, tuple[Tensor, Tensor]]


class AdaptedLayer(NamedTuple):
    """A linear layer of a checkpoint that adapters can adapt: ``name`` without ``.weight``, stored
    as ``part`` of ``lora``."""

    name: str
    lora: Lora
    part: int


def add_adapters(layers: nn.ModuleList, config: ModelConfig, sizes: AdapterSizes) -> None:
    """Reserve room for adapters, uninitialised, beside the products of a decoder's layers."""
    for (number, layer), facts in zip(enumerate(layers), decoder_facts(config), strict=True):
        for name, linear in _adapted(layer):
            tensors = [f"{part}.weight" for part in _parts(name)]
            outputs = tuple(facts.tensors[tensor][0] for tensor in tensors)
            assert sum(outputs) == linear.out_features, f"layer {number}: {name}"
            linear.lora = Lora(sizes, linear.in_features, outputs, linear.dtype)


def adapted_layers(layers: nn.ModuleList) -> Iterator[AdaptedLayer]:
    """The layers that an adapter may adapt."""
    for number, layer in enumerate(layers):
        for name, linear in _adapted(layer):
            lora = linear.lora
            assert lora is not None, "the network was made for adapters"
            for part, own in enumerate(_parts(name)):
                yield AdaptedLayer(f"layers.{number}.{own}", lora, part)


def place_adapter(layers: Iterable[AdaptedLayer], slot: int, adapter: Adapter) -> None:
    """Write an adapter into a slot of all layers; layers that it does not adapt get zeros."""
    for layer in layers:
        a, b = adapter.layers.get(layer.name, (None, None))
        layer.lora.fill(slot, layer.part, a, b)


def is_adapter(name: str) -> bool:
    """Whether a tensor in a network's ``state_dict`` is room for adapters."""
    return ".lora." in name


def adapter_bytes(config: ModelConfig, rank: int, dtype: torch.dtype) -> int:
    """Bytes of room for one adapter of this rank."""
    elements = sum(
        rank * sum(shape)
        for facts in decoder_facts(config)
        for name, shape in facts.tensors.items()
        if name.startswith(ADAPTED) and name.endswith(".weight") and len(shape) == 2
    )
    return elements * dtype.itemsize


def _adapted(layer: nn.Module) -> Iterator[tuple[str, Linear]]:
    for name, module in layer.named_modules():
        if isinstance(module, Linear) and name.startswith(ADAPTED):
            yield name, module


def _parts(name: str) -> list[str]:
    """The checkpoint layers that a product with this name combines, in the order of its outputs."""
    parent, _, fused = name.rpartition(".")
    return [f"{parent}.{part}" for part in FUSED.get(fused, (fused,))]
