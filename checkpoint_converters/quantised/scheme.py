"""Scheme: how one checkpoint's files store the quantised linear layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Protocol

from checkpoint_converters.containers.safetensors_files import TensorHeader
from checkpoint_converters.quantised.header import QuantisedHeader
from checkpoint_converters.quantised.modules import Module
from trtspec.config.quantised import QuantisedTensor
from trtspec.config.storage import WeightStorage

_QUANTISED = ("I8", "U8", "I32", "F8_E4M3")


@dataclass(frozen=True)
class Layer:
    """One quantised layer with N outputs and K inputs, checked except for its values. ``unpack``
    reads it, in the form given by ``storage``."""

    shape: tuple[int, int]
    storage: WeightStorage
    unpack: Callable[[], QuantisedTensor]


class Folds(Protocol):
    """Replaces a checkpoint's quantised tensors by float tensors. name: for messages."""

    @property
    def name(self) -> str: ...

    def fold(self, headers: Mapping[str, TensorHeader]) -> dict[str, TensorHeader]:
        """See `Scheme.fold`."""
        ...


@dataclass(frozen=True)
class Scheme:
    """name: for messages. key: the role of a tensor that every quantised layer has, such as
    ``qweight``; ``roles`` are the others. read: reads and checks a layer's tensors."""

    name: str
    key: str
    roles: tuple[str, ...]
    read: Callable[[Module], Layer]

    def fold(self, headers: Mapping[str, TensorHeader]) -> dict[str, TensorHeader]:
        """The tensors, with one ``LAYER.weight`` in place of everything that a quantised layer has
        except its bias.

        Raises:
            CheckpointError: a part of a layer is missing, or has another dtype or shape.
        """
        found = dict(headers)
        for name in headers:
            layer, _, role = name.rpartition(".")
            if role == self.key and layer:
                module = self._module(layer, headers)
                for part in module.parts:
                    found.pop(f"{layer}.{part}")
                weight = f"{layer}.weight"
                found[weight] = _tensor(weight, module, self.read(module))
        for name, header in found.items():
            if header.dtype in _QUANTISED and name.endswith(".weight"):
                self._module(name.removesuffix(".weight"), headers).part(self.key, (), 0)
        return found

    def _module(self, layer: str, headers: Mapping[str, TensorHeader]) -> Module:
        roles = (self.key, *self.roles)
        named = {role: headers.get(f"{layer}.{role}") for role in roles}
        return Module(layer, self.name, {r: part for r, part in named.items() if part is not None})


def _tensor(name: str, module: Module, layer: Layer) -> QuantisedHeader:
    file = next(iter(module.parts.values())).file
    return QuantisedHeader(name, file, "F32", layer.shape, layer.storage, layer.unpack)
