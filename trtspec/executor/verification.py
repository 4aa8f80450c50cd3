"""Verification: a step's rows at the target, whose verdicts may still be computed."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from trtspec.backends.staging import to_host
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
        """The verdict on each request, by its id. Waits for the device; one copy comes back, and
        one more if log probabilities are asked for."""
        if self._decide is None:
            return {}
        judged = self._decide()
        verdicts: dict[int, Verdict] = {}
        first = 0
        for request, count, ended in zip(self._requests, judged.counts, judged.ends, strict=True):
            end = first + count
            rows, tokens = judged.rows[first:end], judged.tokens[first:end]
            first = end
            verdicts[request.id] = Verdict(rows, tokens, None, tokens[-1] < 0, REASONS[ended])
        asked = [r for r in self._requests if r.id in self._raw and not verdicts[r.id].failed]
        return {**verdicts, **self._with_logprobs(asked, verdicts)} if asked else verdicts

    def _with_logprobs(
        self, requests: Sequence[Request], verdicts: Mapping[int, Verdict]
    ) -> dict[int, Verdict]:
        """The verdicts on requests with the log probabilities of their tokens, read together."""
        own = [verdicts[request.id] for request in requests]
        raw = [self._raw[request.id] for request in requests]
        device = raw[0].device
        rows = [torch.tensor(verdict.rows).to(device) for verdict in own]
        table = torch.cat([r.index_select(0, kept) for r, kept in zip(raw, rows, strict=True)])
        tokens = torch.tensor([token for verdict in own for token in verdict.tokens]).to(device)
        counts = [min(request.params.logprobs or 0, table.shape[1]) for request in requests]
        values, ids = table.topk(max(counts))
        emitted = table.gather(1, tokens[:, None])
        found = zip(*(x.tolist() for x in to_host([emitted, values, ids])), strict=True)
        told: dict[int, Verdict] = {}
        for request, verdict, count in zip(requests, own, counts, strict=True):
            logprobs = [
                TokenLogprobs(token, logprob, dict(zip(best[:count], of_best[:count], strict=True)))
                for token, ((logprob,), of_best, best) in zip(verdict.tokens, found, strict=False)
            ]
            told[request.id] = replace(verdict, logprobs=logprobs)
        return told


def places(requests: Sequence[Request]) -> list[slice]:
    """Where each request's rows are among those that are judged."""
    found, first = [], 0
    for request in requests:
        end = first + 1 + len(request.draft)
        found.append(slice(first, end))
        first = end
    return found
