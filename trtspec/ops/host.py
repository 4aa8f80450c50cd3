"""What this process may have of its machine: the least of what the machine has and what each
control group above the process (v1 and v2, as containers are limited by) allows."""

from __future__ import annotations

from pathlib import Path

import torch

from trtspec.ops import native  # noqa: F401  registers the ops

ROOT = Path("/")


def available_memory(root: Path = ROOT) -> int:
    """Bytes of memory that can be had without swapping. Files that the kernel keeps in memory count
    as free, for the machine and within the limit of a group: after a build they may fill nearly all
    of it. ``root``: the folder that holds ``proc`` and ``sys``."""
    return int(torch.ops.trtspec._available_memory(str(root)))


def usable_cpus(root: Path = ROOT) -> int:
    """Processors that can be kept busy, at least 1: those that the process may run on, or fewer
    where a quota of processor time allows fewer; of a quota of 2.5 processors, 2."""
    return int(torch.ops.trtspec._usable_cpus(str(root)))
