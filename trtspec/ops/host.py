"""What this process may use of its machine: the minimum of what the machine has and what each
control group above the process (v1 and v2, as for containers) allows."""

from __future__ import annotations

from pathlib import Path

import torch

from trtspec.ops import native  # noqa: F401  registers the ops

ROOT = Path("/")


def available_memory(root: Path = ROOT) -> int:
    """Bytes of memory available without swapping. Files that the kernel caches count as free, for
    the machine and within the limit of a group: after a build they may fill nearly all of it.
    ``root``: the folder that contains ``proc`` and ``sys``."""
    return int(torch.ops.trtspec._available_memory(str(root)))


def usable_cpus(root: Path = ROOT) -> int:
    """Processors that can be kept busy, at least 1: those that the process may run on, or fewer if
    a quota of processor time allows fewer; for a quota of 2.5 processors, 2."""
    return int(torch.ops.trtspec._usable_cpus(str(root)))
