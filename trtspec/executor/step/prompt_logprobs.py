"""PromptLogprobs: the raw log probabilities of a prompt's own tokens, chunk by chunk."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.backends.packing import RowBatch
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import TokenLogprobs
from trtspec.ops.draft_batch import DraftBatch


@dataclass(frozen=True)
class PromptLogprobs:
    """Those of the prompt's tokens from position ``first`` on, as far as a step fed them."""

    first: int
    entries: list[TokenLogprobs]


class PromptRows:
    """The rows of a step whose logits tell of the next token of a prompt, for requests that ask for
    it; none, for most steps."""

    def __init__(self, plan: StepPlan, drafts: DraftBatch) -> None:
        self._plan = plan
        self._wanted: list[tuple[int, range]] = []  # item, its rows among those of the call
        first = 0
        for i, (item, nodes) in enumerate(zip(plan.items, drafts.counts, strict=True)):
            last = min(item.start + item.num_rows, item.request.num_prompt_tokens - 1)
            if item.request.reads_own_prompt and last > item.start:
                self._wanted.append((i, range(first, first + last - item.start)))
            first += item.num_rows + nodes

    def __bool__(self) -> bool:
        return bool(self._wanted)

    def added_to(self, packed: RowBatch) -> RowBatch:
        """The call with logits of these rows too; `split` takes them out again."""
        rows = [torch.arange(rows.start, rows.stop) for _, rows in self._wanted]
        every = torch.unique(torch.cat([packed.logits_rows, *rows]))  # in order
        self._usual = torch.searchsorted(every, packed.logits_rows)
        self._own = [torch.searchsorted(every, own) for own in rows]
        return packed._replace(logits_rows=every)

    def split(self, logits: Tensor) -> tuple[Tensor, dict[int, PromptLogprobs]]:
        """The logits ``[R, V]`` that the step asks for in any case, and what the others say, by
        item. Waits for the device."""
        found = {}
        for (i, rows), own in zip(self._wanted, self._own, strict=True):
            item = self._plan.items[i]
            first = item.start + 1
            tokens = item.request.tokens[first : first + len(rows)]
            count = item.request.params.prompt_logprobs or 0
            table = torch.log_softmax(logits.index_select(0, own.to(logits.device)), dim=-1)
            found[i] = PromptLogprobs(first, _read(table, tokens, count))
        return logits.index_select(0, self._usual.to(logits.device)), found


def _read(table: Tensor, tokens: Sequence[int], count: int) -> list[TokenLogprobs]:
    own = table.gather(1, torch.tensor(tokens, device=table.device)[:, None])[:, 0].tolist()
    values, ids = (x.tolist() for x in table.topk(min(count, table.shape[1])))
    return [
        TokenLogprobs(token, value, dict(zip(best, of_best, strict=True)))
        for token, value, best, of_best in zip(tokens, own, ids, values, strict=True)
    ]
