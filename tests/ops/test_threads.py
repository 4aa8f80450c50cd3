"""Who has how many threads."""

from __future__ import annotations

import subprocess
import sys

import pytest

PROGRAM = """
import os, threading, torch
from trtspec.ops.linear import linear, pack_linear
from trtspec.ops.threads import take_threads
torch.set_num_threads(3)
big, x, weight = torch.ones(1 << 22), torch.randn(64, 512), torch.randn(4096, 512)
packed = pack_linear(weight)
def tasks():
    return set(os.listdir("/proc/self/task"))
def run():
    take_threads()
    others = tasks()
    assert float((big + 1).sum()) == 2 << 22
    assert tasks() <= others, "torch's own ops started threads"
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


@pytest.mark.slow
def test_kernels_take_the_threads_of_torch() -> None:
    """In a process of its own, where nothing else starts any."""
    subprocess.run([sys.executable, "-c", PROGRAM], check=True)
