"""What is left of a machine within the limits of a container; cpp/tests/test_host.cpp has more."""

from __future__ import annotations

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

import trtspec.backends.device as device
from trtspec.backends.device import free_memory
from trtspec.ops.host import available_memory, usable_cpus

V2 = "29 24 0:25 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n"
V1 = "".join(
    f"{30 + i} 24 0:{26 + i} / /sys/fs/cgroup/{name} rw - cgroup cgroup rw,{name}\n"
    for i, name in enumerate(("memory", "cpu"))
)


def machine(root: Path, mounts: str, groups: str, **files: object) -> Path:
    """``a__b`` is the file ``a/b`` of the groups; ``memory_max`` is memory.max."""
    contents = {
        "proc/meminfo": "MemTotal: 9000 kB\nMemAvailable: 4000 kB\n",
        "proc/self/mountinfo": mounts,
        "proc/self/cgroup": groups,
    }
    for name, value in files.items():
        path = name.replace("__", "/").replace("memory_", "memory.").replace("cpu_", "cpu.")
        contents[f"sys/fs/cgroup/{path}"] = f"{value}\n"
    for name, text in contents.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def test_without_groups(tmp_path: Path) -> None:
    root = machine(tmp_path, "", "")
    assert available_memory(root) == 4000 * 1024
    assert usable_cpus(root) == len(os.sched_getaffinity(0))


def test_version_2(tmp_path: Path) -> None:
    stat = "inactive_file 30000\nactive_file 20000\nslab_reclaimable 10000\nanon 40000"
    inner = {"a__b__memory_max": 200000, "a__b__memory_current": 100000, "a__b__memory_stat": stat}
    root = machine(
        tmp_path, V2, "0::/a/b\n", **inner, a__memory_max="max", a__memory_current=1,
        a__cpu_max="100000 100000",
    )  # fmt: skip
    assert available_memory(root) == 160000
    assert usable_cpus(root) == 1


def test_version_1(tmp_path: Path) -> None:
    root = machine(
        tmp_path, V1, "3:memory:/a\n2:cpu:/a\n", memory__a__memory_limit_in_bytes=200000,
        memory__a__memory_usage_in_bytes=100000, cpu__a__cpu_cfs_quota_us=150000,
        cpu__a__cpu_cfs_period_us=100000,
    )  # fmt: skip
    assert available_memory(root) == 100000
    assert usable_cpus(root) == 1


def test_free_memory_of_a_container(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What caches are planned by."""
    root = machine(tmp_path, V2, "0::/\n", memory_max=5000, memory_current=2000)
    monkeypatch.setattr(device, "available_memory", partial(available_memory, root))
    assert free_memory("cpu") == 3000


_THREADS = """
import torch
torch.set_num_threads(64)  # of a machine with as many cores
from trtspec.ops.host import usable_cpus
print(torch.get_num_threads(), usable_cpus())
"""


@pytest.mark.slow
@pytest.mark.parametrize("chosen", [None, "3"])
def test_default_number_of_threads(chosen: str | None) -> None:
    """No more than can be kept busy, unless somebody chose it."""
    variables = {n: v for n, v in os.environ.items() if n not in ("OMP_NUM_THREADS",)}
    variables.pop("MKL_NUM_THREADS", None)
    if chosen is not None:
        variables["OMP_NUM_THREADS"] = chosen
    done = subprocess.run(
        [sys.executable, "-c", _THREADS], env=variables, capture_output=True, text=True, check=True
    )
    threads, usable = map(int, done.stdout.split())
    assert threads == (usable if chosen is None else 64)
