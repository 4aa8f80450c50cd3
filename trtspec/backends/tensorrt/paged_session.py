"""Sessions over graphs of packed rows, which take an engine call's inputs in place."""

from __future__ import annotations

from itertools import chain

from torch import Tensor

from trtspec.backends.inputs import EngineInputs
from trtspec.backends.parts import Part
from trtspec.backends.session import GraphSession
from trtspec.backends.slots.backend import SlotParts
from trtspec.models.rows import Caches, PackedRows


class PagedTarget:
    """A target that samples and accepts, as a `Session`."""

    def __init__(self, graph: GraphSession) -> None:
        self._graph = graph

    def run(self, inputs: EngineInputs) -> list[Tensor]:
        """See `Session.run`."""
        return self._graph.run(inputs.flat())


class PagedGraph:
    """A part over rows and caches, as a `RowsGraph`. Nothing is copied, and the host does not
    wait."""

    def __init__(self, graph: GraphSession) -> None:
        self._graph = graph

    def run(
        self,
        input_ids: Tensor | None,
        rows: PackedRows,
        caches: Caches,
        *,
        features: Tensor | None = None,
        logits_rows: Tensor | None = None,
    ) -> list[Tensor]:
        """See `RowsGraph.run`."""
        given = (input_ids, *rows, features, logits_rows)
        own = [x.contiguous() for x in given if x is not None]
        return self._graph.run([*own, *chain(*caches)])


class PagedParts(SlotParts):
    """The parts of a network whose rows are packed."""

    def target(self) -> PagedTarget:
        """The session of a target."""
        (part,) = self.network.parts
        return PagedTarget(self.over_caches(part))

    def over_caches(self, part: Part) -> GraphSession:
        """The graph of a part with caches, over packed rows. Its calls are not captured."""
        return self._open(part, part.num_caches, ())

    def rows(self, name: str) -> PagedGraph:  # type: ignore[override]
        """See `OpenParts.rows`."""
        return PagedGraph(self.over_caches(self.part(name)))
