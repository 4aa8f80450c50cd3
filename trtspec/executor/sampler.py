"""Sampler: from the logits of a step's rows to the tokens that each request emits."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor

from trtspec.backends.staging import Staging, to_host
from trtspec.executor.acceptance_rule import AcceptanceRule
from trtspec.executor.logits import LogitsState, needs_logits_processing
from trtspec.executor.request import Request
from trtspec.executor.sampling_rows import SamplingRows
from trtspec.executor.verdict import Judgement, Questions, TokenLogprobs, Verdict
from trtspec.ops.acceptance import accept
from trtspec.ops.sampling import SamplingColumns, sample
from trtspec.ops.tree import TokenTree


class Sampler:
    """Applies each request's options to its rows, samples every row, walks every tree.

    ``rule``: accept other drafts than those that the target emits; the text is then not its own.
    """

    def __init__(self, rule: AcceptanceRule | None = None) -> None:
        self._rule = rule
        self._states: dict[int, LogitsState] = {}
        self._rows = SamplingRows()
        self._staging: Staging | None = None

    def questions(
        self, requests: Sequence[Request], trees: Sequence[TokenTree]
    ) -> Questions | None:
        """For an engine that samples and accepts by itself. None if it cannot judge this step: an
        option changes the logits first, or a rule what is sampled."""
        if self._rule is not None or any(needs_logits_processing(r.params) for r in requests):
            return None
        columns, (_, parents, row_start) = self._rows.tensors(requests, trees)
        return Questions(SamplingColumns._make(columns), parents, row_start)

    def verify(
        self,
        requests: Sequence[Request],
        trees: Sequence[TokenTree],
        logits: Tensor,
        judgement: Judgement | None = None,
    ) -> list[Verdict]:
        """Judge the rows of ``requests``: ``logits [R, V]`` holds, request by request, the row of
        its newest token and one row per node of its tree. Logits are changed in place.

        All is done where the logits are: one copy of options and trees goes there, and one with
        tokens and accepted rows comes back. ``judgement``: of the engine that was asked the
        `questions`; what it says is not computed again."""
        starts = list(accumulate((1 + len(tree) for tree in trees), initial=0))
        raw: dict[int, Tensor] = {}
        for i, (request, tree) in enumerate(zip(requests, trees, strict=True)):
            own = slice(starts[i], starts[i + 1])
            if request.params.logprobs is not None:
                raw[i] = torch.log_softmax(logits[own], dim=-1)
            if needs_logits_processing(request.params):
                self._process(request, tree, logits[own])
        if judgement is None:
            judgement = self._judge(requests, trees, logits)
        accepted_rows = judgement.accepted_rows
        # CUDA's op pads to the rows of all requests; one of them has walked no more than its own.
        widest = max(1 + len(tree) for tree in trees)
        if accepted_rows.shape[1] > widest:
            accepted_rows = accepted_rows[:, :widest]
        sampled, accepted, emitted = to_host(
            [judgement.sampled, accepted_rows, judgement.num_emitted]
        )
        verdicts = []
        all_tokens, all_rows = sampled.tolist(), accepted.tolist()
        for i, (request, count) in enumerate(zip(requests, emitted.tolist(), strict=True)):
            path = all_rows[i][:count]
            emits = [all_tokens[starts[i] + row] for row in path]
            if len(emits) > 1 and emits[-1] < 0:  # what came before stands; the next step fails
                path, emits = path[:-1], emits[:-1]
            failed = emits[-1] < 0
            logprobs = None
            if i in raw and not failed:
                wanted = request.params.logprobs or 0
                logprobs = [
                    _token_logprobs(raw[i][row], token, wanted)
                    for row, token in zip(path, emits, strict=True)
                ]
            verdicts.append(Verdict(path, emits, logprobs, failed))
        return verdicts

    def release(self, request_id: int) -> None:
        """Forget a request that ended; unknown ids are ignored."""
        self._states.pop(request_id, None)
        self._rows.release(request_id)

    def _judge(
        self, requests: Sequence[Request], trees: Sequence[TokenTree], logits: Tensor
    ) -> Judgement:
        if self._staging is None:
            self._staging = Staging(logits.device)
        values, nodes = self._rows.tensors(requests, trees)
        *columns, drafted, above, row_start = self._staging.to_device([*values, *nodes])
        sampled = sample(logits, *columns)
        if self._rule is not None and any(map(len, trees)):
            choices, first = sampled.cpu(), 0
            for request, tree in zip(requests, trees, strict=True):
                own = slice(first, first + 1 + len(tree))
                self._rule.force(request, tree, choices[own].numpy(), logits[own])
                first = own.stop
            sampled = choices.to(logits.device)
        return Judgement(sampled, *accept(sampled, drafted, above, row_start))

    def _process(self, request: Request, tree: TokenTree, rows: Tensor) -> None:
        state = self._states.get(request.id)
        if state is None:
            state = LogitsState(request.params, request.num_prompt_tokens, request.eos_token_ids)
            self._states[request.id] = state
        state.extend_to(request.tokens)
        state.apply(rows, tree)


def _token_logprobs(row: Tensor, token: int, count: int) -> TokenLogprobs:
    values, ids = row.topk(min(count, len(row)))
    top = dict(zip(ids.tolist(), values.tolist(), strict=True))
    return TokenLogprobs(token, float(row[token]), top)
