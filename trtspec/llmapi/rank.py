"""A rank other than the first: ``python -m trtspec.llmapi.rank``, started by `Followers`.

Arguments: those that `Follower.of` reads, and the engine folder.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trtspec.backends.inputs import EngineInputs
from trtspec.backends.session import Session
from trtspec.distributed.cores import keep_to_share
from trtspec.distributed.follower import Follower
from trtspec.engine.folder import EngineConfig
from trtspec.engine.graphs import MODEL, REPLAY
from trtspec.engine.open import open_sessions
from trtspec.executor.schedule.led_caches import COMPACT, COPY_STATES
from trtspec.llmapi.cache_sizes import CacheSizes
from trtspec.ops.collectives import all_reduce
from trtspec.ops.threads import take_threads

RANK_PROGRAM = "trtspec.llmapi.rank"
OPEN = "open"
"""The message that tells a rank how to allocate its caches."""


class Rank:
    """A rank's sessions of the target, over its own caches."""

    def __init__(self, folder: Path, follower: Follower) -> None:
        self._engine = EngineConfig.read(folder)
        opened = open_sessions(folder, self._engine, (), group=follower.group)
        sessions = {MODEL: opened.target, REPLAY: opened.replay}
        moves = {name: self._move_of(name) for name in (COMPACT, COPY_STATES)}
        self.calls: dict[str, Callable[[Any], object]] = {OPEN: self._open, **moves}
        for name, session in sessions.items():
            if session is not None:
                self.calls[name] = self._call_of(session)

    def _open(self, sizes: CacheSizes) -> None:
        self._caches = sizes.caches(self._engine, self._engine.target)

    def _call_of(self, session: Session) -> Callable[[EngineInputs], object]:
        return lambda inputs: session.run(inputs._replace(caches=self._caches.all))

    def _move_of(self, name: str) -> Callable[[tuple[Tensor, Tensor]], object]:
        return lambda slots: getattr(self._caches, name)(*slots)


def main(numbers: str, folder: str) -> int:
    """Returns 1 after a failure, which rank 0 is told about."""
    follower = Follower.of(numbers)
    keep_to_share(follower.group.rank, follower.group.ranks)
    try:
        rank = Rank(Path(folder), follower)
        all_reduce(torch.zeros(1), follower.group.tensor)  # `Followers.meet`
        take_threads(follower.group.ranks)
        follower.follow(rank.calls)
    except Exception as error:
        follower.fail(f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
