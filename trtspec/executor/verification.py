"""Verification: a step's rows at the target, whose verdicts may still be computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor

from trtspec.executor.request import Request
from trtspec.executor.sampling_rows import REASONS, Decisions
from trtspec.executor.verdict import TokenLogprobs, Verdict


class Verification:
    """What was launched at the target.

    hidden: the target's states of all rows of the step ``[T, n*H]``, if it hands them out.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        hidden: Tensor | None = None,
        decide: Callable[[], Decisions] | None = None,
        raw: Mapping[int, Tensor] | None = None,
    ) -> None:
        """``decide``: gives the decisions on the rows of ``requests``, waiting for the device where
        they are made; None if there are no rows. ``raw``: log probabilities ``[1 + nodes, V]`` of
        the requests that want some, by id."""
        self.hidden = hidden
        self._requests = requests
        self._decide = decide
        self._raw = raw or {}

    def read(self) -> dict[int, Verdict]:
        """The verdict on each request, by its id. Waits for the device; one copy comes back."""
        if self._decide is None:
            return {}
        judged = self._decide()
        verdicts: dict[int, Verdict] = {}
        first = 0
        for request, count, ended in zip(self._requests, judged.counts, judged.ends, strict=True):
            end = first + count
            rows, tokens = judged.rows[first:end], judged.tokens[first:end]
            first = end
            raw = self._raw.get(request.id)
            failed = tokens[-1] < 0
            logprobs = None
            if raw is not None and not failed:
                wanted = request.params.logprobs or 0
                pairs = zip(rows, tokens, strict=True)
                logprobs = [_token_logprobs(raw[row], token, wanted) for row, token in pairs]
            verdicts[request.id] = Verdict(rows, tokens, logprobs, failed, REASONS[ended])
        return verdicts


def places(requests: Sequence[Request]) -> list[slice]:
    """Where each request's rows are among those that are judged."""
    found, first = [], 0
    for request in requests:
        end = first + 1 + len(request.draft)
        found.append(slice(first, end))
        first = end
    return found


def _token_logprobs(row: Tensor, token: int, count: int) -> TokenLogprobs:
    values, ids = row.topk(min(count, len(row)))
    top = dict(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprobs(token, float(row[token]), top)
