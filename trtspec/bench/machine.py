"""Where and with what something was measured: the machine, versions, the commit."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import trtspec
from trtspec.ops.host import usable_cpus
from trtspec.version import __version__


def machine() -> dict[str, Any]:
    """System, processor and cores of this machine."""
    return {
        "system": platform.platform(),
        "processor": processor(),
        "cores": os.cpu_count(),
        "usable_cores": usable_cpus(),
    }


def processor() -> str:
    """The processor's own name."""
    if sys.platform == "linux":
        try:
            for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
                if line.startswith("model name"):
                    return line.partition(":")[2].strip()
        except OSError:
            pass
    return platform.processor() or platform.machine()


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
    where it is no git checkout."""
    git, root = shutil.which("git"), Path(trtspec.__path__[0]).resolve().parent
    if git is None or not (root / ".git").exists():
        return None
    done = subprocess.run(
        [git, "-C", str(root), "describe", "--always", "--dirty", "--abbrev=12", "--exclude=*"],
        capture_output=True,
        text=True,
    )
    return done.stdout.strip() or None
