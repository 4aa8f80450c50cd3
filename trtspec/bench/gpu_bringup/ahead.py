"""Part ``ahead``: steps that are launched ahead of earlier results, beside those that wait for
them.

In the first form running requests are kept on the device, and a step is two graphs; in the second
the host packs each step's rows. The texts of both are the same.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from trtspec.bench.gpu_bringup.engines import CHAINS, Opened, Scale
from trtspec.bench.gpu_bringup.part import Case, Place
from trtspec.bench.gpu_bringup.steps import profile, step

_METHODS = CHAINS.methods[:2]
"""No drafts, and those of a head: others adapt to what the host learns, which cannot be ahead."""
_LARGEST = 8
"""Requests of the largest batch: in a larger one the host's part of a step is small."""


def cases(place: Place) -> Iterable[Case]:
    scale, opened = Scale.of(place), Opened(place, CHAINS)
    batches = [batch for batch in scale.batches if batch <= _LARGEST]
    for method in _METHODS:
        for steps_ahead in (0, 1):
            run = partial(opened, steps_ahead=steps_ahead)
            for batch in batches:
                key = {"method": method, "steps ahead": steps_ahead, "batch": batch}
                yield Case(key, partial(step, scale, run, method, batch, 0.0, 0))
            key = {"what a step consists of": method, "steps ahead": steps_ahead}
            yield Case(key, partial(profile, scale, run, method, batches[0]))
