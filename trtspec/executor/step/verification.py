"""Verification: the target's verification of a step's rows, which may still be running."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor

from trtspec.backends.staging import to_host
from trtspec.executor.step.prompt_logprobs import PromptLogprobs
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult, TokenLogprobs
from trtspec.ops.draft_batch import DraftBatch


class Verification:
    """What was launched at the target.

    hidden: the target's hidden states of all rows of the step ``[T, n*H]``, if it outputs them.
    prompts: log probabilities of prompts, of the items that want some, by place.
    """

    def __init__(
        self,
        plan: StepPlan,
        decide: Callable[[], StepResult],
        hidden: Tensor | None = None,
        raw: Mapping[int, Tensor] | None = None,
    ) -> None:
        """``decide``: returns the result for the plan, waiting for the device if it is made there.
        ``raw``: log probabilities ``[1 + nodes, V]`` of the items that want some, by place."""
        self.hidden = hidden
        self.prompts: Mapping[int, PromptLogprobs] = {}
        self._plan = plan
        self._decide = decide
        self._raw = raw or {}

    def read(self) -> StepResult:
        """The result. Waits for the device; takes one copy to the host, and one more if log
        probabilities are wanted."""
        result = self._decide()
        asked = [i for i in self._raw if not result.failed(i)]
        if asked:
            self._read_logprobs(asked, result)
        return result

    def _read_logprobs(self, asked: Sequence[int], result: StepResult) -> None:
        """Log probabilities for the tokens of several items, read together."""
        raw = [self._raw[i] for i in asked]
        device = raw[0].device
        spans = [slice(result.start[i], result.start[i + 1]) for i in asked]
        rows = [torch.tensor(result.rows[span]).to(device) for span in spans]
        table = torch.cat([r.index_select(0, kept) for r, kept in zip(raw, rows, strict=True)])
        tokens = [token for span in spans for token in result.tokens[span]]
        emitted = table.gather(1, torch.tensor(tokens).to(device)[:, None])
        wanted = (self._plan.items[i].request.params.logprobs for i in asked)
        counts = [min(count or 0, table.shape[1]) for count in wanted]
        values, ids = table.topk(max(counts))
        found = zip(*(x.tolist() for x in to_host([emitted, values, ids])), strict=True)
        for i, span, count in zip(asked, spans, counts, strict=True):
            result.logprobs[i] = [
                TokenLogprobs(token, logprob, dict(zip(best[:count], of_best[:count], strict=True)))
                for token, ((logprob,), of_best, best) in zip(
                    result.tokens[span], found, strict=False
                )
            ]


def places(plan: StepPlan, drafts: DraftBatch) -> list[slice]:
    """Where the rows of each item are among the verified rows."""
    found, first = [], 0
    for item, nodes in zip(plan.items, drafts.counts, strict=True):
        end = first + (1 + nodes if item.samples else 0)
        found.append(slice(first, end))
        first = end
    return found
