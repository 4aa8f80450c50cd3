"""The graphs of an EAGLE network."""

from __future__ import annotations

from trtspec.speculative.draft_kind import DraftKind, PlainRollout
from trtspec.speculative.eagle.network import EagleDraft
from trtspec.speculative.eagle.shape import EagleConfig
from trtspec.speculative.pass_graphs import TREE_GRAPHS, feature_parts, feature_passes

EAGLE_NETWORK = DraftKind(
    EagleConfig,
    __name__,
    lambda config, target, dtype, formats: EagleDraft(config, target, dtype, formats=formats),
    EagleDraft.matrices,
    EagleDraft.load_weights,
    TREE_GRAPHS,
    feature_parts,
    feature_passes,
    plain=lambda config: PlainRollout(),
)
