"""Which cores a rank computes on."""

from __future__ import annotations

import os


def keep_to_share(rank: int, ranks: int) -> None:
    """Keep the calling thread, and threads that it starts from now on, to the rank's share of the
    cores that it may run on now. With fewer cores than ranks it stays free: they take turns."""
    cores = sorted(os.sched_getaffinity(0))
    share = len(cores) // ranks
    if share:
        os.sched_setaffinity(0, cores[rank * share : (rank + 1) * share])
