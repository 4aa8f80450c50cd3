"""Random arrivals, aborts and ends, run by executors over the engines of one LLM, with steps ahead
of results or without."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, decoders, models
from torch import Tensor

from trtspec import LLM, SamplingParams
from trtspec.backends.inputs import EngineInputs
from trtspec.backends.session import Session
from trtspec.executor.py_executor import PyExecutor
from trtspec.executor.resident.engine import Patch
from trtspec.executor.resident.target import ResidentTarget
from trtspec.executor.schedule.kv_cache import KVCacheManager
from trtspec.executor.schedule.resources import ResourceManager
from trtspec.executor.schedule.scheduler import Scheduler
from trtspec.executor.step.drafter import DraftCacheNeeds, NoDrafter
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_result import SpecStep
from trtspec.executor.text.stopping import StopChecker
from trtspec.executor.text.token_decoder import TokenDecoder

from ..models.tiny_hf import VOCAB
from .helpers import open_llm

BLOCK = 4
LIMITS: dict[str, Any] = {"max_batch_size": 4, "max_num_tokens": 80, "max_seq_len": 64}


@dataclass(frozen=True)
class Arrival:
    """step: before which it comes. abort: when so many tokens of it were seen."""

    prompt: list[int]
    params: SamplingParams
    seed: int
    ends: tuple[int, ...]
    step: int
    abort: int | None


@dataclass(frozen=True)
class World:
    """spare_blocks: beyond those in which one request fits alone. rows: of a step, beyond one for
    each request. calm: nobody gets in another's way, so that figures are those of lag 0."""

    arrivals: tuple[Arrival, ...]
    spare_blocks: int
    batch: int
    rows: int
    reuse: bool
    calm: bool


@cache
def decoder() -> TokenDecoder:
    """A token is two letters."""
    vocab = {chr(65 + i // 16) + chr(97 + i % 16): i for i in range(VOCAB)}
    backend = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    backend.decoder = decoders.ByteLevel()
    return TokenDecoder(backend)


def random_world(seed: int) -> World:
    rng = random.Random(seed)
    calm = rng.random() < 0.35
    base = [rng.randrange(VOCAB) for _ in range(20)]
    arrivals = []
    for id in range(rng.randint(2, 4)):
        prompt = base[: rng.randint(1, 20)]
        if rng.random() < 0.5:
            prompt = [*prompt, rng.randrange(VOCAB)]
        depth = {"num_speculative_tokens": rng.randrange(3)}
        params = SamplingParams(
            max_tokens=rng.randint(1, 14),
            temperature=rng.choice((0.0, 0.8)),
            top_k=rng.choice((0, 0, 20)),
            speculative=rng.choice((None, None, None, depth)),
            return_spec_steps=True,
        )
        ends = tuple(rng.randrange(VOCAB) for _ in range(rng.choice((0, 3))))
        step = 0 if calm else rng.choice((0, 0, rng.randrange(9)))
        abort = rng.randrange(6) if not calm and rng.random() < 0.15 else None
        arrivals.append(Arrival(prompt, params, 100 * seed + id, ends, step, abort))
    if not calm and rng.random() < 0.8:  # one that needs the host
        one = rng.randrange(len(arrivals))
        params = replace(arrivals[one].params, logprobs=0)
        arrivals[one] = replace(arrivals[one], params=params, step=rng.randrange(1, 4))
    if calm:
        return World(tuple(arrivals), 99, 4, 76, False, True)
    return World(
        *(tuple(arrivals), rng.choice((0, 3, 6, 20, 20)), rng.choice((1, 3, 4, 4))),
        *(rng.choice((2, 12, 30, 76)), rng.random() < 0.7, False),
    )


class Skilled:
    """A rollout whose first nodes mostly say what the texts of these seeds go on with."""

    def __init__(self, session: Session, texts: dict[int, list[int]]) -> None:
        self._session, self._texts = session, texts

    def run(self, inputs: EngineInputs) -> list[Tensor]:
        tokens, parents, scores = self._session.run(inputs)
        columns = inputs.columns
        assert columns is not None
        tokens = tokens.clone()
        given = zip(tokens, parents.tolist(), columns.seed.tolist(), strict=True)
        for (own, above, seed), first in zip(given, columns.output_index.tolist(), strict=True):
            node = -1
            for index, token in enumerate(self._texts.get(seed, [])[first:], first):
                node = next((i for i, parent in enumerate(above) if parent == node), -2)
                if node < 0 or random.Random(31 * seed + index).random() > 0.8:
                    break
                own[node] = token
        return [tokens, parents, scores]


@dataclass(frozen=True)
class Outcome:
    """What a request came to; steps: what it verified."""

    tokens: tuple[int, ...]
    text: str
    reason: str | None
    stop_reason: int | str | None
    steps: tuple[SpecStep, ...]


class Engines:
    """Those of an LLM, and the executors over them."""

    def __init__(self, folder: Path, speculation: Any, **options: Any) -> None:
        sizes = {"tokens_per_block": BLOCK, **LIMITS, **options}
        self.llm: LLM = open_llm(folder, speculation, **sizes)
        runtime = self.llm._runtime
        self.target, drafts = runtime.target, runtime.drafts
        executor: Any = runtime.executor
        drafter: Any = executor._drafter
        self._drafter: Any = getattr(drafter, "watched", drafter)
        self.draft: Any = drafts[0].engine if drafts else None
        self._sessions = None if self.draft is None else self.draft._sessions
        built = [(each.slots, each.lookahead) for each in self.llm.config.drafts]
        by_tokens = not self._drafter.needs.reads_hidden
        caches = [DraftCacheNeeds(*sizes, from_tokens=by_tokens) for sizes in built]
        self._needs = replace(self._drafter.needs, caches=tuple(caches))
        self.most_nodes = self._needs.max_nodes
        self.rows_behind = getattr(self._drafter, "rows_behind", 0)
        self.resident_type: type[ResidentTarget] = ResidentTarget

    def know(self, texts: dict[int, list[int]]) -> None:
        """Rollouts find these texts, by seed."""
        if self._sessions is not None:
            whole, step = self._sessions.rollout, self._sessions.step
            self.draft._sessions = replace(
                self._sessions,
                rollout=Skilled(whole, texts),
                step=None if step is None else Skilled(step, texts),
            )

    def executor(self, world: World, lag: int, drafts: bool = True) -> PyExecutor:
        """A new one with caches of its own, as far as books go."""
        drafts = drafts and self.draft is not None
        like = self._drafter
        needs = self._needs if drafts else NoDrafter.needs
        longest = max(len(a.prompt) + a.params.max_tokens for a in world.arrivals)
        extras = [needs.max_nodes, *(cache.slots for cache in needs.caches)]
        alone = [-(-(longest + extra) // BLOCK) for extra in extras]
        sizes = [blocks + world.spare_blocks for blocks in alone]
        lookaheads = [0, *(cache.lookahead for cache in needs.caches)]
        target, *others = [
            KVCacheManager(size, BLOCK, world.reuse, lookahead=lookahead)
            for size, lookahead in zip(sizes, lookaheads, strict=True)
        ]
        by_tokens = [cache.from_tokens for cache in needs.caches]
        resources = ResourceManager(target, others, by_tokens)
        drafter: Any = NoDrafter()
        if drafts:
            drafter = type(like)(self.draft, resources.draft_caches[0], needs)
        rows = world.batch + world.rows
        scheduler = Scheduler(resources, world.batch, rows, LIMITS["max_seq_len"], needs)
        resident = None
        if lag:
            rollout = drafter.device_rollout()
            assert (rollout is None) != drafts
            resident = self.resident_type(self.target, world.batch, needs, rollout)
        return PyExecutor(self.target, resources, scheduler, drafter, resident=resident, lag=lag)


class Run:
    """One world at one lag."""

    def __init__(self, engines: Engines, world: World, lag: int, drafts: bool = True) -> None:
        self.executor = engines.executor(world, lag, drafts)
        self.world = world
        self.events: Counter[str] = Counter()
        if lag:
            steps: Any = self.executor._resident
            self._watch(steps._engine)
        self.requests = [
            Request.create(
                *(id, arrival.prompt, arrival.params, arrival.seed, LIMITS["max_seq_len"], 0),
                arrival.ends,
                max_draft_len=arrival.params.max_draft_len(2**62),
            )
            for id, arrival in enumerate(world.arrivals)
        ]

    def _watch(self, engine: Any) -> None:
        """Count prompts' parts and the requests that leave the device."""
        launch, leave = engine.launch, engine.leave

        def launched(patch: Patch) -> Any:
            self.events["chunks"] += sum(not item.samples for item in patch.plan.items)
            return launch(patch)

        def left(request: Request, committed: int) -> None:
            self.events["left"] += 1
            leave(request, committed)

        engine.launch, engine.leave = launched, left

    def outcomes(self) -> list[Outcome]:
        executor, world = self.executor, self.world
        stops = [
            StopChecker(r.params, r.eos_token_ids, decoder(), r.tokens[:]) for r in self.requests
        ]
        steps: list[list[SpecStep]] = [[] for _ in stops]
        seen = [0] * len(stops)
        step = 0
        while executor.has_work or any(arrival.step >= step for arrival in world.arrivals):
            for request, arrival in zip(self.requests, world.arrivals, strict=True):
                if arrival.step == step:
                    executor.add(request, stops[request.id])
                elif arrival.abort is not None and seen[request.id] >= arrival.abort:
                    executor.abort(request.id)
            if executor.has_work:
                self._step(steps, seen)
            step += 1
            assert step < 1000, "no progress"
        resources: Any = executor._resources
        for books in resources.all:
            assert books.num_free_blocks == books.num_blocks, "a block is lost"
        assert not executor._drafter.live_requests
        self.events["preempted"] += executor.metrics.num_preemptions
        self.events["cached"] += sum(bool(request.num_cached_tokens) for request in self.requests)
        return [
            Outcome(
                tuple(r.output_tokens), stop.text, r.finish_reason, stop.stop_reason, tuple(own)
            )
            for r, stop, own in zip(self.requests, stops, steps, strict=True)
        ]

    def _step(self, steps: Sequence[list[SpecStep]], seen: list[int]) -> None:
        for output in self.executor.step():
            seen[output.request.id] += len(output.tokens)
            if output.error is not None:
                raise output.error
            if output.spec_step is not None:
                steps[output.request.id].append(output.spec_step)
                self.events["accepted"] += len(output.spec_step.accepted)
                accepted = output.spec_step.accepted
                self.events["moved"] += accepted != list(range(len(accepted)))
        self.executor._resources.check_invariants()


def stopped(world: World, texts: Sequence[Outcome], seed: int) -> World:
    """The world with stop strings that are in some of the texts."""
    rng = random.Random(~seed)
    arrivals = []
    for arrival, outcome in zip(world.arrivals, texts, strict=True):
        if rng.random() < 0.3 and len(outcome.text) > 4:
            end = rng.randrange(3, len(outcome.text))
            params = replace(arrival.params, stop=(outcome.text[end - 3 : end],))
            arrival = replace(arrival, params=params)
        arrivals.append(arrival)
    return replace(world, arrivals=tuple(arrivals))


def compare(engines: Engines, seed: int, lags: Sequence[int] = (1, 2)) -> Counter[str]:
    """Runs a world without drafts, and with them at lag 0 and others; what happened. Texts are
    equal, but for where those that are aborted end; in a calm world, steps are as well, unless
    rows run short, or the draft has a row before its first state, from which a device drafts one
    step earlier."""
    world = random_world(seed)
    same_steps = world.calm and not engines.rows_behind and engines.most_nodes * 4 <= world.rows
    plain = replace(world, arrivals=tuple(replace(a, abort=None) for a in world.arrivals))
    texts = Run(engines, plain, 0, drafts=False).outcomes()
    world = stopped(world, texts, seed)
    engines.know({a.seed: [*t.tokens] for a, t in zip(world.arrivals, texts, strict=True)})
    expected = Run(engines, world, 0).outcomes()
    events: Counter[str] = Counter()
    for lag in lags:
        run = Run(engines, world, lag)
        found = run.outcomes()
        events += run.events
        for before, after, whole in zip(expected, found, texts, strict=True):
            assert after.tokens == whole.tokens[: len(after.tokens)]
            events[after.reason or ""] += 1
            events["stop string"] += isinstance(after.stop_reason, str)
            if "abort" not in (before.reason, after.reason):
                steps = before.steps if same_steps else after.steps
                assert after == replace(before, steps=steps)
                events["same steps"] += same_steps
    return events
