"""The kinds of draft networks: config, module, and the graphs that an engine folder holds of each.

A new kind of network is a class of `trtspec.config` that fits `DraftConfig`, a module of
`trtspec.models`, and an entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trtspec.config.dflash import DFlashConfig
from trtspec.config.draft import DraftConfig
from trtspec.config.eagle import EagleConfig
from trtspec.config.kv import CacheLayout
from trtspec.config.medusa import MedusaConfig
from trtspec.config.model import ModelConfig
from trtspec.config.mtp import MtpConfig
from trtspec.config.mtp_modules import MtpModulesConfig
from trtspec.config.parallel import PardConfig, PEagleConfig
from trtspec.config.tree import TreeShape
from trtspec.formats.network_formats import NetworkFormats
from trtspec.models.block_rollout import BlockRollout
from trtspec.models.causal_lm import CausalLM
from trtspec.models.dflash import DFlashDraft
from trtspec.models.eagle import EagleDraft
from trtspec.models.heads_rollout import HeadsRollout
from trtspec.models.marginals import MarginalTree
from trtspec.models.medusa import MedusaHeads
from trtspec.models.mtp_modules import ModuleSource, ModuleStack, MtpModules
from trtspec.models.p_eagle import PEagleDraft
from trtspec.models.parallel_rollout import ParallelRollout
from trtspec.models.rollout import TreeRollout
from trtspec.models.signature import (
    Signature,
    feature_signature,
    heads_signature,
    rollout_signature,
)
from trtspec.models.tree_levels import make_levels
from trtspec.models.vanilla_rollout import VanillaRollout

DRAFT_MODEL = "model.pt2"
DRAFT_STEP = "step.pt2"
DRAFT_ROLLOUT = "rollout.pt2"


@dataclass(frozen=True)
class Graph:
    """A module, ready to be compiled or run, its inputs, and how often a call passes over its
    weights."""

    module: nn.Module
    signature: Signature
    passes: int = 1


@dataclass(frozen=True)
class Built:
    """What the graphs of a draft depend on beside its own shape."""

    dtype: torch.dtype
    layout: CacheLayout
    tree: TreeShape


@dataclass(frozen=True)
class DraftKind:
    """One kind of draft network.

    config: the class of its shape, a `DraftConfig` with ``from_dict``. module: the network with
    uninitialised weights, from its config, its target's, a dtype and how weights lie.
    load: fills them, from its checkpoint (config and tensors by internal names) and the target's
    tensors. graphs: by artifact, relative to the draft's folder, how it is made of config, module
    and build. `DRAFT_ROLLOUT` drafts and is always there. Accepted rows are fed to a network with a
    cache of its own by `DRAFT_STEP`, a rollout of one step, or by `DRAFT_MODEL`, which does nothing
    else. slots: rows that a rollout, of that config and tree, writes
    into the cache behind the accepted ones. lookahead: how many tokens after a kept row it depends
    on, where its config decides that; None: what the drafter says. levels: how its rollout
    grows a tree, of which the index tensors are constants beside the weights.
    """

    config: type[Any]
    module: Callable[[Any, ModelConfig, torch.dtype, NetworkFormats], nn.Module]
    load: Callable[[Any, Any, Mapping[str, Tensor]], None]
    graphs: Mapping[str, Callable[[Any, Any, Built], Graph]]
    slots: Callable[[Any, TreeShape], int] = lambda config, tree: tree.num_rollout_rows
    lookahead: Callable[[Any], int | None] = lambda config: None
    levels: Callable[[TreeShape], nn.Module] = make_levels


def _tree_rollout(
    config: ModelConfig | EagleConfig, module: Any, built: Built, tree: TreeShape
) -> Graph:
    """Over a language model, or a network that reads the target's states."""
    decoder, width = (
        (config.decoder, config.hidden_in) if isinstance(config, EagleConfig) else (config, 0)
    )
    rollout = TreeRollout(module, tree, built.layout.tokens_per_block)
    signature = rollout_signature(decoder, built.dtype, built.layout, width)
    return Graph(rollout, signature, passes=tree.num_steps)


def _steps(config: ModelConfig | EagleConfig, module: Any, built: Built) -> Graph:
    return _tree_rollout(config, module, built, built.tree)


def _first_step(config: ModelConfig | EagleConfig, module: Any, built: Built) -> Graph:
    return _tree_rollout(config, module, built, built.tree.first_step)


def _parallel_rollout(config: PardConfig | PEagleConfig, module: Any, built: Built) -> Graph:
    rollout = ParallelRollout(module, built.tree, built.layout.tokens_per_block, config.mask_token)
    width = config.hidden_in if isinstance(config, PEagleConfig) else 0
    return Graph(rollout, rollout_signature(config.decoder, built.dtype, built.layout, width))


def _feature_model(
    config: MtpModulesConfig | DFlashConfig, module: nn.Module, built: Built
) -> Graph:
    signature = feature_signature(config.decoder, built.dtype, built.layout, config.hidden_in)
    return Graph(module, signature)


def _vanilla_rollout(config: MtpModulesConfig, module: ModuleStack, built: Built) -> Graph:
    signature = rollout_signature(config.decoder, built.dtype, built.layout, config.hidden_in)
    return Graph(VanillaRollout(module), signature)


def _heads_rollout(config: MedusaConfig, module: MedusaHeads, built: Built) -> Graph:
    rollout = HeadsRollout(module, built.tree)
    return Graph(rollout, heads_signature(built.dtype, config.hidden_size))


def _block_rollout(config: DFlashConfig, module: Any, built: Built) -> Graph:
    rollout = BlockRollout(module, config, built.tree, built.layout.tokens_per_block)
    signature = rollout_signature(config.decoder, built.dtype, built.layout, config.hidden_in)
    return Graph(rollout, signature)


def _feature_network(
    config: EagleConfig, target: ModelConfig, dtype: torch.dtype, formats: NetworkFormats
) -> EagleDraft:
    return EagleDraft(config, target, dtype, formats=formats)


def _heads(
    config: MedusaConfig, target: ModelConfig, dtype: torch.dtype, formats: NetworkFormats
) -> MedusaHeads:
    return MedusaHeads(config, target, dtype, formats=formats)


def _masks(config: PardConfig | PEagleConfig, tree: TreeShape) -> int:
    """However wide the tree is."""
    return tree.num_steps - 1


def _p_eagle(
    config: PEagleConfig, target: ModelConfig, dtype: torch.dtype, formats: NetworkFormats
) -> PEagleDraft:
    return PEagleDraft(config, target, dtype, formats=formats)


DRAFT_KINDS: Mapping[str, DraftKind] = {
    ModelConfig.kind: DraftKind(
        ModelConfig,
        lambda config, target, dtype, formats: CausalLM(config, dtype, formats=formats),
        lambda module, draft, target: module.load_weights(draft),
        {DRAFT_STEP: _first_step, DRAFT_ROLLOUT: _steps},
    ),
    EagleConfig.kind: DraftKind(
        EagleConfig,
        _feature_network,
        EagleDraft.load_weights,
        {DRAFT_STEP: _first_step, DRAFT_ROLLOUT: _steps},
    ),
    MtpConfig.kind: DraftKind(
        MtpConfig,
        _feature_network,
        lambda module, draft, target: module.load_weights(ModuleSource.of(draft, 0), target),
        {DRAFT_STEP: _first_step, DRAFT_ROLLOUT: _steps},
    ),
    PardConfig.kind: DraftKind(
        PardConfig,
        lambda config, target, dtype, formats: CausalLM(config, dtype, formats=formats),
        lambda module, draft, target: module.load_weights(draft),
        {DRAFT_STEP: _first_step, DRAFT_ROLLOUT: _parallel_rollout},
        _masks,
        levels=MarginalTree,
    ),
    PEagleConfig.kind: DraftKind(
        PEagleConfig,
        _p_eagle,
        EagleDraft.load_weights,
        {DRAFT_STEP: _first_step, DRAFT_ROLLOUT: _parallel_rollout},
        _masks,
        levels=MarginalTree,
    ),
    MtpModulesConfig.kind: DraftKind(
        MtpModulesConfig,
        lambda config, target, dtype, formats: MtpModules(config, target, dtype, formats=formats),
        MtpModules.load_weights,
        {DRAFT_MODEL: _feature_model, DRAFT_ROLLOUT: _vanilla_rollout},
        slots=lambda config, tree: 0,
        lookahead=lambda config: config.lookahead,
    ),
    MedusaConfig.kind: DraftKind(
        MedusaConfig,
        _heads,
        lambda module, draft, target: module.load_weights(draft),
        {DRAFT_ROLLOUT: _heads_rollout},
        levels=MarginalTree,
    ),
    DFlashConfig.kind: DraftKind(
        DFlashConfig,
        lambda config, target, dtype, formats: DFlashDraft(config, target, dtype, formats=formats),
        DFlashDraft.load_weights,
        {DRAFT_MODEL: _feature_model, DRAFT_ROLLOUT: _block_rollout},
        slots=lambda config, tree: config.block_size - 1,
        levels=MarginalTree,
    ),
}


def draft_to_dict(config: DraftConfig) -> dict[str, Any]:
    """Plain values for JSON, with the kind; `draft_from_dict` takes them back."""
    return {"kind": config.kind, **config.to_dict()}


def draft_from_dict(data: Mapping[str, Any]) -> DraftConfig:
    """The inverse of `draft_to_dict`; KeyError for a kind that is not in `DRAFT_KINDS`, ConfigError
    for fields that do not fit it."""
    fields = dict(data)
    config: DraftConfig = DRAFT_KINDS[fields.pop("kind")].config.from_dict(fields)
    return config
