"""The method ngram."""

from __future__ import annotations

from trtspec.speculative.base import DraftMethod
from trtspec.speculative.ngram.drafter import NGramDrafter
from trtspec.speculative.ngram.options import NGramDecodingConfig

NGRAM = DraftMethod(
    NGramDecodingConfig,
    "prompt lookup",
    NGramDrafter.needs_of,
    lambda config, draft: NGramDrafter(config),
    spellings=("ngramsimple",),
    model_words=("ngram", "[ngram]"),
    usual=("ngram:4",),
)
