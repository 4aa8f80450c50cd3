"""The methods eagle (EAGLE-1 and EAGLE-2) and eagle3."""

from __future__ import annotations

from trtspec.speculative.base import DraftMethod
from trtspec.speculative.draft_kind import DraftKind, PlainRollout
from trtspec.speculative.eagle.checkpoint import EAGLE_READER
from trtspec.speculative.eagle.network import EagleDraft
from trtspec.speculative.eagle.options import Eagle3DecodingConfig, EagleDecodingConfig
from trtspec.speculative.eagle.recipe import EAGLE3_RECIPE
from trtspec.speculative.eagle.shape import EagleConfig
from trtspec.speculative.hidden_state_drafter import HiddenStateDrafter, hidden_state_needs
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


EAGLE = DraftMethod(
    EagleDecodingConfig,
    "EAGLE-1 and EAGLE-2",
    hidden_state_needs,
    HiddenStateDrafter.of,
    spellings=("eagle1", "eagle2"),
    kinds=(EAGLE_NETWORK,),
    reader=EAGLE_READER,
    usual=("eagle:5", "eagle:4,5,24"),
)
EAGLE3 = DraftMethod(
    Eagle3DecodingConfig,
    "EAGLE-3",
    hidden_state_needs,
    HiddenStateDrafter.of,
    recipe=EAGLE3_RECIPE,
    usual=("eagle3:5", "eagle3:4,5,24"),
)
