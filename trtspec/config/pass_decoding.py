"""PassDecodingConfig: options of drafts that a language model writes token by token."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from trtspec.config.cut_decoding import VOCABULARY_ALIASES, CutVocabularyConfig
from trtspec.errors import ConfigError

PASS_ALIASES: Mapping[str, str] = {
    **VOCABULARY_ALIASES,
    "draft_p_min": "p_min",
    "spec_draft_p_min": "p_min",
}


@dataclass(frozen=True, kw_only=True)
class PassDecodingConfig(CutVocabularyConfig):
    """Each depth of a draft takes a pass of its own, so a draft may end before max_draft_len. In
    addition to `CutVocabularyConfig`:

    p_min: drafting stops before a token whose probability, given the one before it, is lower than
    this for the draft (llama.cpp's `--draft-p-min`; 0: off). With adaptive=True a draft also ends
    when its next pass would not pay.
    """

    steps_by_pass: ClassVar[int | None] = 12
    least_key: ClassVar[str | None] = "p_min"

    p_min: float = 0.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.p_min < 1.0:
            raise ConfigError(f"p_min={self.p_min} is a probability, at least 0 and below 1")
        super().__post_init__()
