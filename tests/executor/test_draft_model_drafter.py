"""TokenDrafter in random steps over an engine that only keeps books: what every row of the
draft's cache was made of, whenever it was fed."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec.backends.packing import RowGroup
from trtspec.config.sampling import SamplingParams
from trtspec.executor.engines.pass_rollout import StopRule
from trtspec.executor.schedule.kv_cache import KVCacheManager
from trtspec.executor.schedule.resources import ResourceManager
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.sequence import UNLIMITED
from trtspec.speculative.draft_model.options import DraftTargetDecodingConfig
from trtspec.speculative.token_drafter import TokenDrafter, token_needs

BLOCK, DEPTH, VOCAB, MOST_BEHIND = 3, 2, 5, 6
Path = tuple[int, ...]


class Engine:
    """Slot -> the prefix that its row was made of. Its rollouts end at random depths."""

    vocab_size = VOCAB
    rolls_first_step = True

    def __init__(self) -> None:
        self.rows: dict[int, Path] = {}
        self.num_fed = 0
        self._rng = random.Random(0)

    def slot(self, blocks: Tensor, position: int) -> int:
        return int(blocks[position // BLOCK]) * BLOCK + position % BLOCK

    def feed(self, groups: Sequence[RowGroup]) -> None:
        for group in groups:
            start = group.context
            prefix = self.rows[self.slot(group.blocks, start - 1)] if start else ()
            assert len(prefix) == start and len(group.tokens)
            for position, token in enumerate(group.tokens, start):
                prefix = (*prefix, token)
                self.rows[self.slot(group.blocks, position)] = prefix
            self.num_fed += len(group.tokens)

    def rollout(
        self,
        groups: Sequence[RowGroup],
        sampling: Sequence[Tensor],
        hidden: Tensor | None,
        rule: StopRule,
    ) -> tuple[Tensor, Tensor, Tensor]:
        self.feed(groups)
        depth = self._rng.randint(1, min(rule.max_depth, DEPTH))
        for group in groups:
            end = group.context + len(group.tokens)
            for offset in range(depth - 1):
                self.rows[self.slot(group.blocks, end + offset)] = ()
        shape = len(groups), depth
        parents = torch.arange(-1, depth - 1, dtype=torch.int32).expand(shape)
        return torch.ones(shape, dtype=torch.int64), parents, torch.zeros(shape)


class Serving:
    """Requests whose steps are dealt out at random."""

    drafter_type = TokenDrafter

    def __init__(self, seed: int, window: int = 0) -> None:
        self.rng = random.Random(seed)
        self.engine: Any = Engine()
        blocks = self.rng.choice((30, 200))
        draft = KVCacheManager(blocks, BLOCK, window=window)
        self.resources = ResourceManager(KVCacheManager(200, BLOCK), [draft], [True])
        config = DraftTargetDecodingConfig(speculative_model="x", max_draft_len=DEPTH)
        cache = self.resources.draft_caches[0]
        self.drafter = self.drafter_type(self.engine, cache, token_needs(config))
        self.live: list[Request] = []
        self.found: dict[int, int] = {}  # rows that a request found in the draft's cache
        self.events: Counter[str] = Counter()
        self.base = [self.rng.randrange(VOCAB) for _ in range(20)]

    def arrive(self, id: int) -> None:
        tokens = [*self.base[: self.rng.randint(1, 20)], self.rng.randrange(VOCAB)]
        limit = self.rng.choice((UNLIMITED, UNLIMITED, 0))
        request = Request.create(
            id, tokens, SamplingParams(max_tokens=99), 0, 200, max_draft_len=limit
        )
        start = self.resources.begin(request)
        self.events["begins behind"] += self.resources.draft_caches[0].committed(request) < start
        self.found[id] = self.resources.draft_caches[0].committed(request)
        self.live.append(request)

    def item(self, request: Request) -> ScheduledRequest | None:
        total = len(request.tokens)
        start = self.resources.target_committed(request)
        if start == total - 1:
            nodes = self.rng.choice((0, DEPTH)) if request.may_draft else 0
            draft = (total + self.drafter.needs.caches[0].slots,) if nodes else ()
            if not self.resources.reserve(request, total + nodes, draft):
                return None
            return ScheduledRequest(request, start, 1, True, nodes, True)
        rows = self.rng.randint(1, total - start)
        draft = (start + rows,) if request.may_draft else ()
        if not self.resources.reserve(request, start + rows, draft):
            return None
        return ScheduledRequest(request, start, rows, False, 0, start + rows == total)

    def step(self) -> None:
        rng, cache = self.rng, self.resources.draft_caches[0]
        items = [item for request in self.live if (item := self.item(request)) is not None]
        batch = StepPlan(tuple(items), feeds_drafts=rng.random() < 0.5)
        drafts = DraftBatch.none(len(items))
        if rng.random() < 0.3:
            drafts = self.drafter.prepare_draft_tokens(batch)
        emitted = []
        for item, drafted in zip(items, drafts.counts, strict=True):
            nodes = rng.randint(0, drafted) if item.is_generation else 0
            emitted.append([rng.randrange(VOCAB) for _ in range(nodes + item.samples)])
            self.events["drafted"] += drafted > 0
            self.events["drafted one token"] += drafted == 1
        before, result = self.engine.num_fed, StepResult.of(emitted)
        assert self.resources.extend(batch, result) == []
        lengths = self.drafter.on_accepted(batch, result)
        self.resources.commit(batch, result, lengths)
        if not batch.feeds_drafts:
            self.events["waited"] += self.engine.num_fed == before
            self.events["piled up"] += self.engine.num_fed > before
        for item in items:
            request = item.request
            behind = len(request.tokens) - cache.committed(request)
            if not request.may_draft:
                self.events["not drafted for"] += 1
                assert cache.committed(request) == self.found[request.id], "fed for nothing"
            elif item.max_nodes or not item.is_generation:
                assert behind < MOST_BEHIND + len(request.tokens) - item.start - item.num_rows + 1
        self.check()

    def check(self) -> None:
        self.resources.check_invariants()
        cache = self.resources.draft_caches[0]
        for request in self.live:
            blocks = cache.block_table(request)
            for position in range(cache.committed(request)):
                held = self.engine.rows[self.engine.slot(blocks, position)]
                assert held == tuple(request.tokens[: position + 1])

    def run(self) -> Counter[str]:
        for id in range(8):
            self.arrive(id)
            for _ in range(self.rng.randint(1, 8)):
                self.step()
            if self.rng.random() < 0.5:
                request = self.live.pop(self.rng.randrange(len(self.live)))
                self.resources.free(request)
                self.drafter.release(request.id)
        return self.events


@pytest.fixture(autouse=True)
def few_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trtspec.speculative.token_drafter.MOST_BEHIND", MOST_BEHIND)


@pytest.mark.slow
def test_rows_are_right_whenever_they_are_fed() -> None:
    events: Counter[str] = Counter()
    for seed in range(200):
        events += Serving(seed).run()
    for event in (
        "begins behind",
        "drafted",
        "drafted one token",
        "waited",
        "piled up",
        "not drafted for",
    ):
        assert events[event] > 20, (event, events)


@pytest.mark.parametrize("window", [0, 4])
def test_a_cache_with_a_window_is_fed_prompts_as_the_target_reads_them(window: int) -> None:
    """Even if no draft is wanted: a small cache has no room to be fed all of a text at once."""
    serving = Serving(0, window)
    tokens = [1] * 15
    request = Request.create(0, tokens, SamplingParams(max_tokens=9), 0, max_seq_len=200)
    serving.resources.begin(request)
    for start in (0, 5):
        assert serving.resources.reserve(request, start + 5, (start + 5,))
        item = ScheduledRequest(request, start, 5, False, 0, False)
        batch = StepPlan((item,), feeds_drafts=False)
        result = StepResult.of([()])
        ((length,),) = serving.drafter.on_accepted(batch, result)
        serving.resources.commit(batch, result, [(length,)])
        assert length == (start + 5 if window or start + 5 >= MOST_BEHIND else 0)


class FeedsFromTheTargetsStart(TokenDrafter):
    """As if the draft always held what the target does."""

    def on_accepted(self, batch: StepPlan, result: StepResult) -> list[tuple[int, ...]]:
        lengths = super().on_accepted(batch, result)
        return [
            length if item.is_generation else (item.start + item.num_rows,)
            for item, length in zip(batch.items, lengths, strict=True)
        ]


class NeverFeedsLate(TokenDrafter):
    def on_accepted(self, batch: StepPlan, result: StepResult) -> list[tuple[int, ...]]:
        fed = [self._fed.pop(item.request.id, None) for item in batch.items]
        return [
            (self._cache.committed(item.request) if known is None else known,)
            for item, known in zip(batch.items, fed, strict=True)
        ]


@pytest.mark.parametrize("broken", [FeedsFromTheTargetsStart, NeverFeedsLate])
def test_the_books_notice(broken: type[TokenDrafter]) -> None:
    class Broken(Serving):
        drafter_type = broken

    with pytest.raises((AssertionError, KeyError)):
        for seed in range(200):
            Broken(seed).run()
