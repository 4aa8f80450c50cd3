"""CutVocabularyConfig: options of drafts whose head is reduced to part of the vocabulary."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Self

from trtspec.config.draft_vocabulary import VocabularyAsked
from trtspec.config.tree_decoding import TreeDecodingConfig

VOCABULARY_ALIASES: Mapping[str, str] = {
    "speculative_token_map": "vocabulary",
    "token_map": "vocabulary",
}


@dataclass(frozen=True, kw_only=True)
class CutVocabularyConfig(TreeDecodingConfig):
    """The draft may propose only some of the target's tokens (FR-Spec, arXiv 2502.14856), so that a
    pass reads a smaller head. In addition to `TreeDecodingConfig`:

    vocabulary: a number of tokens, a file of the target's token ids in the order of the head's
    rows, or auto: as many as make drafts fastest (also `speculative_token_map`, `token_map`). A
    number takes the most frequent tokens of ``vocabulary_text``, then those with the lowest ids,
    which a BPE vocabulary merged first; without a text only the latter. End tokens are always
    included, except that a file is taken as it is. vocabulary_text: a plain text file resembling
    the text to be generated; without it, auto counts what the target itself writes.
    """

    vocabulary: int | str | Path | None = None
    vocabulary_text: str | Path | None = None

    def __post_init__(self) -> None:
        for name in ("vocabulary", "vocabulary_text"):
            given = getattr(self, name)
            self._set(name, str(given) if isinstance(given, Path) else given)
        VocabularyAsked.read(self.vocabulary, self.vocabulary_text)
        super().__post_init__()

    @property
    def cut(self) -> VocabularyAsked | None:
        return VocabularyAsked.read(self.vocabulary, self.vocabulary_text)

    def uncut(self) -> Self:
        return replace(self, vocabulary=None, vocabulary_text=None)

    def of_engine(self, folder: str) -> Self:
        # The network's head has been cut already.
        return super().of_engine(folder).uncut()
