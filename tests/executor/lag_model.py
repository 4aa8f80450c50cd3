"""A model whose K/V rows are digests of all that they saw, read back through block tables: a wrong
block, a stale row or a missing move changes the tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from trtspec.executor.step.request import Request

Rows = list[int | None]
"""The rows of a cache, by slot."""


@dataclass(frozen=True)
class Model:
    """nan_every: about one row in so many has no usable logits, 0 for none. skill: percent of the
    tokens that a draft finds. depth, width: of its trees. window: newest rows that one sees, itself
    included, 0 for all."""

    vocab: int
    salt: int
    nan_every: int
    skill: int
    depth: int
    width: int
    window: int = 0

    def row(self, token: int, before: Sequence[int | None]) -> int:
        """What a row holds behind these."""
        if self.window:
            before = before[max(len(before) - self.window + 1, 0) :]
        return hash((token, *before))

    def next(self, row: int, seed: int, index: int) -> int | None:
        """Output token ``index``, which a row emits; None: its logits are no numbers."""
        if self.nan_every and hash((row, self.salt)) % self.nan_every == 0:
            return None
        return hash((row, seed, index)) % self.vocab

    def tree(
        self, request: int, text: Sequence[int], index: int, nodes: int, depth: int
    ) -> tuple[list[int], list[int]]:
        """Drafts for output tokens ``index`` and on of a text that is known: tokens and parents. At
        each depth one child goes on, and before it there may be another one."""
        tokens: list[int] = []
        parents: list[int] = []
        parent = -1
        for level in range(min(depth, self.depth)):
            right = text[index + level] if index + level < len(text) else 0
            others = [(right + 1 + i) % self.vocab for i in range(self.width)]
            luck = hash((self.salt, request, index + level)) % 100
            if luck < self.skill:  # else the sibling may be right, where there is one
                others[-1] = right
            elif self.width > 1:
                others[0] = right
            tokens += others
            parents += [parent] * self.width
            parent = len(tokens) - 1
        return tokens[:nodes], parents[:nodes]


def truth(model: Model, request: Request) -> tuple[list[int], str]:
    """The text of a request without stop strings, and why it ends."""
    rows: list[int] = []
    for token in request.tokens[: request.num_prompt_tokens]:
        rows.append(model.row(token, rows))
    text: list[int] = []
    while True:
        token = model.next(rows[-1], request.seed, len(text))
        if token is None:
            return text, "error"
        text.append(token)
        if token in request.end_tokens:
            return text, "stop"
        if len(text) == request.max_output_tokens:
            return text, "length"
        rows.append(model.row(token, rows))


def digest(tokens: Sequence[int]) -> int:
    """What a state is that took in these, as well as `took_in` comes to it."""
    state = 1
    for token in tokens:
        state = took_in(state, token)
    return state


def took_in(state: int | None, token: int) -> int:
    """A state behind one more token."""
    return hash((state, token))


def slots(table: Sequence[int], block: int, first: int, end: int) -> list[int]:
    """Where positions lie; -1 behind a window."""
    return [
        table[p // block] * block + p % block if table[p // block] >= 0 else -1
        for p in range(first, end)
    ]


def feed(
    model: Model, cache: Rows, places: Sequence[int], context: int, tokens: Sequence[int]
) -> list[int]:
    """Write the rows of tokens behind ``context`` others."""
    seen = [cache[place] for place in places[:context]]
    written = []
    for token, place in zip(tokens, places[context:], strict=False):
        cache[place] = model.row(token, seen)
        seen.append(cache[place])
        written.append(model.row(token, seen[:-1]))
    return written


def feed_tree(
    model: Model,
    cache: Rows,
    places: Sequence[int],
    root: int,
    tree: tuple[Sequence[int], Sequence[int]],
) -> list[int]:
    """Write the rows of a tree's nodes behind the root's, which is there already."""
    seen = [cache[place] for place in places[: root + 1]]
    paths: list[list[int | None]] = []
    written = []
    for node, (token, parent) in enumerate(zip(*tree, strict=True)):
        above = paths[parent] if parent >= 0 else []
        place = places[root + 1 + node]
        cache[place] = model.row(token, [*seen, *above])
        paths.append([*above, cache[place]])
        written.append(model.row(token, [*seen, *above]))
    return written
