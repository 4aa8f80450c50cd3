"""Open the sessions of an engine folder, whatever its backend."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from trtspec.backends.aoti.session import AotiSession
from trtspec.backends.onnx.session import OnnxSession
from trtspec.backends.session import GraphSession, ModuleSession, Session
from trtspec.backends.slots.networks import (
    BlockNetwork,
    MarginalsNetwork,
    PassNetwork,
    SlotGraph,
    TargetNetwork,
)
from trtspec.backends.slots.rows import MaskKind
from trtspec.backends.slots.verify import VerifyGraph, VerifyNetwork, VerifySession
from trtspec.backends.tensorrt.kernel_session import KernelSession
from trtspec.backends.tensorrt.plugins import load_plugins
from trtspec.backends.tensorrt.session import TensorRTSession
from trtspec.config.draft import DraftConfig
from trtspec.config.mtp_modules import MtpModulesConfig
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
    CONTEXT_GRAPH,
    FUSE_GRAPH,
    HEAD_GRAPH,
    MARGINALS_GRAPH,
    PASS_GRAPH,
    TARGET_GRAPH,
    depth_graph,
    lowered_files,
    mask_kinds,
    views_are_cut,
)
from trtspec.models.mtp_modules import ModuleStack
from trtspec.models.signature import verify_signature
from trtspec.ops.cuda_ops import register_cuda_ops


@dataclass(frozen=True)
class OpenDraft:
    """The sessions of a draft, by their names in `DraftKind.graphs`, and how often a call of its
    rollout passes over the draft's weights."""

    sessions: dict[str, Session]
    rollout_passes: int


def judges(engine: EngineConfig) -> bool:
    """Whether the target's session samples and accepts, see `VerifyNetwork`: by the plugins of its
    engine, or by kernels beside it."""
    return engine.build.accepts_in_engine or (
        engine.build.backend == "tensorrt" and register_cuda_ops()
    )


def open_target(
    folder: Path,
    engine: EngineConfig,
    weights: Mapping[str, Tensor],
    graph_batches: Sequence[int] = (),
) -> Session:
    """The target of an engine folder; ``weights`` are those in it. ``graph_batches``: numbers of
    requests, rising, that calls of lowered graphs are padded to and on CUDA captured at; paged ones
    are captured from outside.

    Raises:
        EngineError: artifacts are missing or do not fit.
    """
    device = engine.build.device
    if engine.build.backend == "aoti":
        return AotiSession(folder / TARGET_MODEL, weights, device)
    with torch.device("meta"):
        module: nn.Module = target_module(engine)
    signature = make_graph(engine, TARGET_MODEL, module).signature
    if judges(engine):
        module = _verify_network(folder, engine, weights, graph_batches)
        signature = verify_signature(engine.target, built_dtype(engine), engine.layout)
    elif engine.build.has_slots:
        kinds = mask_kinds(engine.target)
        layers = engine.target.num_layers
        module = TargetNetwork(
            _slot_graph(folder, engine, TARGET_GRAPH, weights, layers, kinds, graph_batches)
        )
    else:
        bind(module, weights, str(folder / "target" / WEIGHTS_NAME))
    return ModuleSession(module, signature, device)


def open_draft(
    folder: Path,
    engine: EngineConfig,
    draft: EngineDraft,
    own: Mapping[str, Tensor],
    target: Mapping[str, Tensor],
    graph_batches: Sequence[int] = (),
) -> OpenDraft:
    """The sessions of a draft. What it borrows of the target is the target's own memory.
    ``graph_batches``: see `open_target`.

    Raises:
        EngineError: artifacts are missing or do not fit.
    """
    device = engine.build.device
    with torch.device("meta"):
        module = draft_module(engine, draft)
    weights = with_borrowed(module, own, target)
    modules = dict.fromkeys(draft.graphs, module)
    if engine.build.has_slots:
        modules = _lowered_modules(folder, engine, draft, weights, graph_batches)
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
    folder: Path,
    engine: EngineConfig,
    draft: EngineDraft,
    weights: Mapping[str, Tensor],
    graph_batches: Sequence[int],
) -> dict[str, nn.Module]:
    """What stands in for a draft's network in its own rollouts, and in feeding it: modules that
    run its lowered graphs."""
    files = lowered_files(draft)

    network = draft.network

    def session(name: str) -> GraphSession:
        return _graph_session(folder, engine, files[name], weights)

    def graph(name: str, of: DraftConfig, kinds: Sequence[MaskKind] | None = None) -> SlotGraph:
        assert of.decoder is not None
        layers, wanted = of.decoder.num_layers, mask_kinds(of) if kinds is None else kinds
        return _slot_graph(folder, engine, files[name], weights, layers, wanted, graph_batches)

    if MARGINALS_GRAPH in files:
        return {DRAFT_ROLLOUT: MarginalsNetwork(session(MARGINALS_GRAPH))}
    if isinstance(network, MtpModulesConfig):
        passes = (
            PassNetwork(
                graph(depth_graph(PASS_GRAPH, depth), network.module),
                session(depth_graph(HEAD_GRAPH, depth)),
                _on_device(weights.get(f"depths.{depth}.token_map"), engine),
            )
            for depth in range(network.num_modules)
        )
        stack = ModuleStack(passes, network.module.decoder.num_layers)
        return {DRAFT_ROLLOUT: stack, DRAFT_MODEL: stack}
    rows, head = graph(PASS_GRAPH, network), session(HEAD_GRAPH)
    token_map, mask_hidden = (
        _on_device(weights.get(name), engine) for name in ("token_map", "mask_hidden")
    )
    if CONTEXT_GRAPH in files:
        blocks = BlockNetwork(graph(CONTEXT_GRAPH, network, []), rows, head, token_map)
        return {DRAFT_ROLLOUT: blocks, DRAFT_MODEL: blocks}
    fuse = session(FUSE_GRAPH) if FUSE_GRAPH in files else None
    assert engine.build.max_num_tokens is not None, "a build has resolved it"
    passed = PassNetwork(rows, head, token_map, fuse, mask_hidden, engine.build.max_num_tokens)
    return dict.fromkeys(draft.graphs, passed)


def _verify_network(
    folder: Path,
    engine: EngineConfig,
    weights: Mapping[str, Tensor],
    graph_batches: Sequence[int],
) -> VerifyNetwork:
    if engine.build.accepts_in_engine:
        load_plugins()
    length, widest = engine.layout.tokens_per_block, engine.speculative_rows
    num_caches = 2 * engine.target.num_layers
    graph = _graph_session(folder, engine, TARGET_GRAPH, weights, num_caches, graph_batches)
    session: VerifySession = VerifyGraph(graph)
    if not engine.build.accepts_in_engine:
        windows = [kind.window for kind in mask_kinds(engine.target)]
        session = KernelSession(graph, windows, length, widest)
    return VerifyNetwork(session, length, widest, engine.build.device, graph_batches)


def _on_device(tensor: Tensor | None, engine: EngineConfig) -> Tensor | None:
    return None if tensor is None else tensor.to(engine.build.device)


def _graph_session(
    folder: Path,
    engine: EngineConfig,
    name: str,
    weights: Mapping[str, Tensor],
    num_caches: int = 0,
    graph_batches: Sequence[int] = (),
) -> GraphSession:
    if engine.build.backend == "tensorrt":
        return TensorRTSession(
            folder / name,
            num_caches,
            device=engine.build.device,
            graph_batches=graph_batches,
            refits=engine.build.tensorrt.refits_at_load,
        )
    return OnnxSession(folder / name, weights, num_caches)


def _slot_graph(
    folder: Path,
    engine: EngineConfig,
    name: str,
    weights: Mapping[str, Tensor],
    num_layers: int,
    kinds: Sequence[MaskKind],
    graph_batches: Sequence[int],
) -> SlotGraph:
    num_caches = 2 * num_layers
    return SlotGraph(
        _graph_session(folder, engine, name, weights, num_caches, graph_batches),
        engine.layout.tokens_per_block,
        engine.speculative_rows,
        kinds,
        engine.build.device,
        graph_batches,
        cut_views=views_are_cut(engine),
    )
