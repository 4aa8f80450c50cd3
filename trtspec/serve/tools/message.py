"""Message: an answer as its client sees it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Call:
    """A tool call by the model; ``arguments`` is the text of a JSON object."""

    name: str
    arguments: str


@dataclass(frozen=True)
class Message:
    """An answer, or the part of it that is certain so far; it only ever grows."""

    reasoning: str = ""
    content: str = ""
    calls: tuple[Call, ...] = ()


def held(text: str, *marks: str) -> int:
    """The number of characters at the end of a text that may begin one of the marks."""
    lengths = (n for mark in marks for n in range(1, len(mark)) if text.endswith(mark[:n]))
    return max(lengths, default=0)
