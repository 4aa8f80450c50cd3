"""A rank other than the first: ``python -m trtspec.llmapi.rank``, started by `Followers`.

Its arguments: what `Follower.of` reads, the engine folder, and the folders in it of split drafts.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from trtspec.backends.inputs import EngineInputs
from trtspec.backends.session import Session
from trtspec.backends.shape import TARGET
from trtspec.distributed.cores import keep_to_share
from trtspec.distributed.follower import Follower
from trtspec.distributed.followers import JOIN
from trtspec.engine.folder import EngineConfig
from trtspec.engine.graphs import MODEL, REPLAY
from trtspec.engine.open import open_sessions
from trtspec.executor.engines.kv_tensors import KVTensors
from trtspec.executor.schedule.led_caches import COMPACT, COPY_STATES, call_name
from trtspec.llmapi.cache_sizes import CacheSizes, draft_tensors
from trtspec.ops.collectives import all_reduce
from trtspec.ops.nccl import DeviceGroup, store_at
from trtspec.ops.threads import take_threads

RANK_PROGRAM = "trtspec.llmapi.rank"
OPEN = "open"
"""What a rank knows the making of a network's caches by."""


class Rank:
    """The sessions of a rank, of the target and of drafts that are split as well, over caches of
    its own."""

    def __init__(self, folder: Path, drafts: Sequence[str], follower: Follower) -> None:
        self._group = follower.group
        self._engine = engine = EngineConfig.read(folder)
        self._drafts = {each.folder: each for each in engine.drafts if each.folder in drafts}
        self._caches: dict[str, KVTensors] = {}
        opened = open_sessions(folder, engine, [*self._drafts.values()], group=follower.group)
        sessions = {TARGET: {MODEL: opened.target}}
        if opened.replay is not None:
            sessions[TARGET][REPLAY] = opened.replay
        sessions |= {draft.plan.folder: draft.sessions for draft in opened.drafts}
        self.calls: dict[str, Callable[[Any], object]] = {OPEN: self._open, JOIN: self._join}
        for network, graphs in sessions.items():
            for name, session in graphs.items():
                self.calls[call_name(network, name)] = self._call_of(network, session)
            for name in (COMPACT, COPY_STATES):
                self.calls[call_name(network, name)] = self._move_of(network, name)

    def _join(self, port: int) -> None:
        ranks = self._group.ranks
        self._gpus = DeviceGroup.over(store_at(port, ranks), self._group.rank, ranks)

    def _open(self, given: tuple[str, CacheSizes | None]) -> None:
        """``given``: a network, and what its own caches have room for; the target comes first."""
        network, sizes = given
        if network == TARGET:
            assert sizes is not None, "a target has caches"
            self._caches[network] = sizes.caches(self._engine, self._engine.target)
            return
        draft, target = self._drafts[network], self._caches[TARGET]
        found = draft_tensors(self._engine, draft, target, sizes)
        assert found is not None, "a draft that is split reads K/V"
        self._caches[network] = found

    def _call_of(self, network: str, session: Session) -> Callable[[EngineInputs], object]:
        def call(inputs: EngineInputs) -> object:
            placed = inputs.filled(map(self._placed, inputs.flat()))
            return session.run(placed._replace(caches=self._caches[network].all))

        return call

    def _move_of(self, network: str, name: str) -> Callable[[tuple[Tensor, Tensor]], object]:
        return lambda slots: getattr(self._caches[network], name)(*map(self._placed, slots))

    def _placed(self, told: Tensor) -> Tensor:
        return told.to(self._engine.build.device)


def main(numbers: str, folder: str, *drafts: str) -> int:
    """1 where something failed, of which rank 0 is told."""
    follower = Follower.of(numbers)
    keep_to_share(follower.group.rank, follower.group.ranks)
    try:
        rank = Rank(Path(folder), drafts, follower)
        all_reduce(torch.zeros(1), follower.group.tensor)  # `Followers.meet`
        take_threads(follower.group.ranks)
        follower.follow(rank.calls)
    except Exception as error:
        follower.fail(f"{type(error).__name__}: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
