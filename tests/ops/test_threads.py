"""Threads that one thread's kernels leave behind."""

from __future__ import annotations

import subprocess
import sys

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
