"""Worth: what a token of each request is worth, by when all of them will have ended."""

from __future__ import annotations

from collections.abc import Sequence, Set

import numpy as np
import numpy.typing as npt

from trtspec.executor.request import Request
from trtspec.executor.step_plan import ScheduledRequest

Floats = npt.NDArray[np.float64]

_SHARPNESS = 8.0
"""The exponent of the norm that stands for the longest time: 1 would be the sum of times, and a
large one their maximum, of which the times are known too badly."""

_FORESEEN = 256  # tokens: a text that may end by itself seldom does before so few
_MEMORY, _TRUST = 64.0, 8.0  # steps with drafts that a request's speed is a mean of; and all speeds


class Worth:
    """What a token of each request is worth where no other request waits.

    Where others wait, a request that ends makes room for one of them, and every token is worth the
    same. Where none does, a request that ends early leaves a smaller batch, which saves its row of
    each step to come and nothing else of it: all have ended when the last one has. So the tokens of
    a request count by how much they shorten the time until then. That time is the largest over the
    requests of the tokens it may still emit by its tokens a step; a p-norm of these stands for it,
    as they are estimates.
    """

    def __init__(self) -> None:
        self._all = _Speed()
        self._speeds: dict[int, _Speed] = {}

    def observe(self, request_id: int, tokens: int) -> None:
        """A request emitted so many tokens in a step that drafted."""
        self._all.observe(tokens)
        self._speeds.setdefault(request_id, _Speed()).observe(tokens)

    def release(self, request_id: int) -> None:
        """Forget a request; unknown ids are ignored."""
        self._speeds.pop(request_id, None)

    @property
    def live_requests(self) -> Set[int]:
        """The ids of requests that something is known of."""
        return self._speeds.keys()

    def of(self, requests: Sequence[Request], row_share: float) -> Floats | None:
        """Of a token of each request ``[B]``: 1 on the mean. ``row_share``: of the seconds of a
        step, those that its rows take. None: all the same, as it is not known when they end: where
        each may end at any time, each is as likely to be the last."""
        if not all(map(_is_foreseen, requests)):
            return None
        usual = self._all.mean(1.0)
        speeds = np.array(
            [self._speeds.get(request.id, _UNKNOWN).mean(usual) for request in requests]
        )
        steps = np.array([max(request.remaining_tokens, 1) for request in requests]) / speeds
        shortens = (steps / steps.max()) ** (_SHARPNESS - 1) / speeds
        worths: Floats = row_share + (1 - row_share) * shortens / shortens.mean()
        return worths


def longest_text(items: Sequence[ScheduledRequest]) -> int:
    """The most tokens that one of these requests may still emit. In a step without drafts they fall
    by 1; what a group of requests gains by drafts is by how much they fall beyond that."""
    left = (0 if i.request.is_finished else i.request.remaining_tokens for i in items)
    return max(left, default=0)


class _Speed:
    """Tokens a step, as a running mean that begins at another one."""

    def __init__(self) -> None:
        self._tokens = self._steps = 0.0

    def observe(self, tokens: int) -> None:
        kept = 1 - 1 / _MEMORY
        self._tokens = kept * self._tokens + tokens
        self._steps = kept * self._steps + 1

    def mean(self, usual: float) -> float:
        return (self._tokens + _TRUST * usual) / (self._steps + _TRUST)


_UNKNOWN = _Speed()


def _is_foreseen(request: Request) -> bool:
    """Whether it is known when it ends."""
    return not request.end_tokens or request.remaining_tokens <= _FORESEEN
