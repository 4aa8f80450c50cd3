"""Where and with what something was measured: the machine, versions, the commit."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from contextlib import suppress
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch

import trtspec
from trtspec.backends.device import total_memory
from trtspec.ops.host import usable_cpus
from trtspec.version import __version__

_INSTRUCTION_SETS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "amx_bf16", "amx_int8")


def machine() -> dict[str, Any]:
    """System, processor, cores, memory and GPU of this machine."""
    has_gpu = torch.cuda.is_available()
    return {
        "system": platform.platform(),
        "processor": processor(),
        "instruction_sets": instruction_sets(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cpus(),
        "memory_gib": round((total_memory("cpu") or 0) / 2**30, 1),
        "gpu": torch.cuda.get_device_name() if has_gpu else None,
    }


def processor() -> str:
    """The processor's own name."""
    return _cpuinfo("model name") or platform.processor() or platform.machine()


def instruction_sets() -> list[str]:
    """Those of the processor that products of weights can use; none if unknown."""
    flags = _cpuinfo("flags").split()
    return [name for name in _INSTRUCTION_SETS if name in flags]


def _cpuinfo(key: str) -> str:
    """What Linux says of the first core; empty elsewhere."""
    if sys.platform == "linux":
        with suppress(OSError):
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
                if line.startswith(key):
                    return line.partition(":")[2].strip()
    return ""


def versions(*packages: str) -> dict[str, str | None]:
    """Of trtspec, Python and the packages; None for one that is not installed."""
    return {
        "trtspec": __version__,
        "python": platform.python_version(),
        **{package: package_version(package) for package in packages},
    }


def package_version(package: str) -> str | None:
    """The version of an installed distribution, or None."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def commit() -> str | None:
    """The commit of the source tree that trtspec runs from, with ``-dirty`` if it has changes; None
    outside of a git checkout."""
    git, root = shutil.which("git"), Path(trtspec.__path__[0]).resolve().parent
    if git is None or not (root / ".git").exists():
        return None
    done = subprocess.run(
        [git, "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or None
