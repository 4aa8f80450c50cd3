"""NetworkFormats: which weight format each part of a network has."""

from __future__ import annotations

from dataclasses import dataclass

from trtspec.formats.base import WeightFormat


@dataclass(frozen=True)
class NetworkFormats:
    """layers: of all linear layers but the head. head: of the network's own head. target_head: of
    the head of its target, which a draft may borrow (of a target, its own)."""

    layers: WeightFormat
    head: WeightFormat
    target_head: WeightFormat

    @classmethod
    def uniform(cls, weights: WeightFormat) -> NetworkFormats:
        """One format for all parts."""
        return cls(weights, weights, weights)
