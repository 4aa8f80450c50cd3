"""Random arrivals, aborts, ends and failures, run by a PyExecutor with a lag or without."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from typing import Any

from tokenizers import Tokenizer, decoders, models

from trtspec.config.sampling import SamplingParams
from trtspec.executor.logits.logits_processor import LogitsProcessor
from trtspec.executor.py_executor import PyExecutor, StepOutput
from trtspec.executor.schedule.kv_cache import KVCacheManager
from trtspec.executor.schedule.resources import ResourceManager
from trtspec.executor.schedule.scheduler import Scheduler
from trtspec.executor.step.request import Request
from trtspec.executor.text.stopping import StopChecker
from trtspec.executor.text.token_decoder import TokenDecoder
from trtspec.ops.kv_cache import StateSizes

from .lag_device import Device
from .lag_host import HostDrafter, HostTarget, Memory
from .lag_model import Model, truth

VOCAB = 6
END = 5


class _Watches(LogitsProcessor):
    """A user's processor, of which the device knows nothing; it changes nothing."""

    def extend(self, tokens: Any) -> None:
        pass


@dataclass(frozen=True)
class Arrival:
    """step: before which it comes. abort: when so many tokens of it were seen."""

    prompt: list[int]
    params: SamplingParams
    seed: int
    ends: tuple[int, ...]
    step: int
    abort: int | None
    watched: bool


@dataclass(frozen=True)
class World:
    """draft: rows of a rollout in the draft's cache, None without one, as with a window, where a
    draft may begin later than its target. failing: calls of the target or launches that raise;
    failing_collects: launches whose result does."""

    seed: int
    model: Model
    arrivals: tuple[Arrival, ...]
    block: int
    spare_blocks: int
    batch: int
    spare_rows: int
    reuse: bool
    draft: int | None
    on_host: int
    failing: frozenset[int]
    failing_collects: frozenset[int]
    states: StateSizes


@cache
def decoder() -> TokenDecoder:
    """Tokens are letters."""
    backend = Tokenizer(models.BPE(vocab={c: i for i, c in enumerate("abcdef")}, merges=[]))
    backend.decoder = decoders.ByteLevel()
    return TokenDecoder(backend)


def random_world(seed: int) -> World:
    rng = random.Random(seed)
    nan_every, depth = rng.choice((0, 0, 0, 60)), rng.choice((0, 1, 2, 4))
    skill, width, window = rng.choice((30, 80, 95)), rng.choice((1, 1, 2)), rng.choice((0, 0, 0, 5))
    model = Model(VOCAB, seed, nan_every, skill, depth, width, window)
    base = [rng.randrange(VOCAB) for _ in range(12)]
    arrivals = []
    for id in range(rng.randint(1, 5)):
        prompt = base[: rng.randint(1, 12)]
        if rng.random() < 0.5:
            prompt[-1] = rng.randrange(VOCAB)
        drafts = {"num_speculative_tokens": min(rng.randrange(3), depth)}
        plain = SamplingParams(
            max_tokens=rng.randint(1, 16),
            logprobs=0 if rng.random() < 0.06 else None,
            speculative=rng.choice((None, None, drafts)),
        )
        own = rng.randrange(3), (END,) if rng.random() < 0.3 else ()
        step = rng.choice((0, 0, rng.randrange(12)))
        abort = rng.randrange(6) if rng.random() < 0.15 else None
        arrival = Arrival(prompt, plain, *own, step, abort, rng.random() < 0.06)
        if rng.random() < 0.4:
            arrival = with_stop(model, id, arrival, rng.randrange(16), rng.randint(1, 3))
        arrivals.append(arrival)
    fails = rng.random() < 0.15
    failing = frozenset({rng.randrange(12)} if fails and rng.random() < 0.5 else ())
    collects = frozenset({rng.randrange(12)} if fails and not failing else ())
    world = World(
        seed,
        model,
        tuple(arrivals),
        rng.randint(1, 4),
        rng.choice((0, 0, 0, 1, 3, 20)),
        rng.randint(1, 4),
        rng.choice((0, 2, 8, 30)),
        rng.random() < 0.7,
        None if window else rng.choice((None, 0, 3)),
        rng.choice((0, 0, 0, 0, 20)),
        failing,
        collects,
        StateSizes(),
    )
    return replace(world, states=random_states(seed, world.batch))


def random_states(seed: int, batch: int) -> StateSizes:
    """Of a world; in half of them the target keeps none."""
    rng = random.Random(~seed)
    sizes = StateSizes(batch, rng.choice((0, 1, 3, 20)), rng.choice((1, 2)))
    return sizes if seed % 2 else StateSizes()


def with_stop(model: Model, id: int, arrival: Arrival, last: int, length: int) -> Arrival:
    """The arrival with a stop string that ends with output token ``last``, or before."""
    text, _ = truth(model, request_of(id, arrival))
    if not text:
        return arrival
    stop = "".join("abcdef"[token] for token in text[: last + 1][-length:])
    params = replace(arrival.params, stop=(stop,))
    rest = arrival.seed, arrival.ends, arrival.step, arrival.abort, arrival.watched
    return Arrival(arrival.prompt, params, *rest)


def request_of(id: int, arrival: Arrival) -> Request:
    processors = (_Watches(),) if arrival.watched else ()
    return Request.create(
        *(id, arrival.prompt, arrival.params, arrival.seed, 64, 0, arrival.ends, processors),
        max_draft_len=arrival.params.max_draft_len(64),
    )


@dataclass(frozen=True)
class Outcome:
    """What a request came to. by_step: it ended with a step that failed."""

    tokens: tuple[int, ...]
    text: str
    reason: str | None
    stop_reason: int | str | None
    by_step: bool


class Run:
    """One world, at one lag. The types are what negative controls replace."""

    scheduler_type: type[Scheduler] = Scheduler
    device_type: type[Device] = Device

    def __init__(self, world: World, lag: int) -> None:
        self.world, self.lag = world, lag
        self.events: Counter[str] = Counter()
        model = world.model
        self.requests = [request_of(id, arrival) for id, arrival in enumerate(world.arrivals)]
        texts: Mapping[int, list[int]] = {r.id: truth(model, r)[0] for r in self.requests}
        longest = max(r.num_prompt_tokens + r.max_output_tokens for r in self.requests)
        nodes = model.depth * model.width
        slots = world.draft if nodes else None
        extras = [nodes] if slots is None else [nodes, slots]
        sizes = [self._blocks(longest, extra) for extra in extras]
        memory = Memory(model, world.block, [[None] * (n * world.block) for n in sizes], texts)
        target, *drafts = [
            self._books(n, states)
            for n, states in zip(sizes, (world.states, StateSizes()), strict=False)
        ]
        self.faults, self.memory = memory.faults, memory
        self.resources = ResourceManager(target, drafts, [True] * len(drafts))
        drafter = HostDrafter(memory, slots, world.on_host, world.seed)
        drafter.caches = self.resources.draft_caches
        limits = world.batch, world.batch + world.spare_rows, 64
        scheduler = self.scheduler_type(self.resources, *limits, drafter.needs)
        self.target = HostTarget(memory, world.failing if lag == 0 else frozenset())
        engine: Any = self.target
        self.device = self.device_type(
            memory, slots, world.seed, world.failing, world.failing_collects
        )
        self.executor = PyExecutor(
            engine, self.resources, scheduler, drafter, resident=self.device, lag=lag
        )
        self.seen: dict[int, list[int]] = {r.id: [] for r in self.requests}
        self.by_step: set[int] = set()
        self._prefilled: Counter[int] = Counter()  # tokens that the ends of prompts emitted

    def _books(self, num_blocks: int, states: StateSizes = StateSizes()) -> KVCacheManager:  # noqa: B008
        world = self.world
        window = world.model.window
        return KVCacheManager(num_blocks, world.block, world.reuse, window=window, states=states)

    def _blocks(self, longest: int, extra: int) -> int:
        """Blocks in which one request fits alone, and the spare ones."""
        held = self._books(1).rows_held(longest, self.world.batch + self.world.spare_rows)
        return -(-(held + extra) // self.world.block) + self.world.spare_blocks

    def run(self) -> list[Outcome]:
        stops = [
            StopChecker(r.params, r.eos_token_ids, decoder(), r.tokens[:]) for r in self.requests
        ]
        step = 0
        while self.executor.has_work or any(a.step >= step for a in self.world.arrivals):
            for request, arrival in zip(self.requests, self.world.arrivals, strict=True):
                if arrival.step == step:
                    self.executor.add(request, stops[request.id])
                elif arrival.abort is not None and len(self.seen[request.id]) >= arrival.abort:
                    self.executor.abort(request.id)
            if self.executor.has_work:
                self._step()
            step += 1
            assert step < 1000, "no progress"
        for books in self.resources.all:
            assert books.num_free_blocks == books.num_blocks, "a block is lost"
        self._check_counts()
        self.events["preempted"] += self.executor.metrics.num_preemptions
        self.events[f"{self.device.most_in_flight} in flight"] += 1
        emitted = self.device.num_emitted
        self.events["surplus"] += emitted > sum(r.num_output_tokens for r in self.requests)
        self.events["restored"] += self.memory.num_restored
        self.events["on both"] += bool(self.target.num_calls and emitted)
        return [
            Outcome(
                tuple(request.output_tokens),
                stop.text,
                request.finish_reason,
                stop.stop_reason,
                request.id in self.by_step,
            )
            for request, stop in zip(self.requests, stops, strict=True)
        ]

    def _step(self) -> None:
        verified = [request.num_steps for request in self.requests]
        for output in self.executor.step():
            self._note(output, verified)
        self.resources.check_invariants()
        assert not self.faults, self.faults
        failure = self.executor.metrics.last_failure
        assert failure is None or "on purpose" in str(failure), failure

    def _note(self, output: StepOutput, verified: list[int]) -> None:
        request = output.request
        self.seen[request.id] += output.tokens
        if request.num_steps == verified[request.id]:
            self._prefilled[request.id] += len(output.tokens)
        if output.error is not None and "the step failed" in str(output.error):
            self.by_step.add(request.id)

    def _check_counts(self) -> None:
        """All that was emitted was shown once, and is in the histogram unless a prompt's end
        emitted it."""
        metrics = self.executor.metrics
        for request in self.requests:
            own = metrics.of(request.id)
            assert request.output_tokens == self.seen[request.id], "shown is another text"
            counted = own.num_emitted_tokens + self._prefilled[request.id]
            steps = own.num_steps, request.num_steps
            emitted = counted, request.num_output_tokens
            assert steps[0] == steps[1] and emitted[0] == emitted[1], ("counted", steps, emitted)
        counted = sum(metrics.of(request.id).num_emitted_tokens for request in self.requests)
        assert metrics.total.num_emitted_tokens == counted


def compare(world: World, lag: int, run: type[Run] = Run) -> Counter[str]:
    """Runs a world with and without a lag; what happened with it. Requests that were aborted, or
    ended with a step that failed, may be cut elsewhere: these depend on what else a step holds."""
    plain, late = Run(world, 0), run(world, lag)
    expected, outcomes = plain.run(), late.run()
    events = late.events
    for id, (before, after) in enumerate(zip(expected, outcomes, strict=True)):
        cut = [o for o in (before, after) if o.by_step or o.reason == "abort"]
        whole = truth(world.model, late.requests[id])[0]
        for outcome in (before, after):
            assert list(outcome.tokens) == whole[: len(outcome.tokens)], (id, outcome, whole)
        if not cut:
            assert before == after, (id, before, after)
        events[after.reason or ""] += 1
        events["stop string"] += isinstance(after.stop_reason, str)
        events["by step"] += after.by_step
    return events
