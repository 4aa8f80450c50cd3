"""The method draft_model."""

from __future__ import annotations

from trtspec.speculative.base import DraftMethod
from trtspec.speculative.draft_model.checkpoint import LANGUAGE_MODEL_READER
from trtspec.speculative.draft_model.graphs import LANGUAGE_MODEL
from trtspec.speculative.draft_model.options import DraftTargetDecodingConfig
from trtspec.speculative.token_drafter import TokenDrafter, token_needs

DRAFT_MODEL = DraftMethod(
    DraftTargetDecodingConfig,
    "a draft model",
    token_needs,
    TokenDrafter.of,
    spellings=("drafttarget", "standalone"),
    kinds=(LANGUAGE_MODEL,),
    reader=LANGUAGE_MODEL_READER,
)
