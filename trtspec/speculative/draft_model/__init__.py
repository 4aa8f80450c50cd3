"""A smaller language model of the same vocabulary drafts."""

from trtspec.speculative.draft_model.options import DraftTargetDecodingConfig

__all__ = ["DraftTargetDecodingConfig"]
