"""A step of the executor over a target that is a table of words, recorded to be drawn."""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass

import torch
from torch import Tensor

from trtspec.backends.packing import RowBatch
from trtspec.config.kv import CacheLayout
from trtspec.config.sampling import SamplingParams
from trtspec.executor.py_executor import PyExecutor
from trtspec.executor.schedule.kv_cache import KVCacheManager
from trtspec.executor.schedule.resources import ResourceManager
from trtspec.executor.schedule.scheduler import Scheduler
from trtspec.executor.step.drafter import Drafter, DrafterNeeds
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.executor.text.stopping import StopChecker
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree
from trtspec.ops.tree_mask import tree_mask

PROMPT = ["Paris", "is", "the", "capital"]
NODES = ["France", "the", ".", ",", "world", "and", "a"]
PARENTS = (-1, -1, 0, 0, 1, 3, 3)
BLOCK = 4
NEXT = {
    "capital": "of",
    "of": "France",
    "France": ",",
    ",": "and",
    "and": "its",
    "the": "world",
    "world": ",",
    ".": "It",
    "a": "city",
}
"""The target: the word that it emits after each word."""
WORDS = sorted({*PROMPT, *NEXT, *NEXT.values()})


@dataclass(frozen=True)
class RecordedStep:
    """One request's step with the draft `NODES`.

    cached: the words whose K/V the target's cache held before. rows: the words that were fed, the
    root first; tree: all but the root. slots: where each row's K/V was written. sees: bool [rows,
    cached + rows], the positions of the cache that each row attends to. said: the target's own
    next word after each row. accepted: rows on the accepted path, the root first; emitted: the
    words that came of it. before, after: the request's block table during the step and once it was
    committed. moves: slots whose K/V was copied, from and to. committed: the committed length
    before and after.
    """

    cached: Sequence[str]
    rows: Sequence[str]
    tree: TokenTree
    slots: Sequence[int]
    sees: Tensor
    said: Sequence[str]
    accepted: Sequence[int]
    emitted: Sequence[str]
    before: Sequence[int]
    after: Sequence[int]
    moves: Sequence[tuple[int, int]]
    committed: tuple[int, int]


class Target:
    """A fake `ModelEngine`."""

    verifies = False
    vocab_size = len(WORDS)
    layout = CacheLayout(BLOCK, 8, 1)

    def __init__(self) -> None:
        self.packed: RowBatch | None = None
        self.said: list[str] = []
        self.moves: list[tuple[int, int]] = []

    def forward(self, packed: RowBatch) -> tuple[Tensor, None]:
        self.packed = packed
        fed = packed.rows.input_ids[packed.logits_rows].tolist()
        self.said = [NEXT[WORDS[token]] for token in fed]
        logits = torch.zeros(len(fed), len(WORDS))
        logits[range(len(fed)), ids(self.said)] = 1.0
        return logits, None

    def compact(self, sources: Tensor, wanted: Tensor) -> None:
        self.moves = list(zip(sources.tolist(), wanted.tolist(), strict=True))


class Draft(Drafter):
    """Drafts the same tree each time."""

    live_requests: Set[int] = frozenset()
    needs = DrafterNeeds(max_nodes=len(NODES), max_depth=3)

    def __init__(self) -> None:
        self.result = StepResult.of([])

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        return DraftBatch.of([tree() if item.is_generation else None for item in batch.items])

    def on_accepted(self, batch: StepPlan, result: StepResult) -> Sequence[tuple[int, ...]]:
        self.result = result
        return [()] * len(batch.items)

    def release(self, request_id: int) -> None:
        pass


def ids(words: Sequence[str]) -> list[int]:
    return [WORDS.index(word) for word in words]


def tree() -> TokenTree:
    return TokenTree(ids(NODES), PARENTS)


def record() -> RecordedStep:
    """Prefill, then the recorded step."""
    target, drafter = Target(), Draft()
    resources = ResourceManager(KVCacheManager(8, BLOCK))
    scheduler = Scheduler(resources, 1, 64, 32, drafter.needs)
    executor = PyExecutor(target, resources, scheduler, drafter)  # type: ignore[arg-type]
    params = SamplingParams(max_tokens=20, temperature=0.0, detokenize=False)
    request = Request.create(0, ids(PROMPT), params, 0, 32)
    executor.add(request, StopChecker(params, ()))
    executor.step()
    launched = executor.launch(executor.plan())
    committed = resources.target_committed(request)
    before = resources.target_block_table(request).tolist()
    (output,) = executor.collect(launched)
    assert target.packed is not None
    rows = target.packed.rows
    width = len(rows.input_ids)
    masked = tree_mask(
        *(rows.positions, rows.slot_mapping, rows.query_start, rows.context_lens),
        *(rows.is_tree, rows.tree_mask),
        width=width,
        length=committed + width,
    )
    return RecordedStep(
        [WORDS[token] for token in request.tokens[:committed]],
        [WORDS[token] for token in rows.input_ids.tolist()],
        tree(),
        rows.slot_mapping.tolist(),
        masked[0, 0],
        target.said,
        drafter.result.accepted_rows(0),
        [WORDS[token] for token in output.tokens],
        before,
        resources.target_block_table(request).tolist(),
        target.moves,
        (committed, resources.target_committed(request)),
    )
