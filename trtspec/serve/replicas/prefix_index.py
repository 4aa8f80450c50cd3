"""PrefixIndex: the beginnings of prompts that a replica's cache probably holds."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence

BLOCK_TOKENS = 16
"""Tokens that are told apart as one. Fewer take more memory and time for a prompt; with more than
in a block of an engine's cache, short beginnings in common would be missed."""

CAPACITY = 2**16
"""Blocks that are remembered of a replica, at about 100 bytes each. More than its cache holds lead
requests to where the beginning was dropped; with fewer, what it still has is forgotten."""


class PrefixIndex:
    """The blocks of the prompts that a replica was sent last, at most ``capacity`` of them.

    Only the replica's cache knows what it still has. This is a guess by the same rule: those that
    were not used for longest are dropped first.
    """

    def __init__(self, capacity: int = CAPACITY) -> None:
        self._capacity = capacity
        self._blocks: OrderedDict[int, None] = OrderedDict()

    def __len__(self) -> int:
        return len(self._blocks)

    def match(self, blocks: Sequence[int]) -> int:
        """How many of a prompt's first `block_hashes` are held, without a gap."""
        for number, block in enumerate(blocks):
            if block not in self._blocks:
                return number
        return len(blocks)

    def add(self, blocks: Sequence[int]) -> None:
        """The replica is sent a prompt with these `block_hashes`."""
        # From its end, so that the end is dropped first: without its beginning it is not found.
        for block in reversed(blocks[: self._capacity]):
            self._blocks[block] = None
            self._blocks.move_to_end(block)
        while len(self._blocks) > self._capacity:
            self._blocks.popitem(last=False)


def block_hashes(tokens: Sequence[int], salt: str = "") -> list[int]:
    """A number for each whole block, which stands for it and all before it; of use within this
    process. ``salt``: what else K/V depend on, such as the name of an adapter. Two prompts with the
    same number by chance only share a replica."""
    found, before = [], hash(salt)
    for end in range(BLOCK_TOKENS, len(tokens) + 1, BLOCK_TOKENS):
        before = hash((before, *tokens[end - BLOCK_TOKENS : end]))
        found.append(before)
    return found
