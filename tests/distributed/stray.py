"""A follower for tests, ``python -m tests.distributed.stray``: meets the others, adds and fails as
it is told."""

from __future__ import annotations

import sys
import time

import torch

from trtspec.distributed.follower import Follower
from trtspec.ops.collectives import all_reduce


def main(numbers: str) -> int:
    follower = Follower.of(numbers)
    group = follower.group.tensor

    def fail(reason: str) -> None:
        raise ValueError(reason)

    try:
        all_reduce(torch.zeros(1), group)
        follower.follow(
            {
                "add": lambda x: all_reduce(x * (follower.group.rank + 1), group),
                "fail": fail,
                "end": sys.exit,
                "sleep": time.sleep,
            }
        )
    except ValueError as error:
        follower.fail(str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
