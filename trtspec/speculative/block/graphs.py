"""The graphs of networks that guess blocks."""

from __future__ import annotations

from trtspec.backends.parts import Part, PartRole, mask_kinds
from trtspec.models.signature import rollout_signature
from trtspec.speculative.block.backbone import BlockDraft
from trtspec.speculative.block.rollout import BlockRollout
from trtspec.speculative.block.shape import BlockConfig
from trtspec.speculative.block.stand_in import CONTEXT, LoweredBlockNetwork
from trtspec.speculative.draft_kind import (
    DRAFT_MODEL,
    DRAFT_ROLLOUT,
    Built,
    DraftGraph,
    DraftKind,
)
from trtspec.speculative.pass_graphs import PASS, feature_model, head_part


def block_parts(config: BlockConfig, states: int) -> tuple[Part, ...]:
    """The context rows, the blocks' pass and the head."""
    decoder, masks = config.decoder, mask_kinds(config.decoder, config.causal_layers)
    return (
        Part(PartRole.CONTEXT, CONTEXT, decoder, states=states),
        Part(PartRole.PASS, PASS, decoder, masks=masks),
        head_part(decoder),
    )


def block_kind(
    config: type[BlockConfig],
    network: type[BlockDraft],
    home: str,
    rollout: type[BlockRollout] = BlockRollout,
) -> DraftKind:
    """The kind of a variant, whose network is defined in the module ``home``."""

    def whole(shape: BlockConfig, built: Built) -> DraftGraph:
        size, width = built.layout.tokens_per_block, shape.hidden_in
        return DraftGraph(
            lambda module: rollout(module, shape, built.tree, size),
            lambda: rollout_signature(shape.decoder, built.dtype, built.layout, width),
        )

    return DraftKind(
        config,
        home,
        lambda shape, target, dtype, formats: network(shape, target, dtype, formats=formats),
        network.matrices,
        network.load_weights,
        {DRAFT_MODEL: feature_model, DRAFT_ROLLOUT: whole},
        block_parts,
        lambda shape, parts: LoweredBlockNetwork(parts),
        slots=lambda shape, tree: shape.block_size - 1,
        lookahead=lambda shape: 0,
        levels=rollout.tree_class,
    )
