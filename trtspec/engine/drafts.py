"""The kinds of draft networks: config, module, and the graphs that an engine folder holds of each.

A new kind of network is a class of `trtspec.config` that fits `DraftConfig`, a module of
`trtspec.models`, and an entry here.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from trtspec.backends.parts import OpenParts, Part, PartRole, mask_kinds
from trtspec.backends.slots.networks import BlockNetwork, MarginalsNetwork, PassNetwork
from trtspec.config.dflash import DFlashConfig
from trtspec.config.draft import DraftConfig
from trtspec.config.eagle import EagleConfig
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
from trtspec.models.signature import (
    heads_signature,
    rollout_signature,
)
from trtspec.models.vanilla_rollout import VanillaRollout
from trtspec.speculative.draft_kind import (
    DRAFT_MODEL,
    DRAFT_ROLLOUT,
    DRAFT_STEP,
    Built,
    DraftGraph,
    DraftKind,
)
from trtspec.speculative.pass_graphs import (
    HEAD,
    PASS,
    TREE_GRAPHS,
    feature_model,
    feature_parts,
    feature_passes,
    first_step,
    token_parts,
    token_passes,
)

CONTEXT, MARGINALS = PartRole.CONTEXT.value, PartRole.MARGINALS.value


def _parallel_rollout(config: PardConfig | PEagleConfig, built: Built) -> DraftGraph:
    size, mask = built.layout.tokens_per_block, config.mask_token
    width = config.hidden_in if isinstance(config, PEagleConfig) else 0
    return DraftGraph(
        lambda module: ParallelRollout(module, built.tree, size, mask),
        lambda: rollout_signature(config.decoder, built.dtype, built.layout, width),
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


def _module_parts(config: MtpModulesConfig, states: int) -> tuple[Part, ...]:
    """A pass and a head of each module, whose features its caller fuses."""
    decoder, parts = config.module.decoder, []
    masks = mask_kinds(decoder)
    for depth in range(config.num_modules):
        module = f"depths.{depth}"
        parts += [
            Part(PartRole.PASS, f"{PASS}-{depth}", decoder, module, masks, reads_features=True),
            Part(PartRole.HEAD, f"{HEAD}-{depth}", decoder, module),
        ]
    return tuple(parts)


def _block_parts(config: DFlashConfig, states: int) -> tuple[Part, ...]:
    decoder, masks = config.decoder, mask_kinds(config.decoder, config.causal_layers)
    return (
        Part(PartRole.CONTEXT, CONTEXT, decoder, states=states),
        Part(PartRole.PASS, PASS, decoder, masks=masks),
        Part(PartRole.HEAD, HEAD, decoder),
    )


def _marginal_parts(config: MedusaConfig, states: int) -> tuple[Part, ...]:
    return (Part(PartRole.MARGINALS, MARGINALS, None, states=states),)


def _module_stack(config: MtpModulesConfig, parts: OpenParts) -> ModuleStack:
    passes = (
        PassNetwork(
            parts.rows(f"{PASS}-{depth}"),
            parts.session(f"{HEAD}-{depth}"),
            parts.tensor(f"depths.{depth}.token_map"),
        )
        for depth in range(config.num_modules)
    )
    return ModuleStack(passes, config.module.decoder.num_layers)


def _block_network(config: DFlashConfig, parts: OpenParts) -> BlockNetwork:
    context, passes, head = parts.rows(CONTEXT), parts.rows(PASS), parts.session(HEAD)
    return BlockNetwork(context, passes, head, parts.tensor("token_map"))


def _marginals_network(config: MedusaConfig, parts: OpenParts) -> MarginalsNetwork:
    return MarginalsNetwork(parts.session(MARGINALS))


DRAFT_KINDS: Mapping[str, DraftKind] = {
    ModelConfig.kind: DraftKind(
        ModelConfig,
        lambda config, target, dtype, formats: CausalLM(config, dtype, formats=formats),
        CausalLM.matrices,
        lambda module, draft, target: module.load_weights(draft),
        TREE_GRAPHS,
        token_parts,
        token_passes,
    ),
    EagleConfig.kind: DraftKind(
        EagleConfig,
        _feature_network,
        EagleDraft.matrices,
        EagleDraft.load_weights,
        TREE_GRAPHS,
        feature_parts,
        feature_passes,
    ),
    MtpConfig.kind: DraftKind(
        MtpConfig,
        _feature_network,
        EagleDraft.matrices,
        lambda module, draft, target: module.load_weights(ModuleSource.of(draft, 0), target),
        TREE_GRAPHS,
        feature_parts,
        feature_passes,
    ),
    PardConfig.kind: DraftKind(
        PardConfig,
        lambda config, target, dtype, formats: CausalLM(config, dtype, formats=formats),
        CausalLM.matrices,
        lambda module, draft, target: module.load_weights(draft),
        {DRAFT_STEP: first_step, DRAFT_ROLLOUT: _parallel_rollout},
        token_parts,
        token_passes,
        slots=_masks,
        levels=MarginalTree,
    ),
    PEagleConfig.kind: DraftKind(
        PEagleConfig,
        _p_eagle,
        PEagleDraft.matrices,
        EagleDraft.load_weights,
        {DRAFT_STEP: first_step, DRAFT_ROLLOUT: _parallel_rollout},
        feature_parts,
        feature_passes,
        slots=_masks,
        levels=MarginalTree,
    ),
    MtpModulesConfig.kind: DraftKind(
        MtpModulesConfig,
        lambda config, target, dtype, formats: MtpModules(config, target, dtype, formats=formats),
        MtpModules.matrices,
        MtpModules.load_weights,
        {DRAFT_MODEL: feature_model, DRAFT_ROLLOUT: _vanilla_rollout},
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
        {DRAFT_MODEL: feature_model, DRAFT_ROLLOUT: _block_rollout},
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
