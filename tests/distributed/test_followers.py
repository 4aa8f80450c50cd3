"""Followers: told in order, watched, and gone when they should be."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import closing

import pytest
import torch
from torch import Tensor

from trtspec.backends.inputs import EngineInputs, RowInputs
from trtspec.child_python import python_environment
from trtspec.distributed.followers import Followers, LedSession
from trtspec.errors import EngineError
from trtspec.ops.collectives import all_reduce

PROGRAM = "tests.distributed.stray"


@pytest.fixture
def three() -> Iterator[Followers]:
    with closing(Followers(PROGRAM, 3, [])) as followers:
        followers.meet()
        yield followers


def pids(followers: Followers) -> list[int]:
    return [process.pid for process in followers._processes]


def wait_for_fault(followers: Followers) -> str:
    until = time.monotonic() + 20
    while followers.fault is None and time.monotonic() < until:
        time.sleep(0.01)
    return str(followers.fault)


def is_running(pid: int) -> bool:
    """Zombies do not count."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


class Sums:
    """A session whose calls are sums over the ranks."""

    def __init__(self, group: Tensor) -> None:
        self._group = group

    def run(self, inputs: EngineInputs) -> list[Tensor]:
        assert inputs.logits_rows is not None
        return [all_reduce(inputs.logits_rows.float(), self._group)]


def test_all_ranks_do_what_they_are_told_in_order(three: Followers) -> None:
    for x in (torch.ones(2, 3), torch.full((1, 1), 7.0), torch.arange(5.0).bfloat16()):
        three.tell("add", x)
        assert torch.equal(all_reduce(x, three.group.tensor), x * 6)


def test_a_led_session_tells_all_but_its_caches() -> None:
    """The inputs arrive as the named tuples that they were."""
    told = []

    class Told(Followers):
        def __init__(self) -> None:
            self.fault = None

        def tell(self, name: str, given: object) -> None:
            told.append((name, given))

    class Echo:
        def run(self, inputs: EngineInputs) -> list[Tensor]:
            return list(inputs.caches)

    rows = RowInputs(*(torch.zeros(1, dtype=torch.int64) for _ in RowInputs._fields))
    inputs = EngineInputs(rows=rows, logits_rows=torch.tensor([0]), caches=(torch.ones(1),))
    assert LedSession("model", Echo(), Told()).run(inputs) == [torch.ones(1)]
    assert told == [("model", inputs._replace(caches=()))]


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("fail", "no such block", "rank 1 of 3 ended with 1: no such block; make a new LLM"),
        ("end", 3, "ended with 3; make a new LLM"),
    ],
)
def test_why_a_rank_ended_is_told(three: Followers, name: str, given: object, words: str) -> None:
    three._channels[0].send((name, given))
    assert words in wait_for_fault(three)
    with pytest.raises(EngineError, match="rank 1 of 3"):
        three.tell("add", torch.ones(1))


def test_a_rank_that_is_killed_ends_a_call_that_waits_for_it(three: Followers) -> None:
    three.tell("sleep", 60)
    os.kill(pids(three)[1], signal.SIGKILL)
    session = LedSession("add", Sums(three.group.tensor), three)
    with pytest.raises(EngineError, match="rank 2 of 3 was killed by signal 9"):
        session.run(EngineInputs(logits_rows=torch.ones(2)))


def test_a_call_that_fails_at_the_first_rank_ends_the_group(three: Followers) -> None:
    class Fails:
        def run(self, inputs: EngineInputs) -> list[Tensor]:
            raise ValueError("out of memory")

    with pytest.raises(EngineError, match=r"rank 0 failed \(out of memory\); make a new LLM"):
        LedSession("add", Fails(), three).run(EngineInputs())
    with pytest.raises(RuntimeError, match="has ended"):
        all_reduce(torch.ones(1), three.group.tensor)


def test_closing_ends_all_even_one_that_is_busy() -> None:
    followers = Followers(PROGRAM, 3, [])
    followers.meet()
    followers._channels[0].send(("sleep", 600))
    followers.close()
    assert not any(map(is_running, pids(followers)))
    assert followers.fault is None, "nobody failed"


def test_followers_end_when_the_first_rank_is_killed() -> None:
    """However it dies, and though a fork of it lives on; one waits in a call, one for orders."""
    code = (
        "from trtspec.distributed.followers import Followers\n"
        f"f = Followers({PROGRAM!r}, 3, [])\n"
        "f.meet()\n"
        "import os, torch\n"
        "if not os.fork(): import time; time.sleep(40); os._exit(0)\n"
        "f._channels[0].send(('add', torch.ones(1)))\n"
        "print(*(p.pid for p in f._processes), flush=True)\n"
        "import time; time.sleep(600)\n"
    )
    leader = subprocess.Popen(
        [sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=python_environment()
    )
    assert leader.stdout is not None
    others = [int(pid) for pid in leader.stdout.readline().split()]
    assert len(others) == 2 and all(map(is_running, others))
    leader.kill()
    leader.wait()
    until = time.monotonic() + 20
    while any(map(is_running, others)) and time.monotonic() < until:
        time.sleep(0.01)
    assert not any(map(is_running, others))


def test_a_program_that_cannot_start_is_told() -> None:
    words = "rank 1 of 2 ended with 1"
    nowhere = Followers("tests.distributed.nowhere", 2, [])
    with closing(nowhere), pytest.raises(EngineError, match=words):
        nowhere.meet()
