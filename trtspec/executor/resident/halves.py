"""StepHalves: the two calls of a step whose requests live on the device, as CUDA graphs there."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from trtspec.backends.cuda_graph import CapturedCalls
from trtspec.backends.inputs import EngineInputs, RowInputs
from trtspec.backends.staging import Staging
from trtspec.executor.engines.buckets import Bucket
from trtspec.executor.engines.model_engine import ModelEngine
from trtspec.executor.resident.arena import Arena
from trtspec.executor.step.device_rollout import DeviceRollout
from trtspec.ops.acceptance import accept_trees
from trtspec.ops.resident_step import ITEM, Draft, advance, pack_rollout, pack_verify
from trtspec.ops.sampling import sample


class Verified(NamedTuple):
    """See `VerifyCall` and `Advanced`; hidden: the target's states of all rows, if there are some.
    Valid until the next step."""

    query_start: Tensor
    result: Tensor
    kept_rows: Tensor
    ring_rows: Tensor
    hidden: Tensor | None = None


class StepHalves:
    """A rollout over the rows that earlier steps accepted, and the target's call over its trees,
    with sampling, acceptance and what follows from these.

    Both have shapes that follow from the sizes of a step's `Bucket` alone, and wait for nothing. On
    CUDA, if the target's calls are padded, those of steps without prompts are captured: a step is
    two graphs and one copy.
    """

    def __init__(
        self, target: ModelEngine, arena: Arena, width: int, rollout: DeviceRollout | None
    ) -> None:
        """``width``: most rows of a tree, its root included."""
        device = target.caches.device
        self._target, self._arena, self._rollout, self._width = target, arena, rollout, width
        self._behind = 0 if rollout is None else rollout.behind
        self._not_final = 0 if rollout is None else rollout.not_final
        self._staging = Staging(device)
        self._graphs = CapturedCalls()
        self._captured = frozenset(target.buckets if device.type == "cuda" else ())
        self._no_prompts = torch.zeros(1, dtype=torch.int64, device=device)

    def warm_up(self) -> None:
        """Capture the graphs of full batches; others are when they are first run."""
        for bucket in sorted(self._captured, reverse=True):
            if bucket.logits == bucket.rows:
                self._capture(bucket, self._rollout is not None and bucket.rows > bucket.requests)

    def run(
        self,
        items: list[list[int]],
        prompts: list[int] | None,
        bucket: Bucket,
        drafts: bool,
        cached_tokens: int,
    ) -> Verified:
        """Take a step. ``items``, ``prompts``: see `trtspec.ops.resident_step`, the latter None for
        a step without prompts; such a step's states are kept for the draft (`Arena.keep_hidden`).
        ``drafts``: whether a rollout drafts. ``cached_tokens``: read by each call, at least."""
        is_pure = prompts is None
        is_known = bucket not in self._captured or ("verify", bucket, drafts) in self._graphs
        if is_pure and not is_known:
            self._capture(bucket, drafts)
        given = [_padded(items, bucket.requests)]
        if prompts is not None:
            chunk = torch.zeros(bucket.rows + bucket.requests, dtype=torch.int64)
            chunk[: len(prompts)] = torch.tensor(prompts, dtype=torch.int64)
            given.append(chunk)
        # Graphs read the items where they were captured.
        placed, *rest = self._staging.to_device(given, stable=is_pure)
        return self._run(placed, rest[0] if rest else None, bucket, drafts, cached_tokens)

    def _run(
        self, items: Tensor, chunk: Tensor | None, bucket: Bucket, drafts: bool, cached_tokens: int
    ) -> Verified:
        draft: Draft | None = None
        if drafts:
            assert self._rollout is not None, "something drafts"
            size = Bucket(len(items), len(items) * self._arena.ring)
            key = ("draft", size) if chunk is None else None
            made = self._rollout.engine.counted(
                self._call(key, lambda: self._draft(items)), size, cached_tokens
            )
            draft = Draft._make(made)
        key_of_verify = ("verify", bucket, drafts) if chunk is None else None
        verify = self._call(key_of_verify, lambda: self._verify(items, chunk, draft, bucket))
        return Verified(*self._target.counted(verify, bucket, cached_tokens))

    def _call(
        self, key: tuple[object, ...] | None, call: Callable[[], list[Tensor]]
    ) -> Callable[[], list[Tensor]]:
        """The call as its graph, if it has one."""
        return lambda: self._graphs.run(key, call)

    def _capture(self, bucket: Bucket, drafts: bool) -> None:
        """Capture a step of that size over padding, which changes nothing of a request."""
        padding = _padded([], bucket.requests)
        (items,) = self._staging.to_device([padding], stable=True)
        draft = None
        if drafts:
            key = "draft", Bucket(bucket.requests, bucket.requests * self._arena.ring)
            if key not in self._graphs:
                what = f"a rollout for {bucket.requests} requests"
                self._graphs.capture(key, lambda: self._draft(items), what)
            draft = Draft._make(self._graphs.run(key, list))
        self._graphs.capture(
            ("verify", bucket, drafts),
            lambda: self._verify(items, None, draft, bucket),
            f"a step of {bucket.requests} requests and {bucket.rows} rows",
        )

    def _draft(self, items: Tensor) -> list[Tensor]:
        """The first half: the trees of items that may have nodes, as a `Draft`."""
        rollout, arena = self._rollout, self._arena
        assert rollout is not None, "something drafts"
        layout = rollout.engine.layout
        call = pack_rollout(
            *(arena.kept, arena.tables[1], items),
            behind=self._behind,
            num_rows=len(items) * arena.ring,
            tokens_per_block=layout.tokens_per_block,
            mask_words=layout.mask_words,
        )
        inputs = EngineInputs(
            RowInputs._make(call.rows),
            last_rows=call.last_rows,
            columns=call.columns,
            hidden_in=None if rollout.pending is None else arena.hidden[call.ring_rows],
        )
        return [output.contiguous() for output in rollout.engine.run_placed(inputs)]

    def _verify(
        self, items: Tensor, chunk: Tensor | None, draft: Draft | None, bucket: Bucket
    ) -> list[Tensor]:
        """The second half, a `Verified`."""
        target, arena, layout = self._target, self._arena, self._target.layout
        prompts = self._no_prompts if chunk is None else chunk
        call = pack_verify(
            *(arena.kept, arena.tables[0], items, prompts, draft or _no_draft(items)),
            behind=self._behind,
            num_rows=bucket.rows,
            num_logits=bucket.logits,
            tokens_per_block=layout.tokens_per_block,
            mask_words=layout.mask_words,
        )
        inputs = EngineInputs(RowInputs._make(call.rows), logits_rows=call.logits_rows)
        if target.has_adapters:
            inputs = inputs._replace(adapters=call.adapters)
        if target.verifies:
            inputs = inputs._replace(
                columns=call.columns, parents=call.parents, row_start=call.row_start
            )
        outputs = target.run_placed(inputs)
        if target.verifies:
            *outputs, sampled, accepted, emitted = outputs
        else:
            sampled = sample(outputs[0], *call.columns)
            walked = sampled, call.tokens, call.parents, call.row_start
            accepted, emitted = accept_trees(*walked, self._width)
        advanced = advance(
            *(arena.kept, arena.tables[0], items, prompts, call, sampled, accepted, emitted),
            tokens_per_block=layout.tokens_per_block,
            behind=self._behind,
            not_final=self._not_final,
        )
        target.caches.compact(advanced.src_slots.flatten(), advanced.dst_slots.flatten())
        hidden = outputs[1:]
        reads_hidden = self._rollout is not None and self._rollout.pending is not None
        if reads_hidden and chunk is None:
            arena.keep_hidden(hidden[0], advanced.kept_rows, advanced.ring_rows)
        return [call.rows[4], advanced.result, advanced.kept_rows, advanced.ring_rows, *hidden]


def _padded(items: list[list[int]], count: int) -> Tensor:
    """So many ``items``; those of padding have no place."""
    return torch.tensor(items + [[-1, *[0] * (len(ITEM) - 1)]] * (count - len(items)))


def _no_draft(items: Tensor) -> Draft:
    none = items.new_zeros(len(items), 0)
    return Draft(none, none.to(torch.int32), none.to(torch.float32))
