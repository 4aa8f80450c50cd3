"""Followers: the other ranks, as rank 0 sees them."""

from __future__ import annotations

import json
import os
import subprocess
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Any

import torch
from torch import Tensor

from trtspec.backends.inputs import EngineInputs
from trtspec.backends.session import Session
from trtspec.child_python import python_command, python_environment
from trtspec.distributed.messages import Channel
from trtspec.errors import EngineError
from trtspec.log import logger
from trtspec.ops.collectives import RankGroup, all_reduce
from trtspec.ops.nccl import DeviceGroup, new_store

JOIN = "join"
"""What followers know by it: `DeviceGroup.over` the store at a port."""
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_SECONDS_TO_END = 5.0
"""How long a follower may take to exit before it is killed: it may hang in the kernel."""


class Followers:
    """The ranks other than the first, each a process. Closing it ends them; they end by themselves
    when this process is gone.

    group: rank 0's part of the group. fault: why nothing can be computed any more; None while it
    can.
    """

    def __init__(
        self, program: str, ranks: int, told: Sequence[str], devices: Sequence[str] = ()
    ) -> None:
        """``program``: the module that they run, with what `Follower.of` reads and then ``told`` as
        arguments. ``devices``: each rank's GPU, as CUDA_VISIBLE_DEVICES names it; empty: ranks are
        on CPUs."""
        self.fault: EngineError | None = None
        self._is_closed = False
        self._gpus: DeviceGroup | None = None
        memory = os.memfd_create("trtspec-ranks")
        try:
            os.ftruncate(memory, RankGroup.memory_bytes(ranks))
            self.group = RankGroup(memory, 0, ranks)
            self._channels: list[Channel] = []
            self._processes: list[subprocess.Popen[bytes]] = []
            for rank in range(1, ranks):
                own, theirs = Channel.pair()
                sees = {VISIBLE_DEVICES: devices[rank]} if devices else {}
                numbers = json.dumps([memory, theirs.fileno(), rank, ranks])
                self._channels.append(own)
                self._processes.append(
                    subprocess.Popen(
                        python_command("-m", program, numbers, *told),
                        pass_fds=(memory, theirs.fileno()),
                        stdin=subprocess.DEVNULL,
                        env=python_environment(**sees),
                        start_new_session=True,  # Ctrl-C is for rank 0, which ends them
                    )
                )
                theirs.close()
        finally:
            os.close(memory)
        self._watches = [
            threading.Thread(target=self._watch, args=(rank,), daemon=True)
            for rank in range(1, ranks)
        ]
        for watch in self._watches:
            watch.start()

    def meet(self) -> None:
        """Wait until all followers have opened their parts, and join them.

        Raises:
            EngineError: one failed, or is gone.
        """
        try:
            all_reduce(torch.zeros(1), self.group.tensor)
        except RuntimeError as error:
            raise self.fail(str(error)) from error

    def meet_on_gpus(self) -> None:
        """Let all ranks, which have met, exchange what lies on their GPUs as well.

        Raises:
            EngineError: see `new_store`, `DeviceGroup.over`, and `fault`.
        """
        ranks = self.group.ranks
        store = new_store(ranks)
        self.tell(JOIN, store.port)
        self._gpus = DeviceGroup.over(store, 0, ranks)

    def tell(self, name: str, given: Any) -> None:
        """Let each follower do what it knows by that name.

        Raises:
            EngineError: see `fault`.
        """
        self.check()
        for channel in self._channels:
            with suppress(OSError):  # it is gone, as its watch will say
                channel.send((name, given))

    def check(self) -> None:
        """Raise EngineError if there is a `fault`."""
        if self.fault is not None:
            raise EngineError(*self.fault.args)

    def fail(self, reason: str) -> EngineError:
        """The ranks are no longer in step: let all calls fail. The first reason is kept."""
        if self.fault is None:
            self.fault = EngineError(f"{reason}; make a new LLM")
            logger.error("the ranks end: %s", reason)
        self._end_calls()
        return self.fault

    def close(self) -> None:
        """End the followers."""
        self._is_closed = True
        self._end_calls()
        for channel in self._channels:
            channel.shut()
        for process in self._processes:
            try:
                process.wait(_SECONDS_TO_END)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for watch, channel in zip(self._watches, self._channels, strict=True):
            watch.join()
            channel.close()

    def _end_calls(self) -> None:
        self.group.end()
        if self._gpus is not None:
            self._gpus.close()

    def _watch(self, rank: int) -> None:
        channel, process = self._channels[rank - 1], self._processes[rank - 1]
        channel.has_ended()
        said = ""
        with suppress(EOFError, OSError):
            while True:
                said = str(channel.receive())
        if not self._is_closed:
            status = process.wait()
            how = f"was killed by signal {-status}" if status < 0 else f"ended with {status}"
            self.fail(f"rank {rank} of {self.group.ranks} {how}{said and ': '}{said}")


class LedSession:
    """A session of rank 0 whose calls all followers repeat, with their own caches."""

    def __init__(self, name: str, session: Session, followers: Followers) -> None:
        """``name``: of the session, at the followers."""
        self._name = name
        self._session = session
        self._followers = followers

    def run(self, inputs: EngineInputs) -> list[Tensor]:
        """See `Session.run`.

        Raises:
            EngineError: a rank failed, or is gone.
        """
        self._followers.tell(self._name, inputs._replace(caches=()))
        try:
            return self._session.run(inputs)
        except Exception as error:
            raise self._followers.fail(f"rank 0 failed ({error})") from error
