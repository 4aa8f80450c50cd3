"""Balancer: which replica a request goes to, by what each has cached and how busy it is."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence

from trtspec.serve.replicas.prefix_index import BLOCK_TOKENS, PrefixIndex

PREFIX_AWARE, RANDOM = POLICIES = ("prefix_aware", "random")

SEQUENCE_TOKENS = 64
"""How many tokens of a prompt must be cached at a replica to make up for one sequence more that is
under way there. A smaller number computes fewer prompts twice, a larger one spreads the load more
evenly: requests with 1,000 tokens in common stay together up to a lead of 16."""


class _Replica:
    def __init__(self) -> None:
        self.index = PrefixIndex()
        self.requests: dict[str, int] = {}  # their sequences

    @property
    def busy(self) -> int:
        return sum(self.requests.values())


class Balancer:
    """Ranks the replicas that serve at present.

    ``prefix_aware``: first the one where the least is left to compute, in tokens: those of the
    prompt that are not cached there, and `SEQUENCE_TOKENS` for each sequence under way. Among
    equals the less busy one, then the one that remembers less. ``random``: any order.

    Not bound to Ray; used by one thread.
    """

    def __init__(self, policy: str, seed: int | None = None) -> None:
        self._policy = policy
        self._random = random.Random(seed)
        self._replicas: dict[str, _Replica] = {}
        self._homes: dict[str, str] = {}  # of requests under way

    def update(self, names: Iterable[str]) -> None:
        """These take requests from now on; all about others is forgotten."""
        self._replicas = {name: self._replicas.get(name) or _Replica() for name in names}
        self._homes = {r: home for r, home in self._homes.items() if home in self._replicas}

    def rank(self, blocks: Sequence[int]) -> list[str]:
        """All replicas, the best one first, for a prompt with these `block_hashes`."""
        names = list(self._replicas)
        if self._policy == RANDOM:
            self._random.shuffle(names)
        else:
            names.sort(key=lambda name: self._cost(self._replicas[name], blocks))
        return names

    def began(self, request: str, name: str, blocks: Sequence[int], num_sequences: int = 1) -> None:
        """A request goes to a replica, and no longer to where it went before."""
        self.ended(request)
        replica = self._replicas.get(name)
        if replica is not None:
            replica.index.add(blocks)
            replica.requests[request] = num_sequences
            self._homes[request] = name

    def ended(self, request: str) -> None:
        """It is no longer under way, whatever its end; unknown ones are ignored."""
        home = self._homes.pop(request, None)
        if home is not None:
            del self._replicas[home].requests[request]

    def _cost(self, replica: _Replica, blocks: Sequence[int]) -> tuple[int, int, int]:
        missing = (len(blocks) - replica.index.match(blocks)) * BLOCK_TOKENS
        return missing + SEQUENCE_TOKENS * replica.busy, replica.busy, len(replica.index)
