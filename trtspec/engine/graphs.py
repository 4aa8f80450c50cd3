"""The graphs of an engine: which module is compiled under which name, and for which inputs."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from trtspec.engine.drafts import DRAFT_KINDS, Built, Graph
from trtspec.engine.folder import EngineConfig
from trtspec.errors import EngineError
from trtspec.models.causal_lm import CausalLM
from trtspec.models.signature import model_signature
from trtspec.models.tree_levels import make_levels

TARGET_MODEL = "target/model.pt2"

BORROWED = "target."
LEVELS = "levels."
"""Prefixes of constants that are no part of a draft's module: tensors of the target that it
borrows, and the index tensors of a static tree."""


def graph_names(engine: EngineConfig) -> list[str]:
    """The artifacts of an engine folder, relative to it."""
    return [TARGET_MODEL, *draft_graphs(engine)]


def draft_graphs(engine: EngineConfig) -> list[str]:
    """The artifacts of its draft; none without one."""
    return [] if engine.draft is None else list(DRAFT_KINDS[engine.draft.kind].graphs)


def target_module(engine: EngineConfig) -> CausalLM:
    """The target with uninitialised weights, on torch's default device."""
    return CausalLM(
        engine.target, _dtype(engine), engine.capture_layers, packed=_packs_weights(engine)
    )


def draft_module(engine: EngineConfig) -> nn.Module:
    """The draft with uninitialised weights, on torch's default device."""
    assert engine.draft is not None
    kind = DRAFT_KINDS[engine.draft.kind]
    return kind.module(engine.draft, engine.target, _dtype(engine), _packs_weights(engine))


def make_graph(engine: EngineConfig, name: str, module: nn.Module) -> Graph:
    """The graph of that name over ``module``, a `target_module` or `draft_module`."""
    dtype, layout = _dtype(engine), engine.layout
    if name == TARGET_MODEL:
        return Graph(module, model_signature(engine.target, dtype, layout))
    assert engine.draft is not None and engine.speculation is not None
    make = DRAFT_KINDS[engine.draft.kind].graphs[name]
    return make(engine.draft, module, Built(dtype, layout, engine.speculation.tree))


def draft_constants(engine: EngineConfig) -> dict[str, Tensor]:
    """The index tensors that a static tree's rollout needs beside the weights."""
    assert engine.speculation is not None
    levels = make_levels(engine.speculation.tree)
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
    return {k: v for k, v in module.state_dict().items() if not k.startswith(BORROWED)}


def with_borrowed(
    module: nn.Module, weights: Mapping[str, Tensor], target: Mapping[str, Tensor]
) -> dict[str, Tensor]:
    """A draft's weights and those that it borrows from its target."""
    names = [name for name in module.state_dict() if name.startswith(BORROWED)]
    return {**weights, **{name: target[name.removeprefix(BORROWED)] for name in names}}


def _packs_weights(engine: EngineConfig) -> bool:
    """CPUs read weights in panels; a GPU's library wants them as they are."""
    return engine.build.device == "cpu"


def _dtype(engine: EngineConfig) -> torch.dtype:
    dtype: torch.dtype = getattr(torch, engine.build.dtype)
    return dtype
