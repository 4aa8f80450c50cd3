"""StepResult: the outcome of a step (cpp/include/trtspec/runtime/step_result.hpp)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

import torch
from torch import Tensor

from trtspec.executor.step.step_plan import StepPlan
from trtspec.ops.draft_batch import DraftBatch

REASONS = (None, "stop", "length", "error")
"""``FinishReason`` of cpp/include/trtspec/text_end.hpp, as far as a step decides it."""


@dataclass(frozen=True)
class TokenLogprobs:
    """Raw-model log probabilities at one output position: the sampled token and the best ones."""

    token: int
    logprob: float
    top: dict[int, float]


@dataclass(frozen=True)
class SpecStep:
    """What a step emitted for one request, and the tree that it verified.

    emitted: the tokens of the accepted nodes, then the bonus token. accepted: the places of these
    nodes. tokens, parents, sources: of each node, see `DraftBatch`; parent -1 is the root, and a
    node without a source was forced by a processor.
    """

    emitted: list[int]
    accepted: list[int]
    tokens: list[int]
    parents: list[int]
    sources: list[int | None]


@dataclass(slots=True)
class StepResult:
    """Columns of values by item of a step's plan, in order.

    A path through a tree is accepted up to where its text ends, or before a row for which the model
    gave no usable number; if that is the root's row, the request fails.

    start: item i emits tokens[start[i] : start[i + 1]], the last one being the bonus token; none if
    it failed, or if the end of its prompt was not fed. rows: which rows emit these, 0 the root's,
    then those of accepted nodes. ends: the finish reason of each, None if it goes on, 'error' if it
    failed. logprobs: by item, for the tokens of items that want some. hidden: the target's hidden
    states of the rows that stay in its cache, item after item ``[sum(num_kept), n*H]``, for a
    drafter that reads them. drafts: what was verified, by item. drafted: of a step in which the
    device drafts, for each item, the rows that are valid in each draft cache (see
    `Drafter.on_accepted`); None: the host drafts.
    """

    start: list[int]
    tokens: list[int]
    rows: list[int]
    ends: list[str | None]
    logprobs: dict[int, list[TokenLogprobs]] = field(default_factory=dict)
    hidden: Tensor | None = None
    drafts: DraftBatch = DraftBatch.none(0)  # noqa: RUF009  it is immutable
    drafted: list[tuple[int, ...]] | None = None

    @classmethod
    def of(cls, emitted: Sequence[Sequence[int]], drafts: DraftBatch | None = None) -> StepResult:
        """The result of items that emit these tokens, along the first nodes of their trees, and go
        on."""
        return cls(
            [0, *accumulate(map(len, emitted))],
            [token for tokens in emitted for token in tokens],
            [row for tokens in emitted for row in range(len(tokens))],
            [None] * len(emitted),
            drafts=DraftBatch.none(len(emitted)) if drafts is None else drafts,
        )

    def pick(self, places: Sequence[int]) -> StepResult:
        """The result of only the items at these places, without ``hidden``."""
        spans = [slice(self.start[i], self.start[i + 1]) for i in places]
        return StepResult(
            [0, *accumulate(span.stop - span.start for span in spans)],
            [token for span in spans for token in self.tokens[span]],
            [row for span in spans for row in self.rows[span]],
            [self.ends[i] for i in places],
            {new: self.logprobs[i] for new, i in enumerate(places) if i in self.logprobs},
            drafts=self.drafts.pick(places),
            drafted=None if self.drafted is None else [self.drafted[i] for i in places],
        )

    def emitted(self, i: int) -> list[int]:
        """The tokens that item i emits."""
        return self.tokens[self.start[i] : self.start[i + 1]]

    def accepted_rows(self, i: int) -> list[int]:
        """The rows that emit them, within the root and its tree."""
        return self.rows[self.start[i] : self.start[i + 1]]

    def num_emitted(self, i: int) -> int:
        return self.start[i + 1] - self.start[i]

    def failed(self, i: int) -> bool:
        return self.ends[i] == "error"

    @property
    def failures(self) -> list[bool]:
        """Whether each item failed."""
        return [end == "error" for end in self.ends]

    def spec_step(self, i: int) -> SpecStep:
        """What item i emits, with its tree."""
        accepted = [row - 1 for row in self.accepted_rows(i)[1:]]
        tree = self.drafts[i]
        columns = tree.tokens.tolist(), tree.parents.tolist(), self.drafts.sources(i)
        return SpecStep(self.emitted(i), accepted, *columns)

    def cut(self, i: int, count: int, reason: str | None) -> None:
        """End the text of item i, for that reason, with the first ``count`` tokens it emits."""
        self.ends[i] = reason
        end = self.start[i] + count
        surplus = self.start[i + 1] - end
        if surplus:
            del self.tokens[end : end + surplus], self.rows[end : end + surplus]
            self.start[i + 1 :] = [start - surplus for start in self.start[i + 1 :]]
            if i in self.logprobs:
                del self.logprobs[i][count:]

    def num_kept(self, plan: StepPlan) -> list[int]:
        """Rows of each item that stay in the target's cache: those that are fed, then accepted
        nodes. The last emitted token has no row yet."""
        start, ends = self.start, self.ends
        return [
            0 if ends[i] == "error" else item.num_rows + max(start[i + 1] - start[i] - 1, 0)
            for i, item in enumerate(plan.items)
        ]

    def keep_hidden(self, plan: StepPlan, hidden: Tensor) -> None:
        """Store the target's hidden states of the rows that stay, taken from those of all rows of
        the step ``[T, n*H]``."""
        asked = plan.table, self.start, self.rows, self.failures, self.drafts.address
        rows: Tensor = torch.classes.trtspec.ResourceManager.kept_rows(*asked)
        if len(rows) < len(hidden):
            self.hidden = hidden[rows.to(hidden.device)]
        else:
            self.hidden = hidden if hidden.device.type == "cpu" else hidden.clone()  # `Session.run`

    def hidden_of(self, plan: StepPlan) -> Sequence[Tensor]:
        """``hidden``, item by item."""
        assert self.hidden is not None, "the target hands out its states"
        counts = self.num_kept(plan)
        return torch.split(self.hidden, counts) if len(counts) > 1 else (self.hidden,)
