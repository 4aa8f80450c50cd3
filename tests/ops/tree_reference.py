"""TokenTree in plain Python: lists, integers as bit sets. What C++ must do alike."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class PlainTree:
    """See `trtspec.ops.tree.TokenTree`."""

    tokens: list[int]
    parents: list[int]

    @classmethod
    def merge(cls, trees: Iterable[PlainTree]) -> PlainTree:
        index: dict[tuple[int, int], int] = {}  # (parent in the union, token) -> node of the union
        for tree in trees:
            mapped: list[int] = []
            for token, parent in zip(tree.tokens, tree.parents, strict=True):
                key = (mapped[parent] if parent >= 0 else -1, token)
                mapped.append(index.setdefault(key, len(index)))
        return cls([token for _, token in index], [parent for parent, _ in index])

    @property
    def depths(self) -> list[int]:
        depths: list[int] = []
        for parent in self.parents:
            depths.append(depths[parent] + 1 if parent >= 0 else 1)
        return depths

    def without(self, tokens: Collection[int]) -> PlainTree:
        keep: list[bool] = []
        for token, parent in zip(self.tokens, self.parents, strict=True):
            keep.append(token not in tokens and (parent < 0 or keep[parent]))
        return self.select([i for i, kept in enumerate(keep) if kept])

    def select(self, kept: list[int]) -> PlainTree:
        new_index = {-1: -1, **{node: new for new, node in enumerate(kept)}}
        return PlainTree([self.tokens[i] for i in kept], [new_index[self.parents[i]] for i in kept])

    def mask(self, words: int) -> list[list[int]]:
        """Rows of int64 words, as the ``tree_mask`` of an engine call."""
        seen = [1]
        for node, parent in enumerate(self.parents):
            seen.append(seen[parent + 1] | (2 << node))
        return [
            [
                int.from_bytes(
                    bits.to_bytes(8 * words, "little")[8 * w : 8 * w + 8], "little", signed=True
                )
                for w in range(words)
            ]
            for bits in seen
        ]

    def path(self, node: int) -> tuple[int, ...]:
        path: list[int] = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return tuple(reversed(path))
