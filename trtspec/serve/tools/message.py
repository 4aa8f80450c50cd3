"""Message: an answer as its client sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """A tool that the model calls; ``arguments`` is the text of a JSON object."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """An answer, or what of one is certain so far: that grows, and nothing of it is taken back."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()


def held(text: str, *marks: str) -> int:
    """How many characters at the end of a text may be the beginning of one of the marks."""
    lengths = (n for mark in marks for n in range(1, len(mark)) if text.endswith(mark[:n]))
    return max(lengths, default=0)
