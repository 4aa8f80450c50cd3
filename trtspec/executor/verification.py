"""Verification: a step's rows at the target, whose verdicts may still be computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from trtspec.backends.staging import to_host
from trtspec.executor.request import Request
from trtspec.executor.sampling_rows import Decisions
from trtspec.executor.verdict import Judgement, TokenLogprobs, Verdict


class Verification:
    """What was launched at the target.

    hidden: the target's states of all rows of the step ``[T, n*H]``, if it hands them out.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        hidden: Tensor | None = None,
        judged: Decisions | Judgement | None = None,
        raw: Mapping[int, Tensor] | None = None,
    ) -> None:
        """``judged``: of the rows of ``requests``, decided on the host, or tensors where the target
        runs; None if there are none. ``raw``: log probabilities ``[1 + nodes, V]`` of the requests
        that want some, by id."""
        self.hidden = hidden
        self._requests = requests
        self._judged = judged
        self._raw = raw or {}

    def read(self) -> dict[int, Verdict]:
        """The verdict on each request, by its id. Waits for the device; one copy comes back."""
        if self._judged is None:
            return {}
        judged = self._judged
        if isinstance(judged, Judgement):
            judged = _decode(judged, places(self._requests))
        verdicts: dict[int, Verdict] = {}
        first = 0
        for request, count in zip(self._requests, judged.counts, strict=True):
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
            verdicts[request.id] = Verdict(rows, tokens, logprobs, failed)
        return verdicts


def places(requests: Sequence[Request]) -> list[slice]:
    """Where each request's rows are among those that are judged."""
    found, first = [], 0
    for request in requests:
        end = first + 1 + len(request.draft)
        found.append(slice(first, end))
        first = end
    return found


def _decode(judgement: Judgement, places: Sequence[slice]) -> Decisions:
    """What tensors say of requests whose rows are at ``places``."""
    sampled, accepted_rows, num_emitted = judgement
    if places[-1].stop == len(places):  # roots alone: each emits its own token
        tokens = to_host([sampled])[0].tolist()
        return Decisions([1] * len(places), [0] * len(places), tokens)
    assert accepted_rows is not None and num_emitted is not None, "the trees were not walked"
    # CUDA's op pads to the rows of all requests; one of them has walked no more than its own.
    accepted_rows = accepted_rows[:, : max(own.stop - own.start for own in places)]
    sampled, accepted, emitted = to_host([sampled, accepted_rows, num_emitted])
    emits = sampled.tolist()
    decided = Decisions([], [], [])
    for own, walked, count in zip(places, accepted.tolist(), emitted.tolist(), strict=True):
        path = walked[:count]
        if count > 1 and emits[own.start + path[-1]] < 0:
            path = path[:-1]  # what came before stands; the next step fails
        decided.counts.append(len(path))
        decided.rows.extend(path)
        decided.tokens.extend(emits[own.start + row] for row in path)
    return decided


def _token_logprobs(row: Tensor, token: int, count: int) -> TokenLogprobs:
    values, ids = row.topk(min(count, len(row)))
    top = dict(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprobs(token, float(row[token]), top)
