"""DraftConfig: what everyone asks of a draft network's shape, whatever its kind."""

from __future__ import annotations

from typing import Any, ClassVar, Protocol

from trtspec.config.kv import CacheDtype
from trtspec.config.model import ModelConfig


class DraftConfig(Protocol):
    """The shape of a draft network.

    kind: its entry in `trtspec.speculative.registry`.
    decoder: the shape of its layers, which decides the size of its cache; None for a network
    without K/V. capture_layers: the target's states that it reads, in the order of their
    concatenation.
    """

    kind: ClassVar[str]

    @property
    def decoder(self) -> ModelConfig | None: ...

    @property
    def capture_layers(self) -> tuple[int, ...]: ...

    def with_caches(self, dtype: CacheDtype | None) -> DraftConfig:
        """See `ModelConfig.with_caches`; of a network that reads the target's K/V, those."""
        ...

    def for_steps(self, num_steps: int) -> DraftConfig:
        """The network as far as drafts of that depth need it; ConfigError if it cannot draft so
        deep."""
        ...

    def describe(self) -> str:
        """The network in one line, for plans and logs."""
        ...

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON, which the class's ``from_dict`` takes back."""
        ...
