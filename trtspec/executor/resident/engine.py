"""ResidentEngine: a target that keeps running requests on its device, and the patches it gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from torch import Tensor

from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult


@dataclass(frozen=True, slots=True)
class Entered:
    """A request that the device holds from now on, replacing whatever it held under its id.

    request: its id, sampling options, seed, ends and lengths. tokens: prompt and output so far,
    including prompt chunks to come. committed: valid rows in the target's cache. drafted, absent:
    for each draft cache, the `committed` and `absent` of a `DraftCache`.
    """

    request: Request
    tokens: Sequence[int]
    committed: int
    drafted: Sequence[int]
    absent: Sequence[int]


@dataclass(frozen=True, slots=True)
class Patch:
    """What a launch tells the device; it knows everything else.

    plan: which rows to feed, and how many nodes each request may have. For a generating request
    ``start`` is its minimum, and blocks are those of ``tables``. removed: ids to forget; unknown
    ones are ignored. entered: requests, before they are fed for the first time. tables: by id, the
    block tables in the target's cache and in each draft's, int32 [n], where they have changed.
    """

    plan: StepPlan
    removed: Sequence[int]
    entered: Sequence[Entered]
    tables: Mapping[int, tuple[Tensor, ...]]


class ResidentEngine(Protocol):
    """A target and its drafts that advance by themselves: lengths, newest tokens, trees, sampling
    columns, ends and block tables are kept on the device.

    Launches run in order. Each drafts, verifies, accepts and compacts accepted rows in the target's
    cache; a request whose text has ended by its tokens emits nothing.
    """

    def holds(self, request: Request) -> bool:
        """Whether the device can hold the request."""
        ...

    def launch(self, patch: Patch) -> Any:
        """Start a step; returns immediately with a handle for `collect`. If it raises, nothing was
        started, but the patch may have been applied; its requests will be removed."""
        ...

    def collect(self, handle: Any) -> StepResult:
        """Wait for the oldest launched step: a value per item of its plan, and the drafts that were
        verified. If it raises, nothing of the step is running any more."""
        ...

    def leave(self, request: Request, committed: int) -> None:
        """The next step of a request that the device holds runs elsewhere, and nothing is in
        flight; a patch will remove it. ``committed``: valid rows in the target's cache."""
        ...
