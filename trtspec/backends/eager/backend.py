"""EagerBackend: runs the modules of the graphs as they are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from trtspec.backends.base import Backend
from trtspec.backends.session import ModuleSession, Session
from trtspec.backends.shape import LEVELS, EngineShape, NetworkShape
from trtspec.backends.verifying import verifying
from trtspec.errors import EngineError


class EagerBackend(Backend):
    name = "eager"
    title = "eager mode"
    makes_artifacts = False
    matched: frozenset[str] | None = frozenset()

    def verifies(self, engine: EngineShape) -> bool:
        """Like compiled engines: on CUDA."""
        return engine.device == "cuda"

    def open(
        self,
        folder: Path,
        engine: EngineShape,
        network: NetworkShape,
        weights: Mapping[str, Tensor],
        graph_batches: Sequence[int] = (),
    ) -> dict[str, Session]:
        with torch.device("meta"):
            module = network.make()
        bind(module, weights, str(folder / network.weights))
        opened: dict[str, Session] = {
            graph.name: ModuleSession(graph.over(module), graph.signature, engine.device)
            for graph in network.graphs
        }
        verifies = network.is_target and self.verifies(engine)
        return verifying(opened, engine.rows) if verifies else opened


def bind(module: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Bind ``weights`` to a module on the meta device; they must match its tensors exactly.

    Raises:
        EngineError: they do not fit.
    """
    own = {name: tensor for name, tensor in weights.items() if not name.startswith(LEVELS)}
    try:
        module.load_state_dict(own, assign=True)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise EngineError(
            f"{where} does not fit its engine ({reason}); rebuild the engine with trtspec-build"
        ) from error
