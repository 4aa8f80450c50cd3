"""Hybrids for the tiny targets, and a record of what each of their members drafted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from trtspec import LLM
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree

from .. import inside


def hybrid(*drafters: dict[str, Any], **options: Any) -> dict[str, Any]:
    return {"method": "hybrid", "drafters": list(drafters), **options}


@dataclass(frozen=True)
class Drafted:
    """The trees of a request in one step, behind that many output tokens; parts: of each member."""

    request: Request
    num_output_tokens: int
    parts: list[TokenTree]
    union: TokenTree


def record_drafts(llm: LLM) -> list[Drafted]:
    """A list that grows by every request's drafts in every step of a hybrid."""
    executor: Any = inside.executor(llm)
    union = executor._drafter
    steps: list[Drafted] = []
    current: dict[int, tuple[int, list[TokenTree]]] = {}

    def watch(index: int, drafter: Any) -> None:
        prepare = drafter.prepare_draft_tokens

        def prepare_draft_tokens(batch: StepPlan) -> DraftBatch:
            drafts: DraftBatch = prepare(batch)
            for request, tree in drafting(batch, drafts):
                none = [TokenTree.empty()] * len(union._members)
                _, trees = current.setdefault(request.id, (request.num_output_tokens, none))
                trees[index] = tree
            return drafts

        drafter.prepare_draft_tokens = prepare_draft_tokens

    def on_accepted(batch: StepPlan, result: StepResult) -> Any:
        for request, tree in drafting(batch, result.drafts):
            steps.append(Drafted(request, *current.pop(request.id), tree))
        return given(batch, result)

    for index, member in enumerate(union._members):
        watch(index, member.drafter)
    given, union.on_accepted = union.on_accepted, on_accepted
    return steps


def drafting(batch: StepPlan, drafts: DraftBatch) -> list[tuple[Request, TokenTree]]:
    drafted = zip(batch.items, drafts, strict=True)
    return [(item.request, tree) for item, tree in drafted if item.max_nodes]
