"""Opens the sessions of an engine folder."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor

from trtspec.backends.session import Session
from trtspec.backends.shape import TARGET, WEIGHTS_NAME
from trtspec.engine.engine_draft import EngineDraft
from trtspec.engine.folder import EngineConfig, read_weights
from trtspec.engine.graphs import (
    MODEL,
    REPLAY,
    draft_shape,
    engine_shape,
    target_module,
    with_borrowed,
)
from trtspec.engine.weight_record import check_weights
from trtspec.models.adapters import AdaptedLayer, adapted_layers
from trtspec.models.lora import Lora
from trtspec.models.ranks import GROUP
from trtspec.ops.collectives import RankGroup
from trtspec.speculative.draft_kind import DRAFT_ROLLOUT

WeightReader = Callable[[str, str], dict[str, Tensor]]
"""Returns the weights of a network, named by its folder within the engine's, on a device."""


@dataclass(frozen=True)
class OpenDraft:
    """A draft's plan, its sessions by graph name, and how often a call of its rollout passes over
    the draft's weights."""

    plan: EngineDraft
    sessions: dict[str, Session]
    rollout_passes: int


@dataclass(frozen=True)
class OpenSessions:
    """The sessions of an engine folder's target and drafts. replay: for a target with recurrent
    states. adapted: the target's layers with room for adapters, all of it empty."""

    target: Session
    replay: Session | None
    drafts: tuple[OpenDraft, ...]
    adapted: tuple[AdaptedLayer, ...] = ()


def verifies(engine: EngineConfig) -> bool:
    """Whether the target's session samples and accepts; see `Backend.verifies`."""
    return engine.backend.verifies(engine_shape(engine))


def open_sessions(
    folder: Path,
    engine: EngineConfig,
    drafts: Sequence[EngineDraft],
    graph_batches: Sequence[int] = (),
    read: WeightReader | None = None,
    group: RankGroup | None = None,
) -> OpenSessions:
    """Open the target of an engine folder and the given ``drafts``, in order. What drafts borrow
    from the target shares the target's memory. ``graph_batches``: see `Backend.open`. ``read``:
    replaces the folder's weight files. ``group``: the ranks that target and drafts are split over,
    to which this process belongs.

    Raises:
        EngineError: weights or artifacts are missing, damaged or do not fit.
    """
    names = (TARGET, *(draft.folder for draft in drafts))
    if read is None:
        split = {TARGET, *(draft.folder for draft in drafts if draft.network.ranks > 1)}
        rank = 0 if group is None else group.rank
        files = {name: rank_weights(folder / name, rank * (name in split)) for name in names}
        for name, file in files.items():
            check_weights(file, engine.weights.get(name, {}))
        read = partial(_read_file, files)
    # Where engines hold the weights themselves, the few tensors that are needed beside them are
    # copied.
    home = "cpu" if engine.backend.keeps_weights else engine.build.device
    weights, *own = (read(name, home) for name in names)
    if group is not None:
        for tensors in (weights, *own):
            tensors.update((name, group.tensor) for name in tensors if name.endswith(GROUP))
    adapted = _adapted(engine, weights)
    shape = engine_shape(engine)
    graphs = engine.backend.open(folder, shape, shape.target, weights, graph_batches)
    opened = (
        _open_draft(folder, engine, draft, tensors, weights, graph_batches)
        for draft, tensors in zip(drafts, own, strict=True)
    )
    return OpenSessions(graphs[MODEL], graphs.get(REPLAY), tuple(opened), adapted)


def rank_weights(network: Path, rank: int) -> Path:
    """The file with a rank's weights of the network in a folder."""
    return network / (f"rank{rank}-{WEIGHTS_NAME}" if rank else WEIGHTS_NAME)


def _adapted(engine: EngineConfig, weights: dict[str, Tensor]) -> tuple[AdaptedLayer, ...]:
    """The layers of a target with places for adapters, whose memory is added to its ``weights``."""
    sizes = engine.build.adapters
    if sizes is None:
        return ()
    with torch.device("meta"):
        layers = target_module(engine, sizes).layers
    for name, module in layers.named_modules(prefix="layers"):
        if isinstance(module, Lora):
            module.to_empty(device=engine.build.device)
            weights |= {f"{name}.{key}": each.zero_() for key, each in module.named_buffers()}
    return tuple(adapted_layers(layers))


def _read_file(files: Mapping[str, Path], name: str, device: str) -> dict[str, Tensor]:
    return read_weights(files[name], device)


def _open_draft(
    folder: Path,
    engine: EngineConfig,
    draft: EngineDraft,
    own: Mapping[str, Tensor],
    target: Mapping[str, Tensor],
    graph_batches: Sequence[int],
) -> OpenDraft:
    network = draft_shape(engine, draft)
    with torch.device("meta"):
        weights = with_borrowed(network.make(), own, target)
    shape = engine_shape(engine)
    sessions = engine.backend.open(folder, shape, network, weights, graph_batches)
    passes = {graph.name: graph.passes for graph in network.graphs}
    return OpenDraft(draft, sessions, passes.get(DRAFT_ROLLOUT, 1))
