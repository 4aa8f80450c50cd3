"""Parts: the graphs that a network is cut into where sequences have slots, as data.

A target is one part. A draft with K/V is one for a pass, one for its head and, where it reads the
target's states, one that makes features of them: its rollout calls them depth by depth, through
what stands in for the network (see `OpenParts`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import NamedTuple, Protocol

from torch import Tensor

from trtspec.backends.session import GraphSession
from trtspec.config.model import ModelConfig
from trtspec.models.layer_facts import decoder_caches
from trtspec.models.rows import Caches, PackedRows


class MaskKind(NamedTuple):
    """What a layer cuts of the positions that its rows may see: but for the newest ``window`` of
    them (0: none), and those behind a row's own place (``is_causal``)."""

    window: int = 0
    is_causal: bool = False


class PartRole(Enum):
    """What a part does of its network: all of a target (`CausalLM.forward`); one pass (`draft`);
    the writing of context rows (`forward` of a network that makes K/V of states alone); a method
    that needs neither rows nor caches (`RowMethod`)."""

    TARGET = "target"
    PASS = "pass"
    CONTEXT = "context"
    METHOD = "method"


class RowMethod(NamedTuple):
    """A method of a network's module: its name, the width of the rows that it is given, and what
    its graph calls these and what it makes of them."""

    name: str
    width: int
    given: str
    made: str


@dataclass(frozen=True)
class Part:
    """One graph of a network.

    name: in its network, and of its file. decoder: of the K/V, and the width of its rows; None for
    a part without. module: the submodule that it is over; empty: the network. masks: those that
    its rows read, in order. states: of a part that writes context rows, the width of the target's
    states that it makes them of. reads_features: whether a pass reads features beside its tokens,
    and gives those of the next one. method: which one, of a part that is a method.
    """

    role: PartRole
    name: str
    decoder: ModelConfig | None
    module: str = ""
    masks: tuple[MaskKind, ...] = ()
    states: int = 0
    reads_features: bool = False
    method: RowMethod | None = None

    @property
    def num_caches(self) -> int:
        """Buffers of the part's caches, if it has any."""
        return sum(map(len, decoder_caches(self.decoder))) if self.decoder is not None else 0


class RowsGraph(Protocol):
    """A part over rows and caches."""

    def run(
        self,
        input_ids: Tensor | None,
        rows: PackedRows,
        caches: Caches,
        *,
        features: Tensor | None = None,
        logits_rows: Tensor | None = None,
    ) -> list[Tensor]:
        """The graph's outputs for packed rows. Over slots they lie on the host, but for tokens,
        tree masks and features that were made on the device."""
        ...


class OpenParts(Protocol):
    """The parts of a network, opened, for what stands in for it in its rollouts."""

    @property
    def max_rows(self) -> int:
        """Most packed rows of a call."""
        ...

    def rows(self, name: str) -> RowsGraph:
        """A part over rows and caches."""
        ...

    def session(self, name: str) -> GraphSession:
        """A part without caches."""
        ...

    def tensor(self, name: str) -> Tensor | None:
        """A tensor of the network by its name, on the engine's device; None if it has none."""
        ...


def mask_kinds(decoder: ModelConfig, causal_layers: Sequence[bool] = ()) -> tuple[MaskKind, ...]:
    """The masks that rows of a decoder read, in the order of a graph's inputs. ``causal_layers``:
    of each layer, whether its rows see none behind their own place; empty: no layer's."""
    windows = [layer.window for layer in decoder.layers]
    return tuple(sorted(set(map(MaskKind, windows, causal_layers or [False] * len(windows)))))
