"""Single engine calls by rows, batch and context, each beside the floor of what it reads.

Caches hold zeros and all tokens are equal; neither changes a call's cost.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from trtspec.backends.packing import RowGroup, pack
from trtspec.bench.report.floor import MachineRates, seconds_per_call
from trtspec.bench.synthetic.engine import source_of, weights_of
from trtspec.builder.target_drafts import TargetDrafts
from trtspec.config.decoding import DecodingConfig
from trtspec.config.kv import KvCacheConfig
from trtspec.engine.folder import EngineConfig
from trtspec.errors import ConfigError
from trtspec.executor.engines.buckets import greedy_sampling
from trtspec.executor.engines.counted_engine import CountedEngine
from trtspec.executor.engines.pass_rollout import StopRule
from trtspec.llmapi.engine_drafts import find_drafts
from trtspec.llmapi.limits import Limits
from trtspec.llmapi.runtime import open_runtime
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree
from trtspec.speculative.draft_runtime import DraftRuntime
from trtspec.speculative.registry import draft_kinds

VERIFY, ROLLOUT, FIRST_STEP = "verify", "rollout", "first step"
TARGET = "target"


@dataclass(frozen=True)
class CallShape:
    """One kind of call. rows: per request, the root and a chain of drafts to verify, or the
    accepted rows with which a rollout, or its first step alone, begins; batch: requests; context:
    committed tokens of each."""

    kind: str
    rows: int
    batch: int
    context: int


@dataclass(frozen=True)
class CallTime:
    """The seconds of a call, and the bytes that it had to read. engine: "target" or the folder of a
    draft. processor_seconds: of all threads together, which other load hardly affects."""

    engine: str
    shape: CallShape
    seconds: float
    processor_seconds: float
    weight_bytes: int
    kv_bytes: int


class ForwardBench:
    """The engines of a folder, with room in their caches for the calls to be timed.

    Raises:
        ConfigError: a call has more rows or tokens than the engine was built for.
        EngineError: see `open_runtime`.
    """

    def __init__(
        self,
        folder: Path,
        speculation: DecodingConfig | None,
        shapes: Sequence[CallShape],
    ) -> None:
        engine = EngineConfig.read(folder)
        self.engine = engine
        layout = engine.layout
        self._block = layout.tokens_per_block
        for shape in shapes:
            _check(shape, engine)
        # Caches hold at most a block more than the tokens of a sequence for each request.
        assert engine.build.max_seq_len is not None
        most = -(-engine.build.max_seq_len // self._block) + 1
        self._per_request = min(layout.blocks_per_sequence, most)
        batch = max(shape.batch for shape in shapes)
        limits = Limits.of(engine.build, batch, None, None)
        room = KvCacheConfig(max_tokens=batch * self._per_request * self._block)
        drafts = find_drafts(engine, speculation, TargetDrafts(source_of(folder, engine)))
        weights = weights_of(folder, engine)
        runtime = open_runtime(folder, engine, drafts, limits, speculation, room, weights=weights)
        self._target, self._drafts = runtime.target, runtime.drafts

    def measure(self, shape: CallShape, seconds: float) -> list[CallTime]:
        """Time one kind of call, for every engine that makes it, for about that many seconds
        each."""
        if shape.kind == VERIFY:
            return [self._time(TARGET, self._target, self._verify(shape), shape, seconds)]
        return [
            self._time(draft.folder, draft.engine, self._roll_out(draft, shape), shape, seconds)
            for draft in self._drafts
            if shape.kind == ROLLOUT or draft.engine.rolls_first_step
        ]

    def _time(
        self,
        name: str,
        engine: CountedEngine,
        call: Callable[[], object],
        shape: CallShape,
        seconds: float,
    ) -> CallTime:
        before = engine.weight_bytes, engine.kv_bytes
        call()
        read = engine.weight_bytes - before[0], engine.kv_bytes - before[1]
        number = 0

        def counted() -> None:
            nonlocal number
            number += 1
            call()

        began = time.process_time()
        taken = seconds_per_call([counted], seconds, self.engine.build.device)
        return CallTime(name, shape, taken, (time.process_time() - began) / number, *read)

    def _verify(self, shape: CallShape) -> Callable[[], object]:
        tree = TokenTree([0] * (shape.rows - 1), range(-1, shape.rows - 2))
        groups = [RowGroup([0], shape.context, self._blocks(i)) for i in range(shape.batch)]
        drafts, layout = DraftBatch.of([tree] * shape.batch), self._target.layout
        return lambda: self._target.forward(pack(groups, layout, drafts))

    def _roll_out(self, draft: DraftRuntime, shape: CallShape) -> Callable[[], object]:
        columns = greedy_sampling(shape.batch)
        width = len(draft.network.capture_layers) * self.engine.target.hidden_size
        rows = shape.batch * (1 if draft.cache is None else shape.rows)
        build = self.engine.build
        hidden = torch.zeros(rows, width, dtype=getattr(torch, build.dtype), device=build.device)
        if draft.cache is None:
            reads_roots = draft_kinds()[draft.network.kind].reads_roots
            roots = torch.zeros(rows, dtype=torch.int64) if reads_roots else None
            return partial(draft.heads.rollout, hidden, columns, roots)
        engine, _ = draft.cached
        groups = [
            RowGroup([0] * shape.rows, shape.context, self._blocks(i)) for i in range(shape.batch)
        ]
        rule = StopRule(max_depth=1) if shape.kind == FIRST_STEP else StopRule()
        return partial(engine.rollout, groups, columns, hidden if width else None, rule)

    def _blocks(self, request: int) -> torch.Tensor:
        first = request * self._per_request
        return torch.arange(first, first + self._per_request, dtype=torch.int32)


def row_of(found: CallTime, rates: MachineRates) -> dict[str, Any]:
    """The call as plain JSON values: its engine and shape, ``ms``, ``processor_ms`` of all threads
    together, the ``memory_floor_ms`` of what it reads and its share, and ``linear_ms``: the time of
    its weights at the rates of plain products."""
    floor = rates.floor_of(found.weight_bytes + found.kv_bytes, found.seconds)
    rows = found.shape.rows * found.shape.batch
    return {
        "engine": found.engine,
        **asdict(found.shape),
        "ms": found.seconds * 1e3,
        "processor_ms": found.processor_seconds * 1e3,
        "weight_bytes": found.weight_bytes,
        "kv_bytes": found.kv_bytes,
        **floor.to_dict(),
        "linear_ms": rates.linear_seconds(found.weight_bytes, rows) * 1e3,
    }


def _check(shape: CallShape, engine: EngineConfig) -> None:
    build = engine.build
    assert build.max_seq_len is not None and build.max_num_tokens is not None
    limits = (
        ("rows to verify", shape.rows, engine.speculative_rows, "num_draft_tokens"),
        ("tokens of context", shape.context, build.max_seq_len - shape.rows, "max_seq_len"),
        ("requests", shape.batch, build.max_batch_size, "max_batch_size"),
        ("rows in all", shape.rows * shape.batch, build.max_num_tokens, "max_num_tokens"),
    )
    for what, value, limit, name in limits:
        if value > limit:
            raise ConfigError(
                f"{value} {what} exceed the {limit} that the engine was built for; lower it or "
                f"rebuild the engine with a larger {name}"
            )
