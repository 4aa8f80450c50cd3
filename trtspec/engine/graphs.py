"""The graphs of an engine, described to its backend as an `EngineShape`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn

from trtspec.backends.parts import Part, PartRole, mask_kinds
from trtspec.backends.shape import (
    BORROWED,
    LEVELS,
    TARGET,
    EngineShape,
    Graph,
    NetworkShape,
)
from trtspec.config.adapters import AdapterSizes
from trtspec.config.quantised import Weights
from trtspec.engine.engine_draft import EngineDraft
from trtspec.engine.folder import EngineConfig
from trtspec.models.causal_lm import CausalLM
from trtspec.models.layer_facts import keeps_states
from trtspec.models.replay import Replay
from trtspec.models.signature import model_signature, replay_signature
from trtspec.models.vocabulary import TargetParts
from trtspec.speculative.draft_kind import Built

MODEL = "model.pt2"
"""The target's graph over paged caches."""
REPLAY = "replay.pt2"
"""The graph of a target with recurrent states that replays accepted drafts."""


def engine_shape(engine: EngineConfig) -> EngineShape:
    """What a backend needs to know about an engine."""
    build, drafts = engine.build, engine.drafts
    assert build.max_seq_len is not None and build.max_num_tokens is not None, "it is resolved"
    return EngineShape(
        dtype_name=build.dtype,
        device=build.device,
        layout=engine.layout,
        rows=engine.speculative_rows,
        verify_rows=max((draft.speculation.num_draft_tokens for draft in drafts), default=1),
        lookahead=max((draft.lookahead for draft in drafts), default=0),
        max_batch_size=build.max_batch_size,
        max_seq_len=build.max_seq_len,
        max_num_tokens=build.max_num_tokens,
        capture_layers=engine.capture_layers,
        target=_target_shape(engine),
        drafts=tuple(draft_shape(engine, draft) for draft in drafts),
        options=build.backend_options,
    )


def _target_shape(engine: EngineConfig) -> NetworkShape:
    adapters = engine.build.adapters
    make = partial(target_module, engine, adapters)
    dtype, layout, target = built_dtype(engine), engine.layout, engine.target
    has_adapters = adapters is not None
    graph = Graph(
        MODEL,
        TARGET,
        f"{TARGET}/{MODEL}",
        make,
        lambda: model_signature(target, dtype, layout, has_adapters),
        facts=adapters or (),
    )
    graphs = [graph]
    if keeps_states(target):
        file, sign = f"{TARGET}/{REPLAY}", lambda: replay_signature(target, dtype, layout)
        graphs.append(Graph(REPLAY, TARGET, file, make, sign, over=Replay))
    part = Part(PartRole.TARGET, "", target, masks=mask_kinds(target))
    return NetworkShape(TARGET, target, make, tuple(graphs), (part,))


def draft_shape(engine: EngineConfig, draft: EngineDraft) -> NetworkShape:
    """What it needs to know about one of its drafts."""
    make, kind, network = partial(draft_module, engine, draft), draft.kind, draft.network
    built = Built(built_dtype(engine), engine.layout, draft.speculation.tree)
    graphs = []
    for name, graph in kind.graphs_for(engine.by_pass, draft.speculation.num_steps).items():
        made, file = graph(network, built), f"{draft.folder}/{name}"
        graphs.append(Graph(name, draft.folder, file, make, made.sign, made.over, made.passes))
    states = len(network.capture_layers) * engine.target.hidden_size
    parts, stand_in = kind.parts(network, states), partial(kind.stand_in, network)
    return NetworkShape(draft.folder, network.decoder, make, tuple(graphs), parts, stand_in)


def engine_graphs(engine: EngineConfig) -> dict[str, Graph]:
    """The graphs of an engine folder, by artifact path relative to it."""
    return {graph.file: graph for graph in engine.backend.graphs(engine_shape(engine))}


def graph_names(engine: EngineConfig) -> list[str]:
    """The artifacts of an engine folder, relative to it."""
    return list(engine_graphs(engine))


def draft_of(engine: EngineConfig, graph: Graph) -> EngineDraft | None:
    """The draft that a graph belongs to; None for the target's graphs."""
    return next((draft for draft in engine.drafts if draft.folder == graph.folder), None)


def target_module(engine: EngineConfig, adapters: AdapterSizes | None = None) -> CausalLM:
    """The target with uninitialised weights, on torch's default device. ``adapters``: the room for
    such that it has among these; None: as its checkpoint fills it, none."""
    return CausalLM(
        engine.target,
        built_dtype(engine),
        engine.capture_layers,
        formats=engine.formats_of(),
        adapters=adapters,
    )


def draft_module(engine: EngineConfig, draft: EngineDraft) -> nn.Module:
    """A draft with uninitialised weights, on torch's default device."""
    make, target = draft.kind.module, engine.target
    if draft.network.ranks == 1:  # it borrows all rows of the vocabulary
        target = replace(target, ranks=1)
    return make(draft.network, target, built_dtype(engine), engine.formats_of(draft))


def draft_constants(draft: EngineDraft) -> dict[str, Tensor]:
    """Index tensors that a static tree's rollout needs in addition to the weights."""
    levels = draft.kind.levels(draft.speculation.tree)
    return {f"{LEVELS}{name}": tensor for name, tensor in levels.state_dict().items()}


def own_state(module: nn.Module) -> dict[str, Tensor]:
    """The ``state_dict`` of a draft without borrowed tensors."""
    return {k: v for k, v in module.state_dict().items() if BORROWED not in k}


def whole_state(module: nn.Module, target: Weights) -> dict[str, Tensor]:
    """The same with copies of what it borrows, of the target checkpoint's tensors: where the target
    alone is split over ranks, none of them has it."""
    for part in module.modules():
        if isinstance(part, TargetParts):
            part.load(target)
    return module.state_dict()


def with_borrowed(
    module: nn.Module, weights: Mapping[str, Tensor], target: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """A draft's own weights and those that it borrows from its target."""
    names = [name for name in module.state_dict() if BORROWED in name and name not in weights]
    return {**weights, **{name: target[name.rpartition(BORROWED)[2]] for name in names}}


def built_dtype(engine: EngineConfig) -> torch.dtype:
    """The dtype in which an engine's models compute."""
    dtype: torch.dtype = getattr(torch, engine.build.dtype)
    return dtype
