"""StopStrings: finds stop strings in a growing text, part of which may be hidden."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping


class StopStrings:
    """The visible text of one request, and the strings that end it.

    A string that contains a hidden token is searched in the whole text, with hidden tokens in
    place; the others in the visible text. Positions count visible characters.
    """

    def __init__(self, strings: Iterable[str], hidden: Mapping[int, str]) -> None:
        """`hidden`: id -> text of the tokens that are not shown."""
        strings = tuple(strings)
        names = set(hidden.values()) if strings else set()
        whole = tuple(s for s in strings if any(name in s for name in names))
        self._order = {string: i for i, string in enumerate(strings)}
        self._shown = _Search(tuple(s for s in strings if s not in whole))
        self._whole = _Search(whole) if whole else None
        self._hidden = hidden
        self._has_strings = bool(strings)
        self._places: list[int] = []  # of hidden tokens in the whole text
        self._sizes = [0]  # characters of the hidden tokens so far

    @property
    def text(self) -> str:
        return self._shown.text

    @property
    def decided_text(self) -> str:
        """The text that belongs to no stop string, whatever follows."""
        if not self._has_strings:
            return self.text
        decided = self._shown.num_decided
        if self._whole is not None:
            decided = min(decided, self._place(self._whole.num_decided))
        return self.text[:decided]

    def append(self, token: int | None, shown: str) -> None:
        """Append a token, or None, and the characters that it makes visible."""
        self._shown.text += shown
        if self._whole is None:
            return
        self._whole.text += shown
        name = self._hidden.get(token) if token is not None else None
        if name is not None:
            self._places.append(len(self._whole.text))
            self._sizes.append(self._sizes[-1] + len(name))
            self._whole.text += name

    def find(self) -> tuple[int, str] | None:
        """Where a stop string begins, and which: the one that begins first among those that end in
        what is new since the last call; among equals the one that was given first."""
        if not self._has_strings:
            return None
        hits = self._shown.find()
        if self._whole is not None:
            hits += [(self._place(begin), string) for begin, string in self._whole.find()]
        return min(hits, key=lambda hit: (hit[0], self._order[hit[1]])) if hits else None

    def cut(self, begin: int, end: str) -> None:
        """End the text at a position, followed by this."""
        self._shown.text = self.text[:begin] + end

    def _place(self, position: int) -> int:
        """A position of the whole text in the visible text; the same for all of a hidden token."""
        before = bisect_left(self._places, position)
        hidden = self._sizes[before]
        if before:
            end = self._places[before - 1] + hidden - self._sizes[before - 1]
            hidden -= max(end - position, 0)
        return position - hidden


class _Search:
    """One text and the strings that are searched in it."""

    def __init__(self, strings: tuple[str, ...]) -> None:
        self.text = ""
        self._strings = strings
        self._searched = 0

    def find(self) -> list[tuple[int, str]]:
        """Begin and string, for each that ends in what is new since the last call."""
        searched, self._searched = self._searched, len(self.text)
        found = []
        for string in self._strings:
            position = self.text.find(string, max(searched - len(string) + 1, 0))
            if position >= 0:
                found.append((position, string))
        return found

    @property
    def num_decided(self) -> int:
        """Characters before the longest suffix of the text that begins one of the strings."""
        lengths = (n for s in self._strings for n in range(1, len(s)) if self.text.endswith(s[:n]))
        return len(self.text) - max(lengths, default=0)
