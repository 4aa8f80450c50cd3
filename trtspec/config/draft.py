"""DraftConfig: what any draft network's shape has to say."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar, Protocol

from trtspec.config.kv import CacheDtype
from trtspec.config.model import ModelConfig


class DraftConfig(Protocol):
    """The shape of a draft network.

    kind: its entry in `trtspec.speculative.registry`.
    decoder: the shape of its layers, which decides the size of its cache; None for a network
    without K/V. capture_layers: the target's states that it reads, in the order of their
    concatenation. ranks: that it is split over. decoders: of what is split in it the shapes, by
    the beginnings of their tensors' names (see `model_tensors`).
    """

    kind: ClassVar[str]

    @property
    def decoder(self) -> ModelConfig | None: ...

    @property
    def capture_layers(self) -> tuple[int, ...]: ...

    @property
    def ranks(self) -> int: ...

    @property
    def decoders(self) -> Mapping[str, ModelConfig]: ...

    def sharded(self, ranks: int) -> DraftConfig:
        """See `ModelConfig.sharded`; ConfigError of a network that is not split."""
        ...

    def with_caches(self, dtype: CacheDtype | None) -> DraftConfig:
        """See `ModelConfig.with_caches`; for a network that reads the target's K/V, this concerns
        the target's caches."""
        ...

    def for_steps(self, num_steps: int) -> DraftConfig:
        """The network as far as drafts of this depth need it; ConfigError if it cannot draft that
        deep."""
        ...

    def describe(self) -> str:
        """A one-line description for plans and logs."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values, the inverse of ``from_dict``."""
        ...
