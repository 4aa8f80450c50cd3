"""Sampler: from the logits of a step's rows to the tokens that each request emits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set

import torch
from torch import Tensor

from trtspec.backends.packing import RowGroup
from trtspec.backends.staging import Staging
from trtspec.executor.acceptance_rule import AcceptanceRule
from trtspec.executor.logits import LogitsState, needs_logits_processing
from trtspec.executor.model_engine import ModelEngine
from trtspec.executor.request import Request
from trtspec.executor.sampling_rows import SamplingRows
from trtspec.executor.verdict import Judgement, Questions
from trtspec.executor.verification import Verification
from trtspec.ops.acceptance import accept
from trtspec.ops.sampling import SamplingColumns, sample


class Sampler:
    """Has the target's rows judged: applies each request's options, samples every row, walks every
    tree.

    ``rule``: accept other drafts than those that the target emits; the text is then not its own.
    """

    def __init__(self, rule: AcceptanceRule | None = None) -> None:
        self._rule = rule
        self._states: dict[int, LogitsState] = {}
        self._rows = SamplingRows()
        self._staging: Staging | None = None

    def launch(
        self, target: ModelEngine, groups: Sequence[RowGroup], requests: Sequence[Request]
    ) -> Verification:
        """Feed a step's rows to the target and have those of ``requests`` judged, which want logits
        in ``groups``. A target that ``judges`` does so in the same call, unless a request's options
        change its logits first, or the rule what is sampled."""
        trees = [request.draft for request in requests]
        if requests and target.judges and not self._needs_logits(requests):
            columns, (_, parents, row_start) = self._rows.tensors(requests, trees)
            questions = Questions(SamplingColumns._make(columns), parents, row_start)
            logits, hidden, judgement = target.judge(groups, questions)
            return Verification(requests, hidden, judgement, self._raw(requests, logits))
        logits, hidden = target.forward(groups)
        return self.judge(requests, logits, hidden)

    def judge(
        self, requests: Sequence[Request], logits: Tensor, hidden: Tensor | None = None
    ) -> Verification:
        """Judge the rows of ``requests``: ``logits [R, V]`` holds, request by request, the row of
        its newest token and one row per node of its draft. Logits are changed in place.

        All is done where the logits are: one copy of options and trees goes there. Only a rule
        waits for what was sampled."""
        if not requests:
            return Verification(requests, hidden)
        trees = [request.draft for request in requests]
        raw = self._raw(requests, logits)
        for request, rows in _by_request(requests, logits):
            if needs_logits_processing(request.params):
                self._process(request, rows)
        if self._staging is None:
            self._staging = Staging(logits.device)
        values, nodes = self._rows.tensors(requests, trees)
        *columns, drafted, above, row_start = self._staging.to_device([*values, *nodes])
        sampled = sample(logits, *columns)
        if self._rule is not None and any(map(len, trees)):
            choices = sampled.cpu()
            pairs = zip(_by_request(requests, logits), _by_request(requests, choices), strict=True)
            for (request, rows), (_, own) in pairs:
                self._rule.force(request, request.draft, own.numpy(), rows)
            sampled = choices.to(logits.device)
        judgement = Judgement(sampled, *accept(sampled, drafted, above, row_start))
        return Verification(requests, hidden, judgement, raw)

    def release(self, request_id: int) -> None:
        """Forget a request that ended; unknown ids are ignored."""
        self._states.pop(request_id, None)
        self._rows.release(request_id)

    @property
    def live_requests(self) -> Set[int]:
        """The ids of requests that something is kept of."""
        return self._states.keys() | self._rows.live_requests

    def _needs_logits(self, requests: Sequence[Request]) -> bool:
        """Whether something happens to the logits before, or to the samples behind the engine."""
        return self._rule is not None or any(needs_logits_processing(r.params) for r in requests)

    def _raw(self, requests: Sequence[Request], logits: Tensor) -> dict[int, Tensor]:
        """The raw model's log probabilities, of the requests that ask for some, by id."""
        return {
            request.id: torch.log_softmax(rows, dim=-1)
            for request, rows in _by_request(requests, logits)
            if request.params.logprobs is not None
        }

    def _process(self, request: Request, rows: Tensor) -> None:
        state = self._states.get(request.id)
        if state is None:
            state = LogitsState(request.params, request.num_prompt_tokens, request.eos_token_ids)
            self._states[request.id] = state
        state.extend_to(request.tokens)
        state.apply(rows, request.draft)


def _by_request(requests: Sequence[Request], rows: Tensor) -> Iterator[tuple[Request, Tensor]]:
    """Each request with its own of the judged ``rows [R, ...]``."""
    first = 0
    for request in requests:
        end = first + 1 + len(request.draft)
        yield request, rows[first:end]
        first = end
