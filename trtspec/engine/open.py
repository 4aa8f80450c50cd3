"""Open the sessions of an engine folder, whatever its backend."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from trtspec.config.model import ModelConfig
from trtspec.engine.drafts import DRAFT_MODEL, DRAFT_ROLLOUT, Built
from trtspec.engine.engine_draft import EngineDraft
from trtspec.engine.folder import WEIGHTS_NAME, EngineConfig
from trtspec.engine.graphs import (
    TARGET_MODEL,
    bind,
    built_dtype,
    draft_module,
    make_graph,
    target_module,
    with_borrowed,
)
from trtspec.engine.lowering import (
    FUSE_GRAPH,
    HEAD_GRAPH,
    MARGINALS_GRAPH,
    PASS_GRAPH,
    TARGET_GRAPH,
    layer_windows,
    lowered_files,
)
from trtspec.engine.network import (
    FeatureFeed,
    GraphSession,
    LanguageFeed,
    LinearGraph,
    MarginalsNetwork,
    PassNetwork,
    TargetNetwork,
)
from trtspec.engine.onnx_session import OnnxSession
from trtspec.engine.session import AotiSession, ModuleSession, Session
from trtspec.errors import EngineError


@dataclass(frozen=True)
class OpenDraft:
    """The sessions of a draft, by their names in `DraftKind.graphs`, and how often a call of its
    rollout passes over the draft's weights."""

    sessions: dict[str, Session]
    rollout_passes: int


def open_target(folder: Path, engine: EngineConfig, weights: Mapping[str, Tensor]) -> Session:
    """The target of an engine folder; ``weights`` are those in it.

    Raises:
        EngineError: artifacts are missing or do not fit.
    """
    device = engine.build.device
    if engine.build.backend == "aoti":
        return AotiSession(folder / TARGET_MODEL, weights, device)
    with torch.device("meta"):
        module: nn.Module = target_module(engine)
    signature = make_graph(engine, TARGET_MODEL, module).signature
    if engine.build.has_linear_cache:
        module = TargetNetwork(_linear_graph(folder, engine, TARGET_GRAPH, engine.target, weights))
    else:
        bind(module, weights, str(folder / "target" / WEIGHTS_NAME))
    return ModuleSession(module, signature, device)


def open_draft(
    folder: Path,
    engine: EngineConfig,
    draft: EngineDraft,
    own: Mapping[str, Tensor],
    target: Mapping[str, Tensor],
) -> OpenDraft:
    """The sessions of a draft. What it borrows of the target is the target's own memory.

    Raises:
        EngineError: artifacts are missing or do not fit.
    """
    device = engine.build.device
    with torch.device("meta"):
        module = draft_module(engine, draft)
    weights = with_borrowed(module, own, target)
    modules = dict.fromkeys(draft.kind.graphs, module)
    if engine.build.has_linear_cache:
        modules = _lowered_modules(folder, engine, draft, weights)
    elif engine.build.backend == "eager":
        bind(module, weights, str(folder / draft.folder / WEIGHTS_NAME))
    built = Built(built_dtype(engine), engine.layout, draft.speculation.tree)
    graphs = {name: draft.kind.graphs[name](draft.network, m, built) for name, m in modules.items()}
    sessions: dict[str, Session] = {
        name: AotiSession(folder / draft.graphs[name], weights, device)
        if engine.build.backend == "aoti"
        else ModuleSession(graph.module, graph.signature, device)
        for name, graph in graphs.items()
    }
    return OpenDraft(sessions, graphs[DRAFT_ROLLOUT].passes)


def _lowered_modules(
    folder: Path, engine: EngineConfig, draft: EngineDraft, weights: Mapping[str, Tensor]
) -> dict[str, nn.Module]:
    """What stands in for a draft's network in its own rollout, and in feeding it: modules that run
    its lowered graphs."""
    files = lowered_files(draft)

    def opened(name: str) -> GraphSession:
        return _graph_session(folder, engine, files[name], weights)

    if MARGINALS_GRAPH in files:
        return {DRAFT_ROLLOUT: MarginalsNetwork(opened(MARGINALS_GRAPH))}
    decoder = draft.network.decoder
    assert decoder is not None
    fuse = opened(FUSE_GRAPH) if FUSE_GRAPH in files else None
    network = PassNetwork(
        _linear_graph(folder, engine, files[PASS_GRAPH], decoder, weights),
        opened(HEAD_GRAPH),
        fuse,
        weights.get("token_map"),
        weights.get("mask_hidden"),
    )
    feed = LanguageFeed(network) if fuse is None else FeatureFeed(network)
    return {DRAFT_ROLLOUT: network, DRAFT_MODEL: feed}


def _graph_session(
    folder: Path,
    engine: EngineConfig,
    name: str,
    weights: Mapping[str, Tensor],
    num_caches: int = 0,
) -> GraphSession:
    if engine.build.backend == "tensorrt":
        raise EngineError(
            f"{folder} holds TensorRT engines, which this version builds and does not run yet; "
            "build with --backend aoti --device cuda for this GPU"
        )
    return OnnxSession(folder / name, weights, num_caches)


def _linear_graph(
    folder: Path,
    engine: EngineConfig,
    name: str,
    decoder: ModelConfig,
    weights: Mapping[str, Tensor],
) -> LinearGraph:
    session = _graph_session(folder, engine, name, weights, 2 * decoder.num_layers)
    return LinearGraph(
        session,
        engine.layout.tokens_per_block,
        engine.speculative_rows,
        layer_windows(decoder),
    )
