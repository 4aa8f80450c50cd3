"""A smaller language model of the same vocabulary drafts."""

from trtspec.speculative.draft_model.checkpoint import read_language_model
from trtspec.speculative.draft_model.options import DraftTargetDecodingConfig

__all__ = ["DraftTargetDecodingConfig", "read_language_model"]
