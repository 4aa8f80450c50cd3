"""LedCaches: rank 0's caches of a network that is split over ranks."""

from __future__ import annotations

from torch import Tensor

from trtspec.distributed.followers import Followers
from trtspec.executor.engines.kv_tensors import KVTensors

COMPACT, COPY_STATES = "compact", "copy_states"
"""What followers know the moves of rows and states by, behind a network: as methods of theirs."""


def call_name(network: str, what: str) -> str:
    """What followers know a call by: a graph's, or a move in its caches, of the network in a folder
    of the engine's."""
    return f"{network}/{what}"


class LedCaches(KVTensors):
    """Rank 0's caches; all followers move their rows and states along with them."""

    _network: str
    _followers: Followers

    @classmethod
    def of(cls, caches: KVTensors, network: str, followers: Followers) -> LedCaches:
        """The same memory, led; ``network``: the folder of theirs in the engine's."""
        led = cls(caches.caches, caches.kinds, caches.dtype, caches.layout)
        led._network, led._followers = network, followers
        return led

    def compact(self, source: Tensor, wanted: Tensor) -> None:
        """See `KVTensors.compact`. EngineError: a rank is gone."""
        self._followers.tell(call_name(self._network, COMPACT), (source, wanted))
        super().compact(source, wanted)

    def copy_states(self, source: Tensor, wanted: Tensor) -> None:
        """See `KVTensors.copy_states`. EngineError: a rank is gone."""
        self._followers.tell(call_name(self._network, COPY_STATES), (source, wanted))
        super().copy_states(source, wanted)
