"""SlotBackend: the base of backends that run lowered graphs over slot caches."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trtspec.backends.base import Backend
from trtspec.backends.parts import Part
from trtspec.backends.session import GraphSession, ModuleSession, Session
from trtspec.backends.shape import EngineShape, Graph, NetworkShape
from trtspec.backends.slots.lowering import lower, part_file
from trtspec.backends.slots.networks import SlotGraph, TargetNetwork
from trtspec.backends.slots.padding import View


class SlotBackend(Backend):
    """Its graphs are the networks' parts; the rollouts that call these run as modules.

    view: how many positions of the caches a call's masks cover and attention reads.
    """

    runs_ops = False
    is_portable = True
    compiles_apart = False  # a process for each graph would take longer to start than to export
    view = View.WHOLE

    def has_slots(self, options: Any) -> bool:
        return True

    def graphs(self, engine: EngineShape) -> list[Graph]:
        return [
            self.lower_target(engine, part)
            if network.is_target
            else self.lower(engine, network, part)
            for network in engine.networks
            for part in network.parts
        ]

    def lower_target(self, engine: EngineShape, part: Part) -> Graph:
        """The graph of the target."""
        return self.lower(engine, engine.target, part)

    def lower(self, engine: EngineShape, network: NetworkShape, part: Part) -> Graph:
        """The graph of a part."""
        return lower(engine, network, part, self.view is not View.WHOLE)

    def open(
        self,
        folder: Path,
        engine: EngineShape,
        network: NetworkShape,
        weights: Mapping[str, Tensor],
        graph_batches: Sequence[int] = (),
    ) -> dict[str, Session]:
        opens = self.parts_class(engine)
        parts = opens(self, folder, engine, network, weights, graph_batches)
        if network.is_target:
            (graph,) = network.graphs
            return {graph.name: self.open_target(parts)}
        assert network.stand_in is not None, "a draft has what stands in for it"
        module = network.stand_in(parts)
        return {
            graph.name: ModuleSession(graph.over(module), graph.signature, engine.device)
            for graph in network.graphs
        }

    def parts_class(self, engine: EngineShape) -> type[SlotParts]:
        """The class that opens the parts of its networks."""
        return SlotParts

    def open_target(self, parts: SlotParts) -> Session:
        """The session of the target."""
        (part,), (graph,) = parts.network.parts, parts.network.graphs
        module = TargetNetwork(parts.rows(part.name))
        return ModuleSession(module, graph.signature, parts.engine.device)

    def open_graph(
        self,
        file: Path,
        engine: EngineShape,
        weights: Mapping[str, Tensor],
        num_caches: int,
        graph_batches: Sequence[int],
    ) -> GraphSession:
        """Open one graph; ``num_caches`` of its last inputs, and as many last outputs, are
        caches."""
        raise NotImplementedError


class SlotParts:
    """The parts of a network in an engine folder; see `OpenParts`."""

    def __init__(
        self,
        backend: SlotBackend,
        folder: Path,
        engine: EngineShape,
        network: NetworkShape,
        weights: Mapping[str, Tensor],
        graph_batches: Sequence[int],
    ) -> None:
        self.engine = engine
        self.network = network
        self.graph_batches = tuple(graph_batches)
        self._backend = backend
        self._folder = folder
        self._weights = weights
        self._parts = {part.name: part for part in network.parts}

    @property
    def view(self) -> View:
        """The view of the backend's graphs."""
        return self._backend.view

    @property
    def max_rows(self) -> int:
        return self.engine.max_num_tokens

    def rows(self, name: str) -> SlotGraph:
        """See `OpenParts.rows`."""
        part = self.part(name)
        return SlotGraph(
            self.over_caches(part),
            self.engine.layout.tokens_per_block,
            self.engine.rows,
            part.masks,
            self.engine.device,
            self.graph_batches,
            view=self.view,
        )

    def part(self, name: str) -> Part:
        """A part by its name."""
        return self._parts[name]

    def over_caches(self, part: Part) -> GraphSession:
        """The graph of a part with caches, over padded rows."""
        return self._open(part, part.num_caches, self.graph_batches)

    def session(self, name: str) -> GraphSession:
        """See `OpenParts.session`."""
        return self._open(self._parts[name], 0, ())

    def tensor(self, name: str) -> Tensor | None:
        """See `OpenParts.tensor`."""
        found = self._weights.get(name)
        return None if found is None else found.to(torch.device(self.engine.device))

    def _open(self, part: Part, num_caches: int, graph_batches: Sequence[int]) -> GraphSession:
        file = self._folder / part_file(self.network, part)
        return self._backend.open_graph(file, self.engine, self._weights, num_caches, graph_batches)
