"""The graphs of an engine: which module is compiled under which name, and for which inputs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from trtspec.engine.drafts import Built, Graph
from trtspec.engine.engine_draft import EngineDraft
from trtspec.engine.folder import EngineConfig
from trtspec.engine.lowering import lowered_draft_of, lowered_graph_names
from trtspec.engine.memory import weight_format
from trtspec.errors import EngineError
from trtspec.formats.network_formats import NetworkFormats
from trtspec.models.causal_lm import CausalLM
from trtspec.models.signature import model_signature

TARGET_MODEL = "target/model.pt2"

BORROWED = "target."
LEVELS = "levels."
"""Parts of the names of constants that are no part of a draft's module: tensors of the target that
it, or a module inside it, borrows, and, at the beginning, the index tensors of a static tree."""


def graph_names(engine: EngineConfig) -> list[str]:
    """The artifacts of an engine folder, relative to it."""
    if engine.build.has_slots:
        return lowered_graph_names(engine)
    return [TARGET_MODEL, *(name for draft in engine.drafts for name in draft.graphs.values())]


def draft_of(engine: EngineConfig, name: str) -> tuple[EngineDraft, str] | None:
    """The draft that an artifact of the engine folder belongs to, and the name that the artifact
    has in its kind; None for the target's."""
    if engine.build.has_slots:
        return lowered_draft_of(engine, name)
    folder, _, own_name = name.rpartition("/")
    return next(((draft, own_name) for draft in engine.drafts if draft.folder == folder), None)


def target_module(engine: EngineConfig) -> CausalLM:
    """The target with uninitialised weights, on torch's default device."""
    return CausalLM(
        engine.target, built_dtype(engine), engine.capture_layers, formats=network_formats(engine)
    )


def draft_module(engine: EngineConfig, draft: EngineDraft) -> nn.Module:
    """A draft with uninitialised weights, on torch's default device."""
    make = draft.kind.module
    return make(draft.network, engine.target, built_dtype(engine), network_formats(engine))


def module_of(engine: EngineConfig, name: str) -> nn.Module:
    """The module with uninitialised weights that the graph of that name is over."""
    found = draft_of(engine, name)
    return target_module(engine) if found is None else draft_module(engine, found[0])


def make_graph(engine: EngineConfig, name: str, module: nn.Module) -> Graph:
    """The graph of that name over ``module``, a `target_module` or `draft_module`."""
    dtype, layout = built_dtype(engine), engine.layout
    found = draft_of(engine, name)
    if found is None:
        return Graph(module, model_signature(engine.target, dtype, layout))
    draft, own_name = found
    make = draft.kind.graphs[own_name]
    return make(draft.network, module, Built(dtype, layout, draft.speculation.tree))


def draft_constants(draft: EngineDraft) -> dict[str, Tensor]:
    """The index tensors that a static tree's rollout needs beside the weights."""
    levels = draft.kind.levels(draft.speculation.tree)
    return {f"{LEVELS}{name}": tensor for name, tensor in levels.state_dict().items()}


def bind(module: nn.Module, weights: Mapping[str, Tensor], where: str) -> None:
    """Let a module on the meta device use ``weights``, none missing, none left.

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


def own_state(module: nn.Module) -> dict[str, Tensor]:
    """The ``state_dict`` of a draft without what it borrows."""
    return {k: v for k, v in module.state_dict().items() if BORROWED not in k}


def with_borrowed(
    module: nn.Module, weights: Mapping[str, Tensor], target: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """A draft's weights and those that it borrows from its target."""
    names = [name for name in module.state_dict() if BORROWED in name]
    return {**weights, **{name: target[name.rpartition(BORROWED)[2]] for name in names}}


def network_formats(engine: EngineConfig) -> NetworkFormats:
    """How its networks keep their weights."""
    return NetworkFormats.uniform(weight_format(engine.build))


def built_dtype(engine: EngineConfig) -> torch.dtype:
    """What its models compute in."""
    dtype: torch.dtype = getattr(torch, engine.build.dtype)
    return dtype
