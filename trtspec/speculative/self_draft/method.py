"""The method self."""

from __future__ import annotations

from trtspec.speculative.base import DraftMethod
from trtspec.speculative.self_draft.options import SelfDecodingConfig
from trtspec.speculative.token_drafter import TokenDrafter, token_needs

SELF = DraftMethod(
    SelfDecodingConfig,
    "a copy of the target",
    token_needs,
    TokenDrafter.of,
    spellings=("selfspeculative", "mlspecqd"),
    copies_target=True,
)
