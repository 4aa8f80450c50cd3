"""Follower: a process that repeats what rank 0 does with the target."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any

from trtspec.distributed.messages import Channel
from trtspec.ops.collectives import RankGroup

Calls = Mapping[str, Callable[[Any], object]]
"""What a follower can be told to do, by name."""


class Follower:
    """This process as a rank. It exits when rank 0 is gone, even while a call waits for rank 0: a
    follower has nothing to save."""

    def __init__(self, memory: int, channel: Channel, rank: int, ranks: int) -> None:
        """``memory``: see `RankGroup`."""
        self.group = RankGroup(memory, rank, ranks)
        os.close(memory)
        self._channel = channel
        threading.Thread(target=self._end_with_leader, daemon=True).start()

    @classmethod
    def of(cls, argument: str) -> Follower:
        """The follower that `Followers` started with this argument."""
        memory, end, rank, ranks = json.loads(argument)
        return cls(memory, Channel.inherited(end), rank, ranks)

    def follow(self, calls: Calls) -> None:
        """Do what rank 0 says, in order, until it is gone."""
        while True:
            try:
                name, given = self._channel.receive()
            except EOFError:
                return
            calls[name](given)

    def fail(self, reason: str) -> None:
        """Tell rank 0 why this process ends."""
        with suppress(OSError):  # it is gone
            self._channel.send(reason)

    def _end_with_leader(self) -> None:
        # A fork of rank 0's process holds its end of the connection, too.
        leader = os.getppid()
        while os.getppid() == leader and not self._channel.has_ended(within=1.0):
            pass
        os._exit(0)
