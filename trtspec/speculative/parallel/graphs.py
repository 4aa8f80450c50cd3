"""The graphs of networks that guess every depth in one pass."""

from __future__ import annotations

import torch
from torch import Tensor

from trtspec.config.model import ModelConfig
from trtspec.config.tree import TreeShape
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import IN_PANELS
from trtspec.models.causal_lm import CausalLM
from trtspec.models.signature import rollout_signature
from trtspec.speculative.draft_kind import (
    DRAFT_ROLLOUT,
    DRAFT_STEP,
    Built,
    DraftGraph,
    DraftKind,
    PlainRollout,
)
from trtspec.speculative.eagle import EagleDraft
from trtspec.speculative.marginals import MarginalTree
from trtspec.speculative.parallel.pard2 import MODEL_TOKEN_MAP, Pard2Draft
from trtspec.speculative.parallel.rollout import ParallelRollout, RootStateRollout
from trtspec.speculative.parallel.shape import Pard2Config, PardConfig, PEagleConfig
from trtspec.speculative.pass_graphs import (
    feature_parts,
    feature_passes,
    first_step,
    states_width,
    token_parts,
    token_passes,
)


class PEagleDraft(EagleDraft):
    """`EagleDraft` with an additional ``mask_hidden [n * H_t]`` (P-EAGLE, arXiv 2602.01469). It
    replaces the target's hidden states in mask rows, so it goes through ``fuse`` as they do."""

    mask_hidden: Tensor

    def __init__(
        self,
        config: PEagleConfig,
        target: ModelConfig,
        dtype: torch.dtype,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__(config, target, dtype, formats=formats)
        self.register_buffer("mask_hidden", torch.empty(config.hidden_in, dtype=dtype))


def _rollout(config: PardConfig | PEagleConfig, built: Built) -> DraftGraph:
    size, mask, width = built.layout.tokens_per_block, config.mask_token, states_width(config)
    return DraftGraph(
        lambda module: ParallelRollout(module, built.tree, size, mask),
        lambda: rollout_signature(config.decoder, built.dtype, built.layout, width),
    )


def _rollout_of_roots(config: Pard2Config, built: Built) -> DraftGraph:
    size, mask = built.layout.tokens_per_block, config.mask_token
    return DraftGraph(
        lambda module: RootStateRollout(module, built.tree, size, mask),
        lambda: rollout_signature(config.decoder, built.dtype, built.layout, config.hidden_in),
    )


def _masks(config: PardConfig | Pard2Config | PEagleConfig, tree: TreeShape) -> int:
    """The same however wide the tree is."""
    return tree.num_steps - 1


def _by_masks(config: PardConfig | PEagleConfig) -> PlainRollout:
    return PlainRollout(mask_token=config.mask_token)


_GRAPHS = {DRAFT_STEP: first_step, DRAFT_ROLLOUT: _rollout}

PARD_NETWORK = DraftKind(
    PardConfig,
    __name__,
    lambda config, target, dtype, formats: CausalLM(config, dtype, formats=formats),
    CausalLM.matrices,
    lambda module, draft, target: module.load_weights(draft),
    _GRAPHS,
    token_parts,
    token_passes,
    slots=_masks,
    levels=MarginalTree,
    plain=_by_masks,
)
PARD2_NETWORK = DraftKind(
    Pard2Config,
    __name__,
    lambda config, target, dtype, formats: Pard2Draft(config, target, dtype, formats=formats),
    Pard2Draft.matrices,
    lambda module, draft, target: module.load_weights(draft),
    {DRAFT_STEP: first_step, DRAFT_ROLLOUT: _rollout_of_roots},
    feature_parts,
    lambda config, parts: feature_passes(config, parts, MODEL_TOKEN_MAP),
    slots=_masks,
    lookahead=lambda config: 0,
    levels=MarginalTree,
)
P_EAGLE_NETWORK = DraftKind(
    PEagleConfig,
    __name__,
    lambda config, target, dtype, formats: PEagleDraft(config, target, dtype, formats=formats),
    PEagleDraft.matrices,
    EagleDraft.load_weights,
    _GRAPHS,
    feature_parts,
    feature_passes,
    slots=_masks,
    levels=MarginalTree,
    plain=_by_masks,
)
