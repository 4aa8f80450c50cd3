"""Threads that one thread's kernels leave behind."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, threading, torch
from trtspec.ops.threads import release_threads
torch.set_num_threads(3)
def count():
    return len(os.listdir("/proc/self/task"))
before = count()
big = torch.ones(1 << 22)
for _ in range(2):
    assert float((big + 1).sum()) == 2 << 22
    assert count() == before + 2, (before, count())
    release_threads()
    assert count() == before, (before, count())
"""


def test_threads_end_and_come_again() -> None:
    """In a process of its own, where nothing else has started any."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
