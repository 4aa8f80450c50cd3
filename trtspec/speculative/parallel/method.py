"""The methods pard, pard2 and p_eagle.

The mask rows of a parallel draft are internal to its engine, like the beam of another.
"""

from __future__ import annotations

from trtspec.speculative.base import DraftMethod
from trtspec.speculative.draft_model import DraftTargetDecodingConfig
from trtspec.speculative.eagle import Eagle3DecodingConfig
from trtspec.speculative.hidden_state_drafter import (
    BehindDrafter,
    HiddenStateDrafter,
    behind_needs,
    hidden_state_needs,
)
from trtspec.speculative.parallel.checkpoint import P_EAGLE_READER, PARD_READER
from trtspec.speculative.parallel.checkpoint_pard2 import PARD2_READER
from trtspec.speculative.parallel.graphs import P_EAGLE_NETWORK, PARD2_NETWORK, PARD_NETWORK
from trtspec.speculative.parallel.options import (
    Pard2DecodingConfig,
    PardDecodingConfig,
    PEagleDecodingConfig,
)
from trtspec.speculative.token_drafter import TokenDrafter, token_needs

PARD = DraftMethod(
    PardDecodingConfig,
    "PARD",
    token_needs,
    TokenDrafter.of,
    parallel_of=DraftTargetDecodingConfig,
    kinds=(PARD_NETWORK,),
    reader=PARD_READER,
    usual=("pard:8",),
)
PARD2 = DraftMethod(
    Pard2DecodingConfig,
    "PARD-2",
    behind_needs,
    BehindDrafter.of,
    kinds=(PARD2_NETWORK,),
    reader=PARD2_READER,
    usual=("pard2:8",),
)
P_EAGLE = DraftMethod(
    PEagleDecodingConfig,
    "P-EAGLE",
    hidden_state_needs,
    HiddenStateDrafter.of,
    parallel_of=Eagle3DecodingConfig,
    kinds=(P_EAGLE_NETWORK,),
    reader=P_EAGLE_READER,
    usual=("p_eagle:5", "p_eagle:4,5,24"),
)
