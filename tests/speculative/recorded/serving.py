"""A server of recorded texts: its drafters propose what was recorded, its calls take what the
traces' file says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import cycle, islice
from typing import Any

import numpy as np

from trtspec.config.sampling import SamplingParams
from trtspec.executor.step.drafter import DraftCacheNeeds, Drafter, DrafterNeeds
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree
from trtspec.speculative.hybrid.member import Member
from trtspec.speculative.hybrid.union import UnionDrafter

from ..simulated_serving import steady
from .trace import Text, costs, texts

FEW_BEHIND = 4
"""Rows that a rollout feeds beside: more cost what a row of a prompt costs."""


class Server:
    """name: of a file of traces. drafters: their names there, none for no speculation."""

    def __init__(
        self,
        name: str,
        drafters: Sequence[str],
        adapts: bool,
        slowness: Callable[[float], float] = steady,
    ) -> None:
        self.costs, self.slowness = costs(name), slowness
        self.now = self.work = 0.0
        self.texts: dict[int, Text] = {}
        self.drafters = [
            RecordedDrafter(self, drafter, i + 1) for i, drafter in enumerate(drafters)
        ]
        self.union: UnionDrafter | None = None
        if drafters:
            nodes = max(drafter.needs.max_nodes for drafter in self.drafters)
            has_engine = any(drafter.needs.has_draft_engine for drafter in self.drafters)
            needs = DrafterNeeds(nodes, nodes, has_draft_engine=has_engine)
            members = [drafter.member() for drafter in self.drafters]
            self.union = UnionDrafter(members, needs, adapts=adapts, clock=lambda: self.now)
            engine: Any = Engine(self.target)
            self.union.profile(engine, 8, 1024)

    def target(self, rows: int) -> float:
        first, row = self.costs["target"]
        return float(first + row * rows)

    def spend(self, seconds: float) -> None:
        self.work += seconds
        self.now += seconds * self.slowness(self.now)

    def said(self, request: Request) -> Callable[[int], int]:
        """The tokens that come next."""
        done, text = request.num_output_tokens, self.texts[request.id]
        return lambda i: text.token(done + i)

    def serve(self, served: Sequence[Text], batch: int, first_id: int = 0) -> float:
        """Seconds that the texts take, as many at once as the batch has room for."""
        began, waiting, running = self.work, list(enumerate(served, first_id)), []
        while waiting or running:
            while waiting and len(running) < batch:
                i, text = waiting.pop(0)
                self.texts[i] = text
                params = SamplingParams(max_tokens=text.num_tokens)
                prompt = list(range(-text.prompt, 0))
                running.append(Request.create(i, prompt, params, seed=i, max_seq_len=1 << 20))
            self._step(running, len(waiting))
            for request in running:
                if not request.remaining_tokens and self.union is not None:
                    self.union.release(request.id)
            running = [request for request in running if request.remaining_tokens]
        return self.work - began

    def _step(self, requests: Sequence[Request], num_waiting: int) -> None:
        union = self.union
        going = [len(request.tokens) > request.num_prompt_tokens for request in requests]
        skips = union is None or (any(going) and union.skips_drafts(sum(going)))
        items = []
        for request, goes in zip(requests, going, strict=True):
            rows = 1 if goes else request.num_prompt_tokens
            nodes = 0 if skips or not goes or union is None else union.needs.max_nodes
            start = len(request.tokens) - rows
            items.append(ScheduledRequest(request, start, rows, goes, nodes, True))
        batch = StepPlan(tuple(items), num_waiting=num_waiting)
        drafts = DraftBatch.none(len(items)) if union is None else union.prepare_draft_tokens(batch)
        self.spend(self.target(sum(item.num_rows for item in items) + sum(drafts.counts)))
        all_emitted = []
        for request, tree in zip(requests, drafts, strict=True):
            said, row = self.said(request), -1
            nodes = list(zip(tree.parents.tolist(), tree.tokens.tolist(), strict=True))
            emitted = [said(0)]
            while (row, emitted[-1]) in nodes:
                row = nodes.index((row, emitted[-1]))
                emitted.append(said(len(emitted)))
            request.tokens.extend(emitted)
            if not request.remaining_tokens:
                request.finish_reason = "length"
            all_emitted.append(emitted)
        if union is not None:
            union.on_accepted(batch, StepResult.of(all_emitted, drafts))
        self.spend(self.costs["around"])


class RecordedDrafter(Drafter):
    """Drafts what was recorded at each position of a request's text. With a cost of rows it is an
    engine with a cache."""

    live_requests: frozenset[int] = frozenset()

    def __init__(self, server: Server, name: str, mark: int) -> None:
        self.server, self.name, self.mark = server, name, mark
        self.call, self.request, *rows = server.costs[name]
        self.row = rows[0] if rows else 0.0
        self.is_engine = bool(rows)
        nodes = server.costs["nodes"][name]
        caches = (DraftCacheNeeds(from_tokens=True),) if self.is_engine else ()
        self.needs = DrafterNeeds(nodes, nodes, caches, has_draft_engine=self.is_engine)
        self.fed: dict[int, int] = {}
        self.num_calls = 0

    def member(self) -> Member:
        if not self.is_engine:
            return Member(self)
        engine: Any = Engine(lambda requests: self.call + self.request * requests, self.row)
        return Member(self, engine, self)

    window = 0

    def committed(self, request: Request) -> int:
        return self.fed.get(request.id, 0)

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        self.num_calls += 1
        self.server.spend(self.call + self.request * len(batch.items))
        trees: list[TokenTree | None] = [None] * len(batch.items)
        for at, item in enumerate(batch.items):
            request = item.request
            if self.is_engine:
                behind = len(request.tokens) - self.committed(request)
                self.server.spend(self.row * max(behind - FEW_BEHIND, 0))
                self.fed[request.id] = len(request.tokens)
            place = self.server.texts[request.id].places[self.name][request.num_output_tokens - 1]
            nodes = min(place.nodes, item.max_nodes, request.remaining_tokens - 1)
            if nodes <= 0:
                continue
            said = self.server.said(request)
            tokens = [said(i) if i < place.right else -self.mark for i in range(nodes)]
            scores = np.log(np.cumprod(place.chances[:nodes])).astype(np.float32)
            trees[at] = TokenTree(tokens, range(-1, nodes - 1), scores)
        return DraftBatch.of(trees)

    def on_accepted(self, batch: StepPlan, result: StepResult) -> list[tuple[int, ...]]:
        for item in batch.items:
            if self.is_engine and not item.is_generation and batch.feeds_drafts:
                self.server.spend(self.row * item.num_rows)
                self.fed[item.request.id] = item.num_rows
        return [(self.committed(i.request),) if self.is_engine else () for i in batch.items]

    def release(self, request_id: int) -> None:
        self.fed.pop(request_id, None)


class Engine:
    """Takes what it is said to, by rows of a target, or by requests where rows are the draft's."""

    def __init__(self, seconds: Callable[[int], float], row: float | None = None) -> None:
        self._seconds, self._row = seconds, row

    def time_call(self, requests: int, rows: int) -> float:
        if self._row is None:
            return self._seconds(rows)
        return self._seconds(requests) + self._row * max(rows - FEW_BEHIND * requests, 0)

    def padded_rows(self, requests: int, rows: int) -> int:
        return rows

    def context_share(self, tokens: int) -> float:
        return 0.0


def tokens_per_second(
    name: str,
    drafters: Sequence[str],
    adapts: bool,
    served: Sequence[tuple[int, str]],
    batch: int = 1,
    rounds: int = 1,
    slowness: Callable[[float], float] = steady,
) -> dict[tuple[int, str], float]:
    """By kind: the texts of each kind, one behind the other, all kinds ``rounds`` times."""
    server = Server(name, drafters, adapts, slowness)
    tokens, seconds = dict.fromkeys(served, 0.0), dict.fromkeys(served, 0.0)
    ids = 0
    for temperature, kind in islice(cycle(served), rounds * len(served)):
        found = texts(name, temperature, kind)
        seconds[temperature, kind] += server.serve(found, batch, ids)
        ids += len(found)
        tokens[temperature, kind] += sum(text.num_tokens for text in found)
    return {which: tokens[which] / seconds[which] for which in served}
