"""Verification: a step's rows at the target, whose verdicts may still be computed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from trtspec.backends.staging import to_host
from trtspec.executor.request import Request
from trtspec.executor.verdict import Judgement, TokenLogprobs, Verdict


class Verification:
    """What was launched at the target.

    hidden: the target's states of all rows of the step ``[T, n*H]``, if it hands them out.
    """

    def __init__(
        self,
        requests: Sequence[Request],
        places: Sequence[slice],
        hidden: Tensor | None = None,
        judgement: Judgement | None = None,
        raw: Mapping[int, Tensor] | None = None,
    ) -> None:
        """``judgement``: of the rows of ``requests``, None if there are none; each has its rows at
        its one of ``places``. ``raw``: log probabilities ``[1 + nodes, V]`` of the requests that
        want some, by id."""
        self.hidden = hidden
        self._requests = requests
        self._judgement = judgement
        self._raw = raw or {}
        self._places = places

    def read(self) -> dict[int, Verdict]:
        """The verdict on each request, by its id. Waits for the device; one copy comes back."""
        if self._judgement is None:
            return {}
        sampled, accepted_rows, num_emitted = self._judgement
        if self._places[-1].stop == len(self._requests):  # roots alone: each emits its own token
            tokens = to_host([sampled])[0].tolist()
            pairs = zip(self._requests, tokens, strict=True)
            return {request.id: self._verdict(request, [0], [token]) for request, token in pairs}
        assert accepted_rows is not None and num_emitted is not None, "the trees were not walked"
        # CUDA's op pads to the rows of all requests; one of them has walked no more than its own.
        accepted_rows = accepted_rows[:, : max(own.stop - own.start for own in self._places)]
        sampled, accepted, emitted = to_host([sampled, accepted_rows, num_emitted])
        tokens, rows, counts = sampled.tolist(), accepted.tolist(), emitted.tolist()
        verdicts: dict[int, Verdict] = {}
        judged = zip(self._requests, self._places, rows, counts, strict=True)
        for request, own, walked, count in judged:
            path = walked[:count]
            emits = [tokens[own.start + row] for row in path]
            verdicts[request.id] = self._verdict(request, path, emits)
        return verdicts

    def _verdict(self, request: Request, path: list[int], emits: list[int]) -> Verdict:
        if len(emits) > 1 and emits[-1] < 0:  # what came before stands; the next step fails
            path, emits = path[:-1], emits[:-1]
        if emits[-1] < 0:
            return Verdict(path, emits, None, failed=True)
        raw = self._raw.get(request.id)
        if raw is None:
            return Verdict(path, emits, None, failed=False)
        wanted = request.params.logprobs or 0
        pairs = zip(path, emits, strict=True)
        logprobs = [_token_logprobs(raw[row], token, wanted) for row, token in pairs]
        return Verdict(path, emits, logprobs, failed=False)


def _token_logprobs(row: Tensor, token: int, count: int) -> TokenLogprobs:
    values, ids = row.topk(min(count, len(row)))
    top = dict(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprobs(token, float(row[token]), top)
