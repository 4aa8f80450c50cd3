"""LedCaches: the caches of a target that is split over ranks, as rank 0 has them."""

from __future__ import annotations

from torch import Tensor

from trtspec.distributed.followers import Followers
from trtspec.executor.engines.kv_tensors import KVTensors

COMPACT, COPY_STATES = "compact", "copy_states"
"""What followers know the moves of rows and states by: as methods of theirs."""


class LedCaches(KVTensors):
    """Those of rank 0, whose rows and states all followers move with it."""

    _followers: Followers

    @classmethod
    def of(cls, caches: KVTensors, followers: Followers) -> LedCaches:
        """The same memory, led."""
        led = cls(caches.caches, caches.kinds, caches.dtype, caches.layout)
        led._followers = followers
        return led

    def compact(self, source: Tensor, wanted: Tensor) -> None:
        """See `KVTensors.compact`. EngineError: a rank is gone."""
        self._followers.tell(COMPACT, (source, wanted))
        super().compact(source, wanted)

    def copy_states(self, source: Tensor, wanted: Tensor) -> None:
        """See `KVTensors.copy_states`. EngineError: a rank is gone."""
        self._followers.tell(COPY_STATES, (source, wanted))
        super().copy_states(source, wanted)
