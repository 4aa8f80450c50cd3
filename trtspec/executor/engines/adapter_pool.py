"""AdapterPool: which adapter lies where among those that an engine has room for."""

from __future__ import annotations

from collections.abc import Sequence

from trtspec.models.adapters import AdaptedLayer, Adapter, place_adapter


class AdapterPool:
    """The places of an engine's adapters. An adapter keeps its place while requests use it; of
    those that none uses, the least recently used makes room for another.

    num_placed: how often an adapter was put into a place.
    """

    def __init__(self, layers: Sequence[AdaptedLayer], number: int) -> None:
        """``layers``: of the engine, which have ``number`` places, all of them empty."""
        self.num_placed = 0
        self._layers = layers
        self._empty = list(range(number))[::-1]
        self._places: dict[int, int] = {}  # by adapters' numbers, the least recently used first
        self._users: dict[int, int] = {}

    def take(self, adapter: Adapter) -> int | None:
        """The place of an adapter, for one request until `give_back`; None: requests use all
        places for others."""
        number = adapter.number
        place = self._places.pop(number, None)
        if place is None:
            place = self._make_room()
            if place is None:
                return None
            place_adapter(self._layers, place, adapter)
            self.num_placed += 1
        self._places[number] = place
        self._users[number] = self._users.get(number, 0) + 1
        return place

    def give_back(self, adapter: Adapter) -> None:
        """A request that took its place has ended."""
        self._users[adapter.number] -= 1
        if not self._users[adapter.number]:
            del self._users[adapter.number]

    def check_invariants(self) -> None:
        """AssertionError unless every place is empty or one adapter's, and used ones have theirs;
        for tests."""
        count = len(self._empty) + len(self._places)
        assert sorted([*self._empty, *self._places.values()]) == list(range(count))
        assert self._users.keys() <= self._places.keys() and all(self._users.values())

    @property
    def in_use(self) -> int:
        """Adapters that requests use."""
        return len(self._users)

    def _make_room(self) -> int | None:
        if self._empty:
            return self._empty.pop()
        unused = next((number for number in self._places if number not in self._users), None)
        return None if unused is None else self._places.pop(unused)
