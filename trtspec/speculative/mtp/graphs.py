"""The graphs of multi-token prediction modules: one module for every depth, or one for each."""

from __future__ import annotations

from trtspec.backends.parts import OpenParts, Part, PartRole, mask_kinds
from trtspec.models.signature import rollout_signature
from trtspec.speculative.draft_kind import (
    DRAFT_MODEL,
    DRAFT_ROLLOUT,
    Built,
    DraftGraph,
    DraftKind,
    PlainRollout,
)
from trtspec.speculative.eagle import EagleDraft
from trtspec.speculative.mtp.modules_shape import MtpModulesConfig
from trtspec.speculative.mtp.network import ModuleSource, ModuleStack, MtpModules
from trtspec.speculative.mtp.rollout import VanillaRollout
from trtspec.speculative.mtp.shape import MtpConfig
from trtspec.speculative.pass_graphs import (
    HEAD,
    PASS,
    TREE_GRAPHS,
    feature_model,
    feature_parts,
    feature_passes,
    head_part,
)
from trtspec.speculative.pass_network import PassNetwork


def _vanilla_rollout(config: MtpModulesConfig, built: Built) -> DraftGraph:
    width = config.hidden_in
    return DraftGraph(
        VanillaRollout, lambda: rollout_signature(config.decoder, built.dtype, built.layout, width)
    )


def _parts(config: MtpModulesConfig, states: int) -> tuple[Part, ...]:
    """A pass and a head of each module, whose features its caller fuses."""
    decoder, parts = config.module.decoder, []
    masks = mask_kinds(decoder)
    for depth in range(config.num_modules):
        module = f"depths.{depth}"
        parts += [
            Part(PartRole.PASS, f"{PASS}-{depth}", decoder, module, masks, reads_features=True),
            head_part(decoder, f"{HEAD}-{depth}", module),
        ]
    return tuple(parts)


def _stack(config: MtpModulesConfig, parts: OpenParts) -> ModuleStack:
    passes = (
        PassNetwork(
            parts.rows(f"{PASS}-{depth}"),
            parts.session(f"{HEAD}-{depth}"),
            parts.tensor(f"depths.{depth}.token_map"),
        )
        for depth in range(config.num_modules)
    )
    return ModuleStack(passes, config.module.decoder.num_layers)


MTP_MODULE = DraftKind(
    MtpConfig,
    __name__,
    lambda config, target, dtype, formats: EagleDraft(config, target, dtype, formats=formats),
    EagleDraft.matrices,
    lambda module, draft, target: module.load_weights(ModuleSource.of(draft, 0), target),
    TREE_GRAPHS,
    feature_parts,
    feature_passes,
    plain=lambda config: PlainRollout(),
)
MTP_MODULES = DraftKind(
    MtpModulesConfig,
    __name__,
    lambda config, target, dtype, formats: MtpModules(config, target, dtype, formats=formats),
    MtpModules.matrices,
    MtpModules.load_weights,
    {DRAFT_MODEL: feature_model, DRAFT_ROLLOUT: _vanilla_rollout},
    _parts,
    _stack,
    slots=lambda config, tree: 0,
    lookahead=lambda config: config.lookahead,
    plain=lambda config: PlainRollout(num_modules=config.num_modules),
)
