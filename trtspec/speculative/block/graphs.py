"""The graphs of networks that guess blocks."""

from __future__ import annotations

from trtspec.backends.parts import OpenParts, Part, PartRole, mask_kinds
from trtspec.models.signature import rollout_signature
from trtspec.speculative.block.backbone import BlockDraft
from trtspec.speculative.block.rollout import BlockRollout
from trtspec.speculative.block.shape import BlockConfig
from trtspec.speculative.block.stand_in import LoweredBlockNetwork
from trtspec.speculative.draft_kind import (
    DRAFT_MODEL,
    DRAFT_ROLLOUT,
    Built,
    DraftGraph,
    DraftKind,
)
from trtspec.speculative.marginals import MarginalTree
from trtspec.speculative.pass_graphs import HEAD, PASS, feature_model, head_part

_CONTEXT = "context"


def _rollout(config: BlockConfig, built: Built) -> DraftGraph:
    size, width = built.layout.tokens_per_block, config.hidden_in
    return DraftGraph(
        lambda module: BlockRollout(module, config, built.tree, size),
        lambda: rollout_signature(config.decoder, built.dtype, built.layout, width),
    )


def _parts(config: BlockConfig, states: int) -> tuple[Part, ...]:
    decoder, masks = config.decoder, mask_kinds(config.decoder, config.causal_layers)
    return (
        Part(PartRole.CONTEXT, _CONTEXT, decoder, states=states),
        Part(PartRole.PASS, PASS, decoder, masks=masks),
        head_part(decoder),
    )


def _stand_in(config: BlockConfig, parts: OpenParts) -> LoweredBlockNetwork:
    context, passes, head = parts.rows(_CONTEXT), parts.rows(PASS), parts.session(HEAD)
    return LoweredBlockNetwork(context, passes, head, parts.tensor("token_map"))


def block_kind(config: type[BlockConfig], network: type[BlockDraft], home: str) -> DraftKind:
    """The kind of a variant, whose network is made in the module ``home``."""
    return DraftKind(
        config,
        home,
        lambda shape, target, dtype, formats: network(shape, target, dtype, formats=formats),
        network.matrices,
        network.load_weights,
        {DRAFT_MODEL: feature_model, DRAFT_ROLLOUT: _rollout},
        _parts,
        _stand_in,
        slots=lambda shape, tree: shape.block_size - 1,
        lookahead=lambda shape: 0,
        levels=MarginalTree,
    )
