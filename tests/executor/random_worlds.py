"""What the schedules of `random_schedules` are drawn from."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from trtspec.ops.sequence import UNLIMITED


@dataclass(frozen=True)
class World:
    """One random schedule. drafts: the lookahead of each draft cache; 0 is a draft model's, which
    keeps accepted rows of a rollout. draft_blocks: their block sizes, 0 is the target's. spare_*:
    what there is beyond the least that works; with few spare blocks requests are preempted.
    windows: of the target's cache and of the drafts', 0 is none. draft_lens: of which each request
    draws how deep it may be drafted for."""

    seed: int
    num_requests: int
    max_prompt: int
    max_output: int
    vocab: int
    block: int
    draft_blocks: tuple[int, int, int]
    spare_blocks: int
    draft_spare_blocks: tuple[int, int, int]
    batch: int
    spare_rows: int
    depth: int
    width: int
    drafts: tuple[int, ...]
    reuse: bool
    windows: tuple[int, int, int, int]
    draft_lens: tuple[int, ...]


CHOICES: dict[str, Sequence[Any]] = {
    "num_requests": range(1, 8),
    "max_prompt": (1, 6, 6, 20, 20),
    "max_output": (1, 4, 12, 40),
    "vocab": (2, 3, 8),
    "block": range(1, 5),
    "draft_blocks": ((0, 0, 0), (0, 0, 0), (0, 0, 0), (2, 0, 3), (3, 2, 0)),
    "spare_blocks": (0, 1, 2, 4, 12),
    "draft_spare_blocks": ((0, 0, 0), (1, 0, 3), (3, 12, 1), (12, 12, 12)),
    "batch": range(1, 6),
    "spare_rows": (0, 1, 4, 10, 30),
    "depth": range(5),
    "width": (1, 1, 2),
    "drafts": ((), (0,), (0,), (1,), (0, 1), (1, 2), (2, 0, 1), (1, 0, 1)),
    "reuse": (True, True, True, True, False),
    "windows": (*[(0, 0, 0, 0)] * 5, (3, 3, 3, 3), (5, 0, 8, 2), (0, 4, 1, 0)),
    "draft_lens": ((UNLIMITED,), (UNLIMITED,), (UNLIMITED, 0), (UNLIMITED, 0, 1, 2), (0,)),
}


def random_world(seed: int) -> World:
    rng = random.Random(seed)
    return World(seed, **{name: rng.choice(values) for name, values in CHOICES.items()})
