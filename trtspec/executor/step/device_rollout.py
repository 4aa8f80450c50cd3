"""DeviceRollout: a rollout whose rows and trees stay on the device."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from torch import Tensor

from trtspec.backends.packing import RowGroup
from trtspec.executor.engines.model_engine import ModelEngine
from trtspec.executor.step.request import Request


class PendingStates(Protocol):
    """The target's hidden states that a drafter keeps because the draft was not fed them for good,
    in order of position."""

    def take(self, request: Request) -> Tensor | None:
        """The device drafts for the request from now on: its states ``[n, n*H]``, which are not
        kept any longer; None: there are none."""
        ...

    def give_back(self, request: Request, hidden: Tensor | None) -> None:
        """The host drafts for it again, from these; None: they are lost, so that the request goes
        on without drafts."""
        ...


class DraftRows(Protocol):
    """What a `DraftCache` says about a draft's rows."""

    def committed(self, request: Request) -> int:
        """See `DraftCache.committed`."""
        ...

    def block_table(self, request: Request) -> Tensor:
        """See `DraftCache.block_table`."""
        ...

    def rows(self, request: Request, start: int, tokens: Sequence[int]) -> RowGroup:
        """See `DraftCache.rows`."""
        ...


@dataclass(frozen=True)
class DeviceRollout:
    """A rollout over accepted tokens, or over the target's hidden states, in one engine call.

    pending: the states of requests that the host drafts for; None: it reads tokens alone, which can
    be fed at any time. max_depth: of its trees. behind, not_final:
    see `trtspec.ops.resident_step`. longest: tokens of the longest text that may have drafts; None:
    any.
    """

    engine: ModelEngine
    cache: DraftRows
    pending: PendingStates | None
    max_depth: int
    behind: int
    not_final: int
    longest: int | None
