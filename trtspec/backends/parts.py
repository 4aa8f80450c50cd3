"""Parts: the graphs that a network is split into where sequences have slots, as data.

A target is one part. A draft with K/V has a part for a pass, one for its head and, if it reads the
target's hidden states, one that makes features from them: its rollout calls them depth by depth,
through a stand-in for the network (see `OpenParts`).
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
    """Which of the visible positions a layer masks out: all but the newest ``window`` (0: none),
    and those after a row's own place (``is_causal``)."""

    window: int = 0
    is_causal: bool = False


class PartRole(Enum):
    """What a part computes: a whole target (`CausalLM.forward`); one pass (`draft`); writing
    context rows (`forward` of a network whose K/V come from hidden states only); a method that
    needs neither rows nor caches (`RowMethod`)."""

    TARGET = "target"
    PASS = "pass"
    CONTEXT = "context"
    METHOD = "method"


class RowMethod(NamedTuple):
    """A method of a network's module: its name, the width of its input rows, and the names of its
    graph's input and output."""

    name: str
    width: int
    given: str
    made: str


@dataclass(frozen=True)
class Part:
    """One graph of a network.

    name: within its network, and of its file. decoder: of the K/V, and the width of its rows; None
    for a part without. module: the submodule that it covers; empty: the network. masks: those that
    its rows read, in order. states: for a part that writes context rows, the width of the target's
    hidden states that it reads. reads_features: whether a pass reads features in addition to its
    tokens, and returns those of the next one. method: for a part that is a method.
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
        """The graph's outputs for packed rows. Over slots these are on the host, except for tokens,
        tree masks and features that were made on the device."""
        ...


class OpenParts(Protocol):
    """The opened parts of a network, for its stand-in in rollouts."""

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
        """A tensor of the network by its name, on the engine's device; None if there is none."""
        ...


def mask_kinds(decoder: ModelConfig, causal_layers: Sequence[bool] = ()) -> tuple[MaskKind, ...]:
    """The masks that rows of a decoder read, in the order of a graph's inputs. ``causal_layers``:
    for each layer, whether its rows see nothing after their own place; empty: for no layer."""
    windows = [layer.window for layer in decoder.layers]
    return tuple(sorted(set(map(MaskKind, windows, causal_layers or [False] * len(windows)))))
