"""Threads that one thread's kernels leave behind."""

from __future__ import annotations

import subprocess
import sys

BUSY = """
import os, threading, torch
from trtspec.ops.linear import linear, pack_linear
from trtspec.ops.threads import release_threads, take_threads
torch.set_num_threads(3)
big, x, weight = torch.ones(1 << 22), torch.randn(64, 512), torch.randn(4096, 512)
packed = pack_linear(weight)
release_threads()
def tasks():
    return set(os.listdir("/proc/self/task"))
def run():
    take_threads()
    others = tasks()
    assert float((big + 1).sum()) == 2 << 22
    assert tasks() == others, "torch's own ops started threads"
    y = linear(x, packed, None, 4096)
    assert len(tasks() - others) == 2, "a kernel has not all threads"
    torch.testing.assert_close(y, x @ weight.t(), rtol=1e-4, atol=1e-3)
    failed.clear()
failed = [True]
thread = threading.Thread(target=run)
thread.start()
thread.join()
assert not failed
assert torch.get_num_threads() == 3, "another thread's setting changed"
"""

PROGRAM = """
import os, time, torch
from trtspec.ops.threads import release_threads
torch.set_num_threads(3)
others = set(os.listdir("/proc/self/task"))  # what imports have started may end at any time
def started():
    return set(os.listdir("/proc/self/task")) - others
big = torch.ones(1 << 22)
for _ in range(2):
    assert float((big + 1).sum()) == 2 << 22
    assert len(started()) == 2, started()
    release_threads()
    deadline = time.monotonic() + 10
    while started() and time.monotonic() < deadline:  # a thread leaves the list after it is joined
        time.sleep(0.001)
    assert not started(), started()
"""


def test_threads_end_and_come_again() -> None:
    """In a process of its own, where nothing else has started any."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)


def test_kernels_take_the_threads_of_torch() -> None:
    subprocess.run([sys.executable, "-c", BUSY], check=True)
