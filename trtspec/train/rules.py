"""Rules for which of a model's texts are not worth learning from."""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence
from hashlib import blake2b

LOOP_TOKENS, LOOP_PERIOD = 48, 16
VARIETY_TOKENS, VARIETY = 32, 0.3
RULES = {
    "short": "fewer tokens than asked",
    "unfinished": "a question that does not end by itself",
    "special": "a special token within",
    "broken": "bytes that are no characters",
    "loop": f"its last {LOOP_TOKENS} tokens repeat with a period of at most {LOOP_PERIOD}",
    "monotone": f"of {VARIETY_TOKENS} tokens or more, less than {VARIETY:.0%} of all runs of three "
    "are different ones",
    "duplicate": "written before, but for case and spaces",
    "long": "a prompt that leaves no room for an answer",
}
"""Name and meaning."""


def fault(
    ids: Sequence[int], text: str, special: Collection[int], least: int, must_end: bool, ended: bool
) -> str | None:
    """The first of `RULES` that drops a text, except "duplicate" and "long"; None if it is kept.
    ``ids``: its tokens without the end token. ``special``: ids that must not occur in a text."""
    if len(ids) < least:
        return "short"
    if must_end and not ended:
        return "unfinished"
    if any(token in special for token in ids):
        return "special"
    if "\N{REPLACEMENT CHARACTER}" in text[:-4]:  # a text may be cut within a character
        return "broken"
    if _loops(ids):
        return "loop"
    runs = list(zip(ids, ids[1:], ids[2:], strict=False))
    if len(ids) >= VARIETY_TOKENS and len(set(runs)) < VARIETY * len(runs):
        return "monotone"
    return None


def key_of(text: str) -> str:
    """The same for texts that differ only in case and spaces."""
    plain = re.sub(r"\s+", " ", text.strip().lower())
    return blake2b(plain.encode("utf-8", "replace"), digest_size=12).hexdigest()


def _loops(ids: Sequence[int]) -> bool:
    tail = list(ids[-LOOP_TOKENS:])
    if len(tail) < LOOP_TOKENS:
        return False
    return any(tail[period:] == tail[:-period] for period in range(1, LOOP_PERIOD + 1))
