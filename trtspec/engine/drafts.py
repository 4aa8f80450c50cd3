"""The kinds of draft networks: config, module, and the graphs that an engine folder holds of each.

A new kind of network is a class of `trtspec.config` that fits `DraftConfig`, a module of
`trtspec.models`, and an entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trtspec.backends.parts import OpenParts, Part, PartRole, mask_kinds
from trtspec.backends.session import GraphSession
from trtspec.backends.shape import as_it_is
from trtspec.backends.slots.networks import BlockNetwork, MarginalsNetwork, PassNetwork
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
from trtspec.models.block_map import Matrix
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
class DraftGraph:
    """A graph of a draft: the module of it from a network, its inputs, and how often a call passes
    over the weights."""

    over: Callable[[Any], nn.Module]
    sign: Callable[[], Signature]
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
    matrices: of its config, the outputs and inputs of each linear layer that a pass reads.
    load: fills them, from its checkpoint (config and tensors by internal names) and the target's
    tensors. graphs: by artifact, relative to the draft's folder, how it is made of config and
    build. `DRAFT_ROLLOUT` drafts and is always there. Accepted rows are fed to a network with a
    cache of its own by `DRAFT_STEP`, a rollout of one step, or by `DRAFT_MODEL`, which does nothing
    else. parts: what the network is cut into over slot caches, from its config and the width of
    the target's states that it reads; stand_in: what runs these in place of the network. slots:
    rows that a rollout, of that config and tree, writes into the cache behind the accepted ones.
    lookahead: how many tokens after a kept row it depends on, where its config decides that; None:
    what the drafter says. levels: how its rollout grows a tree, of which the index tensors are
    constants beside the weights.
    """

    config: type[Any]
    module: Callable[[Any, ModelConfig, torch.dtype, NetworkFormats], nn.Module]
    matrices: Callable[[Any], Sequence[Matrix]]
    load: Callable[[Any, Any, Mapping[str, Tensor]], None]
    graphs: Mapping[str, Callable[[Any, Built], DraftGraph]]
    parts: Callable[[Any, int], tuple[Part, ...]]
    stand_in: Callable[[Any, OpenParts], nn.Module]
    slots: Callable[[Any, TreeShape], int] = lambda config, tree: tree.num_rollout_rows
    lookahead: Callable[[Any], int | None] = lambda config: None
    levels: Callable[[TreeShape], nn.Module] = make_levels


def _tree_rollout(config: ModelConfig | EagleConfig, built: Built, tree: TreeShape) -> DraftGraph:
    """Over a language model, or a network that reads the target's states."""
    decoder, width = (
        (config.decoder, config.hidden_in) if isinstance(config, EagleConfig) else (config, 0)
    )
    return DraftGraph(
        lambda module: TreeRollout(module, tree, built.layout.tokens_per_block),
        lambda: rollout_signature(decoder, built.dtype, built.layout, width),
        passes=tree.num_steps,
    )


def _steps(config: ModelConfig | EagleConfig, built: Built) -> DraftGraph:
    return _tree_rollout(config, built, built.tree)


def _first_step(config: ModelConfig | EagleConfig, built: Built) -> DraftGraph:
    return _tree_rollout(config, built, built.tree.first_step)


def _parallel_rollout(config: PardConfig | PEagleConfig, built: Built) -> DraftGraph:
    size, mask = built.layout.tokens_per_block, config.mask_token
    width = config.hidden_in if isinstance(config, PEagleConfig) else 0
    return DraftGraph(
        lambda module: ParallelRollout(module, built.tree, size, mask),
        lambda: rollout_signature(config.decoder, built.dtype, built.layout, width),
    )


def _feature_model(config: MtpModulesConfig | DFlashConfig, built: Built) -> DraftGraph:
    width = config.hidden_in
    return DraftGraph(
        as_it_is, lambda: feature_signature(config.decoder, built.dtype, built.layout, width)
    )


def _vanilla_rollout(config: MtpModulesConfig, built: Built) -> DraftGraph:
    width = config.hidden_in
    return DraftGraph(
        VanillaRollout, lambda: rollout_signature(config.decoder, built.dtype, built.layout, width)
    )


def _heads_rollout(config: MedusaConfig, built: Built) -> DraftGraph:
    return DraftGraph(
        lambda module: HeadsRollout(module, built.tree),
        lambda: heads_signature(built.dtype, config.hidden_size),
    )


def _block_rollout(config: DFlashConfig, built: Built) -> DraftGraph:
    size, width = built.layout.tokens_per_block, config.hidden_in
    return DraftGraph(
        lambda module: BlockRollout(module, config, built.tree, size),
        lambda: rollout_signature(config.decoder, built.dtype, built.layout, width),
    )


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


_PASS, _HEAD, _FUSE, _CONTEXT, _MARGINALS = (
    role.value
    for role in (
        PartRole.PASS,
        PartRole.HEAD,
        PartRole.FUSE,
        PartRole.CONTEXT,
        PartRole.MARGINALS,
    )
)
"""The names of parts, but for those of several modules."""


def _token_parts(config: ModelConfig, states: int) -> tuple[Part, ...]:
    decoder = config.decoder
    return (
        Part(PartRole.PASS, _PASS, decoder, masks=mask_kinds(decoder)),
        Part(PartRole.HEAD, _HEAD, decoder),
    )


def _feature_parts(config: EagleConfig, states: int) -> tuple[Part, ...]:
    decoder, masks = config.decoder, mask_kinds(config.decoder)
    return (
        Part(PartRole.FUSE, _FUSE, None, states=states),
        Part(PartRole.PASS, _PASS, decoder, masks=masks, reads_features=True),
        Part(PartRole.HEAD, _HEAD, decoder),
    )


def _module_parts(config: MtpModulesConfig, states: int) -> tuple[Part, ...]:
    """A pass and a head of each module, whose features its caller fuses."""
    decoder, parts = config.module.decoder, []
    masks = mask_kinds(decoder)
    for depth in range(config.num_modules):
        module = f"depths.{depth}"
        parts += [
            Part(PartRole.PASS, f"{_PASS}-{depth}", decoder, module, masks, reads_features=True),
            Part(PartRole.HEAD, f"{_HEAD}-{depth}", decoder, module),
        ]
    return tuple(parts)


def _block_parts(config: DFlashConfig, states: int) -> tuple[Part, ...]:
    decoder, masks = config.decoder, mask_kinds(config.decoder, config.causal_layers)
    return (
        Part(PartRole.CONTEXT, _CONTEXT, decoder, states=states),
        Part(PartRole.PASS, _PASS, decoder, masks=masks),
        Part(PartRole.HEAD, _HEAD, decoder),
    )


def _marginal_parts(config: MedusaConfig, states: int) -> tuple[Part, ...]:
    return (Part(PartRole.MARGINALS, _MARGINALS, None, states=states),)


def _token_network(config: ModelConfig, parts: OpenParts) -> PassNetwork:
    return _pass_network(parts, None)


def _feature_passes(config: EagleConfig, parts: OpenParts) -> PassNetwork:
    return _pass_network(parts, parts.session(_FUSE))


def _pass_network(parts: OpenParts, fuse: GraphSession | None) -> PassNetwork:
    rows, head = parts.rows(_PASS), parts.session(_HEAD)
    token_map, mask_hidden = parts.tensor("token_map"), parts.tensor("mask_hidden")
    return PassNetwork(rows, head, token_map, fuse, mask_hidden, parts.max_rows)


def _module_stack(config: MtpModulesConfig, parts: OpenParts) -> ModuleStack:
    passes = (
        PassNetwork(
            parts.rows(f"{_PASS}-{depth}"),
            parts.session(f"{_HEAD}-{depth}"),
            parts.tensor(f"depths.{depth}.token_map"),
        )
        for depth in range(config.num_modules)
    )
    return ModuleStack(passes, config.module.decoder.num_layers)


def _block_network(config: DFlashConfig, parts: OpenParts) -> BlockNetwork:
    context, passes, head = parts.rows(_CONTEXT), parts.rows(_PASS), parts.session(_HEAD)
    return BlockNetwork(context, passes, head, parts.tensor("token_map"))


def _marginals_network(config: MedusaConfig, parts: OpenParts) -> MarginalsNetwork:
    return MarginalsNetwork(parts.session(_MARGINALS))


DRAFT_KINDS: Mapping[str, DraftKind] = {
    ModelConfig.kind: DraftKind(
        ModelConfig,
        lambda config, target, dtype, formats: CausalLM(config, dtype, formats=formats),
        CausalLM.matrices,
        lambda module, draft, target: module.load_weights(draft),
        {DRAFT_STEP: _first_step, DRAFT_ROLLOUT: _steps},
        _token_parts,
        _token_network,
    ),
    EagleConfig.kind: DraftKind(
        EagleConfig,
        _feature_network,
        EagleDraft.matrices,
        EagleDraft.load_weights,
        {DRAFT_STEP: _first_step, DRAFT_ROLLOUT: _steps},
        _feature_parts,
        _feature_passes,
    ),
    MtpConfig.kind: DraftKind(
        MtpConfig,
        _feature_network,
        EagleDraft.matrices,
        lambda module, draft, target: module.load_weights(ModuleSource.of(draft, 0), target),
        {DRAFT_STEP: _first_step, DRAFT_ROLLOUT: _steps},
        _feature_parts,
        _feature_passes,
    ),
    PardConfig.kind: DraftKind(
        PardConfig,
        lambda config, target, dtype, formats: CausalLM(config, dtype, formats=formats),
        CausalLM.matrices,
        lambda module, draft, target: module.load_weights(draft),
        {DRAFT_STEP: _first_step, DRAFT_ROLLOUT: _parallel_rollout},
        _token_parts,
        _token_network,
        slots=_masks,
        levels=MarginalTree,
    ),
    PEagleConfig.kind: DraftKind(
        PEagleConfig,
        _p_eagle,
        PEagleDraft.matrices,
        EagleDraft.load_weights,
        {DRAFT_STEP: _first_step, DRAFT_ROLLOUT: _parallel_rollout},
        _feature_parts,
        _feature_passes,
        slots=_masks,
        levels=MarginalTree,
    ),
    MtpModulesConfig.kind: DraftKind(
        MtpModulesConfig,
        lambda config, target, dtype, formats: MtpModules(config, target, dtype, formats=formats),
        MtpModules.matrices,
        MtpModules.load_weights,
        {DRAFT_MODEL: _feature_model, DRAFT_ROLLOUT: _vanilla_rollout},
        _module_parts,
        _module_stack,
        slots=lambda config, tree: 0,
        lookahead=lambda config: config.lookahead,
    ),
    MedusaConfig.kind: DraftKind(
        MedusaConfig,
        _heads,
        MedusaHeads.matrices,
        lambda module, draft, target: module.load_weights(draft),
        {DRAFT_ROLLOUT: _heads_rollout},
        _marginal_parts,
        _marginals_network,
        levels=MarginalTree,
    ),
    DFlashConfig.kind: DraftKind(
        DFlashConfig,
        lambda config, target, dtype, formats: DFlashDraft(config, target, dtype, formats=formats),
        DFlashDraft.matrices,
        DFlashDraft.load_weights,
        {DRAFT_MODEL: _feature_model, DRAFT_ROLLOUT: _block_rollout},
        _block_parts,
        _block_network,
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
