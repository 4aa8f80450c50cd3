"""Block: implements one kind of mixer or feed-forward part, and says where it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import Enum
from typing import Any, TypeVar

from torch import nn

from trtspec.config.layer_part import LayerPart

S = TypeVar("S", bound=LayerPart)


class Kernels(Enum):
    """What computes a block's ops: the CPU's kernels, CUDA's, or plugins over packed rows in a
    standard graph. (Standard operators support everything that is built.)"""

    CPU = "cpu"
    CUDA = "cuda"
    PLUGINS = "plugins"


def nothing(*_: object) -> Iterator[str]:
    """No problem."""
    return iter(())


@dataclass(frozen=True)
class Block:
    """spec: the class of the specs that it runs. make: the module of a spec, called as ``make(spec,
    hidden, dtype, formats=...)``. missing: in words, what the module does not run of a spec. lacks:
    what some kernels do not compute of it. takes_adapters: whether its products have adapters
    beside them, and the module an argument ``adapters`` (see `Linear.forward`)."""

    spec: type[LayerPart]
    make: Callable[..., nn.Module]
    missing: Callable[[Any], Iterator[str]] = nothing
    lacks: Callable[[Any, Kernels], Iterator[str]] = nothing
    takes_adapters: bool = False
