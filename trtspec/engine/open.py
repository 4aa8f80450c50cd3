"""Open the sessions of an engine folder."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trtspec.backends.session import Session
from trtspec.engine.engine_draft import EngineDraft
from trtspec.engine.folder import EngineConfig
from trtspec.engine.graphs import MODEL, draft_shape, engine_shape, with_borrowed
from trtspec.speculative.draft_kind import DRAFT_ROLLOUT


@dataclass(frozen=True)
class OpenDraft:
    """The sessions of a draft, by their names in `DraftKind.graphs`, and how often a call of its
    rollout passes over the draft's weights."""

    sessions: dict[str, Session]
    rollout_passes: int


def judges(engine: EngineConfig) -> bool:
    """Whether the target's session samples and accepts, see `Backend.judges`."""
    return engine.backend.judges(engine_shape(engine))


def open_target(
    folder: Path,
    engine: EngineConfig,
    weights: Mapping[str, Tensor],
    graph_batches: Sequence[int] = (),
) -> Session:
    """The target of an engine folder; ``weights`` are those in it. ``graph_batches``: see
    `Backend.open`.

    Raises:
        EngineError: artifacts are missing or do not fit.
    """
    shape = engine_shape(engine)
    sessions = engine.backend.open(folder, shape, shape.target, weights, graph_batches)
    return sessions[MODEL]


def open_draft(
    folder: Path,
    engine: EngineConfig,
    draft: EngineDraft,
    own: Mapping[str, Tensor],
    target: Mapping[str, Tensor],
    graph_batches: Sequence[int] = (),
) -> OpenDraft:
    """The sessions of a draft. What it borrows of the target is the target's own memory.
    ``graph_batches``: see `Backend.open`.

    Raises:
        EngineError: artifacts are missing or do not fit.
    """
    network = draft_shape(engine, draft)
    with torch.device("meta"):
        weights = with_borrowed(network.make(), own, target)
    shape = engine_shape(engine)
    sessions = engine.backend.open(folder, shape, network, weights, graph_batches)
    passes = {graph.name: graph.passes for graph in network.graphs}
    return OpenDraft(sessions, passes[DRAFT_ROLLOUT])
