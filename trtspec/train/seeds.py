"""How users' turns begin: without a hint an instruct model asks for advice and little else."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Seed:
    """words: the first ones of a user's turn; the target writes the rest. pastes: a text follows,
    as users paste it, which need not end by itself."""

    words: str
    pastes: bool = False


_FREE = Seed("")

SEEDS: tuple[Seed, ...] = (
    _FREE,
    Seed("Write a short story about"),
    Seed("Summarize the following article:\n\n", pastes=True),
    Seed("Who was the first"),
    Seed("Write a Python function that"),
    _FREE,
    Seed("Translate the following sentence into German:"),
    Seed("A shop sells"),
    Seed("Use the passages below to answer the question.\n\nPassage 1:", pastes=True),
    Seed("Explain how"),
    Seed("Write an email to"),
    _FREE,
    Seed("When did"),
    Seed("Rewrite this paragraph in plain words:\n\n", pastes=True),
    Seed("Solve the equation"),
    Seed("Translate this German sentence into English:"),
    Seed("Pretend that you are"),
    Seed("List all names, places and dates in the text below as JSON.\n\n", pastes=True),
    _FREE,
    Seed("What is the name of"),
    Seed("Give the key points of this text:\n\n", pastes=True),
    Seed("Find the mistake in this program:\n\n```python\n", pastes=True),
    Seed("Compare"),
    Seed("If a train"),
    Seed("Where is"),
    Seed("Translate into French:"),
    Seed("Discuss the causes of"),
    Seed("Anna has"),
    Seed("Write a blog post about"),
)
"""Used in rotation, by the number of a text."""

SYSTEMS: tuple[str | None, ...] = (
    *(None, None, "You are a helpful assistant.", None, "Answer briefly and to the point."),
)
"""System turns, used in rotation; None: what the chat template says without one. Their number, that
of `SEEDS` and that of the answers' temperatures are coprime, so that all combinations occur."""
