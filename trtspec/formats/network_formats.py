"""NetworkFormats: which weight format each layer of a network has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from trtspec.formats.base import WeightFormat


@dataclass(frozen=True)
class NetworkFormats:
    """The formats of a network's linear layers, asked for where a layer is built.

    layers: of all but heads. head: of the network's own heads. target_head: of the head of its
    target, which a draft may borrow (of a target, its own). within: the beginning of the names,
    as a checkpoint has them, of what is built: ``layers.0.attn.``.
    """

    layers: WeightFormat
    head: WeightFormat
    target_head: WeightFormat
    within: str = ""

    @classmethod
    def uniform(cls, weights: WeightFormat) -> NetworkFormats:
        """One format for all parts."""
        return cls(weights, weights, weights)

    def at(self, name: str) -> NetworkFormats:
        """Those of a part of what is built."""
        return replace(self, within=f"{self.within}{name}.")

    def of(self, outputs: Mapping[str, int]) -> WeightFormat:
        """That of a layer which is made of these weights, by name less ``.weight``, one behind the
        other along its outputs, with so many outputs each."""
        return self.layers

    def of_head(self, name: str) -> WeightFormat:
        """That of a head of its own, which is made of this weight."""
        return self.head

    @property
    def name(self) -> str:
        """That of the rounded weights."""
        return self.layers.name if self.layers.is_rounded else self.head.name

    @property
    def is_rounded(self) -> bool:
        """Whether any layer of its own may have rounded weights."""
        return self.layers.is_rounded or self.head.is_rounded

    def describe(self, dtype: str) -> str:
        """A network of ``dtype`` with such weights, in a few words."""
        said = self.layers.describe(dtype)
        return said if self.head == self.layers else f"{said}, heads {self.head.describe(dtype)}"
