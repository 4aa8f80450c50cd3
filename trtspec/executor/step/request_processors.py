"""RequestProcessors: the logits processors of the running requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from trtspec.errors import EngineError, RequestError, TrtspecError
from trtspec.executor.logits.bans import BadWords, MinTokens
from trtspec.executor.logits.logit_bias import LogitBias
from trtspec.executor.logits.logits_mask import LogitsMask, columns_of
from trtspec.executor.logits.logits_processor import LogitsProcessor
from trtspec.executor.logits.penalties import Penalties
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.log import logger
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.logits_mask import mask_logits
from trtspec.ops.tree import TokenTree

T = TypeVar("T")
_NOTHING: Sequence[int] = ()


@dataclass
class _Own:
    """The processors of a request, and how much of its text they have seen. fault: the error of
    one; then none is called any more, and no token is allowed."""

    processors: tuple[LogitsProcessor, ...]
    num_tokens: int = 0
    fault: TrtspecError | None = None

    def guarded(self, act: Callable[[], T], otherwise: T) -> T:
        """The result of ``act``. An error concerns only this request, for which the result is
        ``otherwise``."""
        if self.fault is not None:
            return otherwise
        try:
            return act()
        except TrtspecError as error:
            self.fault = error
        except Exception as error:
            logger.exception("a logits processor failed")
            self.fault = EngineError(f"a logits processor failed: {error!r}")
        return otherwise


@dataclass(frozen=True)
class LogitsChange:
    """The change to the logits of one request's rows, in the order of its processors; masks were
    made before the logits existed."""

    own: _Own
    tree: TokenTree
    parts: Sequence[tuple[LogitsProcessor, LogitsMask | None]]

    @property
    def masks(self) -> Sequence[LogitsMask] | None:
        """The whole change, if it consists of masks only; None: a processor needs the logits."""
        if self.own.fault is not None:
            return [_none_may_come(1 + len(self.tree))]
        if any(_sees_logits(processor) for processor, _ in self.parts):
            return None
        return [mask for _, mask in self.parts if mask is not None]

    def apply(self, logits: Tensor) -> None:
        """Change the request's ``logits [1 + n, V]`` in place."""
        self.own.guarded(lambda: self._apply(logits), None)
        if self.own.fault is not None:
            logits.fill_(-torch.inf)

    def _apply(self, logits: Tensor) -> None:
        rows, vocab_size = logits.shape
        for processor, mask in self.parts:
            masks = [] if mask is None else [(slice(0, rows), mask)]
            columns = columns_of(masks, rows, vocab_size)
            if columns is not None:
                on_device = [x.to(logits.device) for x in columns if x is not None]
                mask_logits(logits, columns.replaced(on_device))
            processor.apply(logits, self.tree)


def _none_may_come(rows: int) -> LogitsMask:
    return LogitsMask(allowed=torch.zeros(rows, 0, dtype=torch.int32))


def _excludes_all(masks: Sequence[LogitsMask | None], vocab_size: int) -> bool:
    """Whether the masks of one row leave no token."""
    columns = columns_of([(slice(0, 1), mask) for mask in masks if mask is not None], 1, vocab_size)
    logits = torch.zeros(1, vocab_size)
    if columns is not None:
        mask_logits(logits, columns)
    return bool(torch.isneginf(logits).all())


def _sees_logits(processor: LogitsProcessor) -> bool:
    return type(processor).apply is not LogitsProcessor.apply


class RequestProcessors:
    """Each request's processors: those of its sampling options, then its own. Requests without any
    are not stored."""

    def __init__(self) -> None:
        self._requests: dict[int, _Own] = {}

    def begin(self, request: Request) -> None:
        """A request arrives."""
        processors = _made_for(request)
        if processors:
            self._requests[request.id] = _Own(processors)

    def changes(self, plan: StepPlan, drafts: DraftBatch) -> list[LogitsChange | None]:
        """The logits change of each item that samples, and of its drafts; None: none."""
        if not self._requests:
            return [None] * len(plan.items)
        return [
            self._change(own, drafts[i])
            if item.samples and (own := self.informed(item.request)) is not None
            else None
            for i, item in enumerate(plan.items)
        ]

    def fault(self, request: Request, vocab_size: int) -> TrtspecError | None:
        """Why no token can follow the request's text: the error of a processor, or masks that
        together exclude every token. None: its processors are not the reason."""
        own = self.informed(request)
        if own is None:
            return None
        masks = self._change(own, TokenTree.empty()).parts
        if own.fault is None and _excludes_all([mask for _, mask in masks], vocab_size):
            own.fault = RequestError(
                f"every token excluded at output token {request.num_output_tokens}: the request's "
                "options (bad_words, min_tokens, guided_decoding, thinking_budget) together leave "
                "none; loosen one of them"
            )
        return own.fault

    def shape_drafts(self, plan: StepPlan, drafts: DraftBatch, max_depth: int) -> DraftBatch:
        """The drafts of a step without what processors never allow. If they force more tokens than
        were drafted, these become the draft, down to ``max_depth``."""
        shaped: dict[int, TokenTree] = {}
        for i, item in enumerate(plan.items if self._requests else ()):
            if not item.max_nodes:
                continue
            own, request = self.informed(item.request), item.request
            if own is None:
                continue
            most = min(item.max_nodes, max_depth, request.draft_depth)
            tree = drafts[i]
            for processor in own.processors:
                tree = own.guarded(partial(processor.prune, tree), tree)
                said = own.guarded(processor.forced, _NOTHING)
                forced = TokenTree.chain(said[:most]).without(request.end_tokens)
                tree = forced if len(forced) > tree.max_depth else tree
            shaped[i] = tree
        if all(tree is drafts[i] for i, tree in shaped.items()):
            return drafts
        made = DraftBatch.of([shaped.get(i, tree) for i, tree in enumerate(drafts)])
        return made.attributed(drafts)

    def release(self, request_id: int) -> None:
        """Forget a request that ended; unknown ids are ignored."""
        self._requests.pop(request_id, None)

    @property
    def live_requests(self) -> Set[int]:
        """The ids of requests of which something is stored."""
        return self._requests.keys()

    def informed(self, request: Request) -> _Own | None:
        """The request's processors, up to date with its text. None: its logits stay as they are."""
        own = self._requests.get(request.id)
        if own is not None and own.num_tokens < len(request.tokens):
            new = request.tokens[own.num_tokens :]
            own.num_tokens = len(request.tokens)
            for processor in own.processors:
                own.guarded(partial(processor.extend, new), None)
        return own

    def _change(self, own: _Own, tree: TokenTree) -> LogitsChange:
        masks = [own.guarded(partial(p.mask, tree), None) for p in own.processors]
        return LogitsChange(own, tree, list(zip(own.processors, masks, strict=True)))


def _made_for(request: Request) -> tuple[LogitsProcessor, ...]:
    """Biases come first, then penalties, then bans."""
    params, prompt = request.params, request.num_prompt_tokens
    found: list[LogitsProcessor] = []
    if params.logit_bias:
        found.append(LogitBias(params.token_biases))
    penalties = params.repetition_penalty != 1.0, params.presence_penalty, params.frequency_penalty
    if any(penalties):
        found.append(Penalties(params, prompt))
    if params.banned_sequences:
        found.append(BadWords(params.banned_sequences))
    if params.min_tokens:
        ends = () if params.ignore_eos else request.eos_token_ids
        found.append(MinTokens(params.min_tokens, prompt, (*ends, *params.stop_token_ids)))
    return (*found, *request.processors)
