"""The graphs of an engine: which module is compiled under which name, and for which inputs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from trtspec.config.eagle import EagleConfig
from trtspec.engine.folder import MODEL_NAME, ROLLOUT_NAME, EngineConfig
from trtspec.errors import EngineError
from trtspec.models.causal_lm import CausalLM
from trtspec.models.eagle import EagleDraft
from trtspec.models.rollout import TreeRollout
from trtspec.models.signature import (
    Signature,
    feature_signature,
    model_signature,
    rollout_signature,
)
from trtspec.models.tree_levels import make_levels

TARGET_MODEL = f"target/{MODEL_NAME}"
DRAFT_MODEL = f"draft/{MODEL_NAME}"
DRAFT_ROLLOUT = f"draft/{ROLLOUT_NAME}"

BORROWED = "target."
LEVELS = "levels."
"""Prefixes of constants that are no part of a draft's module: tensors of the target that it
borrows, and the index tensors of a static tree."""


@dataclass(frozen=True)
class Graph:
    """A module, ready to be compiled or run, and its inputs."""

    module: nn.Module
    signature: Signature


def graph_names(engine: EngineConfig) -> list[str]:
    """The artifacts of an engine folder, relative to it."""
    return [TARGET_MODEL, *([DRAFT_MODEL, DRAFT_ROLLOUT] if engine.draft else [])]


def target_module(engine: EngineConfig) -> CausalLM:
    """The target with uninitialised weights, on torch's default device."""
    return CausalLM(
        engine.target, _dtype(engine), engine.capture_layers, packed=_packs_weights(engine)
    )


def draft_module(engine: EngineConfig) -> CausalLM | EagleDraft:
    """The draft with uninitialised weights, on torch's default device."""
    assert engine.draft is not None
    if isinstance(engine.draft, EagleConfig):
        return EagleDraft(
            engine.draft, engine.target, _dtype(engine), packed=_packs_weights(engine)
        )
    return CausalLM(engine.draft, _dtype(engine), packed=_packs_weights(engine))


def make_graph(engine: EngineConfig, name: str, module: CausalLM | EagleDraft) -> Graph:
    """The graph of that name over ``module``, a `target_module` or `draft_module`."""
    dtype, layout = _dtype(engine), engine.layout
    if name == TARGET_MODEL:
        return Graph(module, model_signature(engine.target, dtype, layout))
    decoder, contract = engine.draft_decoder, engine.speculation
    assert decoder is not None and contract is not None
    width = engine.draft.hidden_in if isinstance(engine.draft, EagleConfig) else 0
    if name == DRAFT_ROLLOUT:
        rollout = TreeRollout(module, contract.tree, layout.tokens_per_block)
        return Graph(rollout, rollout_signature(decoder, dtype, layout, width))
    if width:
        return Graph(module, feature_signature(decoder, dtype, layout, width))
    return Graph(module, model_signature(decoder, dtype, layout))


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
