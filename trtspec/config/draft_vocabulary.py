"""VocabularyAsked: the requested part of the target's vocabulary that a draft may propose."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from trtspec.errors import ConfigError

AUTO = "auto"
REMEDY = "give a number of tokens, a file of token ids, or 'auto'"


@dataclass(frozen=True)
class VocabularyAsked:
    """size: number of tokens; None: as many as make drafts fastest, or those of ``file``. text: a
    text in which tokens are counted; None: nothing is counted, or, without a size, what the target
    writes."""

    size: int | None = None
    file: Path | None = None
    text: Path | None = None

    @property
    def words(self) -> str | None:
        """The request in words; None for a token file, which is identified by its content."""
        if self.file is not None:
            return None
        number = AUTO if self.size is None else str(self.size)
        return number if self.text is None else f"{number} of {self.text}"

    def check_built(self, built: str | None) -> None:
        """Raise ConfigError if an engine's draft was built with different ``words``."""
        if self.words != built:
            was = "another file, or none," if built is None else built
            raise ConfigError(
                f"vocabulary={self.words or self.file} was asked for, the engine's draft was built "
                f"with {was}; leave it out, or rebuild the engine"
            )

    @classmethod
    def read(
        cls, vocabulary: int | str | Path | None, text: str | Path | None
    ) -> VocabularyAsked | None:
        """Interpret the options ``vocabulary`` and ``vocabulary_text``; None: nothing was
        requested.

        Raises:
            ConfigError: they contradict each other, or are neither a number nor a name.
        """
        if vocabulary is None:
            if text is not None:
                raise ConfigError(
                    f"vocabulary_text={str(text)!r} was given without vocabulary, whose tokens are "
                    "counted in it; give vocabulary='auto' or a number too"
                )
            return None
        words = str(vocabulary)
        if not words or (text is not None and not str(text)):
            name = "vocabulary_text" if words else "vocabulary"
            raise ConfigError(f"{name} is an empty path; leave it out, or {REMEDY}")
        source = None if text is None else Path(text)
        if words.lstrip("-").isdecimal():
            if int(words) < 1:
                raise ConfigError(f"vocabulary={words} must be at least 1 token")
            return cls(size=int(words), text=source)
        if words == AUTO:
            return cls(text=source)
        if source is not None:
            raise ConfigError(
                f"vocabulary_text={str(text)!r} was given with vocabulary={words!r}, a file that "
                "lists the tokens; leave vocabulary_text out, or give vocabulary='auto'"
            )
        return cls(file=Path(words))
