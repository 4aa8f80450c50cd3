"""DenseSpec: a dense feed-forward part, as plain data."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from trtspec.config.feed_forwards.base import FeedForwardSpec
from trtspec.config.layer_part import check_sizes, share
from trtspec.config.norm_spec import Shape
from trtspec.config.strict import strict_config
from trtspec.errors import ConfigError

ACTIVATIONS = ("silu", "gelu", "gelu_tanh", "quick_gelu", "relu", "relu2")


@strict_config()
@dataclass(frozen=True)
class DenseSpec(FeedForwardSpec):
    """``down(act(gate(x)) * up(x))``, or ``down(act(up(x)))`` if not ``gated``.

    intermediate_size: inner width, in elements. activation: one of `ACTIVATIONS`. bias: of all its
    matrices. Raises ConfigError for an invalid size or activation.
    """

    words: ClassVar[str] = "dense feed-forward parts"

    intermediate_size: int
    activation: str = "silu"
    gated: bool = True
    bias: bool = False
    kind: Literal["dense"] = "dense"

    def __post_init__(self) -> None:
        check_sizes(self, "intermediate_size")
        check_activation(self.activation)

    def sharded(self, ranks: int) -> DenseSpec:
        """See `LayerPart.sharded`: a share of the inner elements."""
        inner = share("intermediate_size", self.intermediate_size, ranks)
        return replace(self, intermediate_size=inner)

    def tensors(self, hidden: int) -> Iterator[tuple[str, Shape]]:
        """See `FeedForwardSpec.tensors`."""
        return self.at("mlp.", hidden)

    def at(self, place: str, hidden: int) -> Iterator[tuple[str, Shape]]:
        """The same spec with the prefix ``place`` on its tensor names."""
        inner = self.intermediate_size
        for part in ("gate", "up") if self.gated else ("up",):
            yield f"{place}{part}.weight", (inner, hidden)
            if self.bias:
                yield f"{place}{part}.bias", (inner,)
        yield f"{place}down.weight", (hidden, inner)
        if self.bias:
            yield f"{place}down.bias", (hidden,)


def check_activation(name: str) -> None:
    """Raise ConfigError unless it is one of `ACTIVATIONS`."""
    if name not in ACTIVATIONS:
        raise ConfigError(
            f"activation {name!r} is not supported; supported: {', '.join(ACTIVATIONS)}"
        )
