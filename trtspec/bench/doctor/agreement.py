"""How often a draft predicts its target's next token, position by position, before it is served.

Teacher forcing: the target generates its text one token per step, and before each step the draft is
asked, as in serving, given the true text so far. Its drafts are compared with the final text. So
every position of the text counts equally, including those after a wrong guess.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from trtspec.builder.target_drafts import TargetDrafts
from trtspec.config.decoding import DecodingConfig
from trtspec.config.kv import KvCacheConfig
from trtspec.config.sampling import SamplingParams
from trtspec.engine.folder import EngineConfig
from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.executor.step.drafter import Drafter
from trtspec.executor.step.forwarding_drafter import ForwardingDrafter
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.text.stopping import StopChecker
from trtspec.llmapi.engine_drafts import find_drafts
from trtspec.llmapi.limits import Limits
from trtspec.llmapi.runtime import open_runtime
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree


class WatchedDrafter(ForwardingDrafter):
    """Asks another drafter, keeps what it drafts, and lets none of it be verified."""

    def __init__(self, drafter: Drafter) -> None:
        super().__init__(drafter)
        self.drafts: list[tuple[Request, int, TokenTree]] = []
        """The request, the length of its text at that point, and the tree, which may be empty."""

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        for item, tree in zip(batch.items, super().prepare_draft_tokens(batch), strict=True):
            if item.is_generation:
                self.drafts.append((item.request, len(item.request.tokens), tree))
        return DraftBatch.none(len(batch.items))


def watch_drafts(
    folder: Path,
    speculation: DecodingConfig,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
) -> list[tuple[Request, int, TokenTree]]:
    """What is drafted over the target's text after each prompt, one token per step: the finished
    request (its id is the prompt's index), the length of its text at that point, and the tree.
    Trees are cut to what a request may still emit.

    Raises:
        RequestError: a prompt is too long.
        TrtspecError: see `open_runtime`, and errors of steps.
    """
    engine = EngineConfig.read(folder)
    watched: list[WatchedDrafter] = []

    def watch(drafter: Drafter) -> Drafter:
        watched.append(WatchedDrafter(drafter))
        return watched[0]

    limits = Limits.of(engine.build, None, None, None)
    drafts = find_drafts(engine, speculation, TargetDrafts(engine.target))
    executor = open_runtime(
        folder, engine, drafts, limits, speculation, KvCacheConfig(), wrap_drafter=watch
    ).executor
    for i, prompt in enumerate(prompts):
        request = Request.create(
            id=i, prompt=prompt, params=params, seed=i, max_seq_len=limits.max_seq_len
        )
        executor.add(request, StopChecker(params, ()))
    while executor.has_work:
        for output in executor.step():
            if output.error is not None:
                raise output.error
    return watched[0].drafts


def measure_agreement(
    folder: Path,
    speculation: DecodingConfig,
    prompts: Sequence[Sequence[int]],
    params: SamplingParams,
) -> SpeculativeMetrics:
    """Agreement over the target's text after each prompt, as metrics of steps that accept what
    agrees: at temperature 0 with its greedy text, above with samples, which the draft predicts with
    the target's own noise. Raises like `watch_drafts`."""
    drafts = watch_drafts(folder, speculation, prompts, params)
    deepest = max((tree.max_depth for _, _, tree in drafts), default=0)
    metrics = SpeculativeMetrics()
    for request, length, tree in drafts:
        text = request.tokens[length:]
        if len(tree) and len(text) > deepest:  # drafts near the end are cut
            metrics.record(1 + matched_depth(tree, text), len(tree), tree.max_depth)
    return metrics


def matched_depth(tree: TokenTree, text: Sequence[int]) -> int:
    """How many tokens of the text are covered by a path of nodes."""
    node, depth = -1, 0
    parents, tokens = tree.parents.tolist(), tree.tokens.tolist()
    for wanted in text:
        children = (i for i, parent in enumerate(parents) if parent == node)
        node = next((i for i in children if tokens[i] == wanted), -2)
        if node == -2:
            break
        depth += 1
    return depth
