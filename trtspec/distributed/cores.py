"""Which cores a rank computes on."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_CPUS = Path("/sys/devices/system/cpu")


def keep_to_share(rank: int, ranks: int) -> None:
    """Restrict the calling thread, and threads that it starts later, to the rank's share of the
    cores that it may use now. With fewer cores than ranks there is no restriction: ranks share
    them."""
    cores = sorted(os.sched_getaffinity(0), key=_place)
    share = len(cores) // ranks
    if share:
        os.sched_setaffinity(0, cores[rank * share : (rank + 1) * share])


def _place(cpu: int) -> tuple[int, ...]:
    """A processor's location: its socket, and its core there. So a rank gets whole cores, of one
    socket where they divide evenly, and shares none with another rank."""
    folder = _CPUS / f"cpu{cpu}" / "topology"
    try:
        socket, core = (
            int((folder / name).read_text()) for name in ("physical_package_id", "core_id")
        )
    except (OSError, ValueError):  # the system does not tell
        socket, core = 0, cpu
    return socket, core, cpu


@contextmanager
def kept_to_share(rank: int, ranks: int) -> Iterator[None]:
    """The same as a context manager."""
    before = os.sched_getaffinity(0)
    keep_to_share(rank, ranks)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)
