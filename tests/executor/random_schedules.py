"""A random schedule over the caches of a target and of drafts, with a shadow of what rows hold."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from trtspec.config.sampling import SamplingParams
from trtspec.executor.schedule.kv_cache import KVCacheManager
from trtspec.executor.schedule.resources import ResourceManager
from trtspec.executor.schedule.scheduler import Scheduler
from trtspec.executor.step.drafter import DraftCacheNeeds, DrafterNeeds
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import StepResult

from .kv_cache_reference import PlainKVCacheManager
from .random_worlds import World
from .scheduler_reference import PlainResourceManager, PlainScheduler, useful_nodes

EOS = 0


class Simulation:
    """A stand-in for the executor, its engines and its drafter."""

    manager_type: type[Any] = KVCacheManager
    resources_type: type[Any] = ResourceManager
    scheduler_type: type[Any] = Scheduler

    def __init__(self, world: World) -> None:
        self.world = world
        self.plans: list[Any] = []  # what each step was scheduled with
        rng = self.rng = random.Random(world.seed)
        self.events: Counter[str] = Counter()
        longest = world.max_prompt + world.max_output
        bases = [[rng.randrange(world.vocab) for _ in range(world.max_prompt)] for _ in range(2)]
        self.arrivals = []
        for id in range(world.num_requests):
            prompt = rng.choice(bases)[: rng.randint(1, world.max_prompt)]
            if rng.random() < 0.5:
                prompt[-1] = rng.randrange(world.vocab)
            drafted = rng.choice(world.draft_lens)
            params = SamplingParams(max_tokens=rng.randint(1, world.max_output))
            seed, ends = rng.randrange(2), (EOS,) if rng.random() < 0.3 else ()
            self.arrivals.append(
                Request.create(id, prompt, params, seed, longest, 0, ends, max_draft_len=drafted)
            )
        nodes = world.depth * world.width
        caches = tuple(
            DraftCacheNeeds(world.depth + i, n, from_tokens=n == 0)
            for i, n in enumerate(world.drafts)
        )
        needs = DrafterNeeds(nodes, world.depth, caches)
        largest = max(r.num_prompt_tokens + r.max_output_tokens for r in self.arrivals)
        sizes = world.block, *(size or world.block for size in world.draft_blocks)
        spares = world.spare_blocks, *world.draft_spare_blocks
        extras = nodes, *(cache.slots for cache in caches)
        options = self.options(caches)
        self.target, *drafts = [
            self.sized(largest, *of_cache)
            for of_cache in zip(extras, sizes, spares, options, strict=False)
        ]
        self.resources = self.resources_type(
            self.target, drafts, [cache.from_tokens for cache in caches]
        )
        self.scheduler = self.scheduler_type(
            self.resources, world.batch, world.batch + world.spare_rows, longest, needs
        )
        self.needs = needs
        # Cache (0: the target's) -> slot -> content.
        self.rows: list[dict[int, int]] = [{} for _ in self.resources.all]
        self.digests: dict[int, list[int]] = {}  # of each prefix of a request
        self.num_nodes: list[int] = []  # that a step feeds, of each item
        self.live: dict[int, Request] = {}
        self.begun: set[int] = set()  # running requests
        # Of each cache and request, the positions of the rows that it began on, None for those
        # behind the window.
        self.found: dict[tuple[int, int], list[int | None]] = {}
        self.expected = {r.id: self.text(r) for r in self.arrivals}

    def options(self, drafts: Sequence[DraftCacheNeeds]) -> list[dict[str, Any]]:
        """What the caches are made with, the target's first."""
        lookaheads = 0, *(cache.lookahead for cache in drafts)
        pairs = zip(lookaheads, self.world.windows, strict=False)
        return [{"lookahead": lookahead, "window": window} for lookahead, window in pairs]

    def sized(self, largest: int, extra: int, size: int, spare: int, options: Any) -> Any:
        """A cache that holds the largest request alone."""
        world = self.world
        step = world.batch + world.spare_rows
        held = self.manager_type(1, size, world.reuse, **options).rows_held(largest, step)
        return self.manager_type(-(-(held + extra) // size) + spare, size, world.reuse, **options)

    # The model.

    def next_token(self, digest: int, seed: int) -> int:
        return hash((digest, seed)) % self.world.vocab

    def text(self, request: Request) -> list[int]:
        digest = 1
        for token in request.tokens:
            digest = hash((digest, token))
        output: list[int] = []
        while len(output) < request.max_output_tokens:
            token = self.next_token(digest, request.seed)
            output.append(token)
            digest = hash((digest, token))
            if token in request.eos_token_ids:
                break
        return output

    def digest(self, request: Request, position: int) -> int:
        known = self.digests.setdefault(request.id, [1])
        for token in request.tokens[len(known) - 1 : position + 1]:
            known.append(hash((known[-1], token)))
        return known[position + 1]

    def content(self, request: Request, cache: int, position: int) -> int:
        """What row `position` must hold; with a lookahead it depends on the next tokens too."""
        digest = self.digest(request, position)
        lookahead = self.lookahead(cache)
        if not lookahead:
            return digest
        assert position + lookahead < len(request.tokens)
        return hash((digest, *request.tokens[position + 1 : position + 1 + lookahead]))

    # The caches.

    def manager(self, cache: int) -> KVCacheManager:
        return self.resources.all[cache]

    def lookahead(self, cache: int) -> int:
        return self.world.drafts[cache - 1] if cache else 0

    def slots(self, request: Request, cache: int, rows: Iterable[int]) -> list[int]:
        return self.manager(cache).slots(request.id, list(rows)).tolist()

    def absent(self, request: Request, cache: int) -> int:
        return self.manager(cache).absent(request.id)

    def seen(self, request: Request, cache: int) -> range:
        """Committed rows that the next one sees."""
        manager = self.manager(cache)
        committed = manager.committed(request.id)
        return range(max(committed - manager.window + 1, 0) if manager.window else 0, committed)

    def find_rows(self, request: Request, cache: int) -> list[int | None]:
        """The positions of the rows that a request begins on: rising ones of its text, which go on
        to the target's length where nothing is absent."""
        positions: list[int | None] = [None] * self.manager(cache).committed(request.id)
        after = iter(range(self.target.committed(request.id)))
        seen = self.seen(request, cache)
        for row, slot in zip(seen, self.slots(request, cache, seen), strict=True):
            held = self.rows[cache].get(slot)
            right = (p for p in after if self.content(request, cache, p) == held)
            positions[row] = next(right, None)
            assert positions[row] is not None, (cache, request.id, row)
        if not self.absent(request, cache):
            assert all(p in (None, row) for row, p in enumerate(positions))
        return positions

    def write(self, request: Request, cache: int, first: int, contents: Sequence[int]) -> None:
        """Rows from position `first` on. That no block behind the committed rows is held or found
        by others is an invariant, checked when the step is scheduled."""
        if contents:
            first -= self.absent(request, cache)
            assert first >= self.manager(cache).committed(request.id), "writes a committed row"
            slots = self.slots(request, cache, range(first, first + len(contents)))
            self.rows[cache].update(zip(slots, contents, strict=True))

    def write_right(self, request: Request, cache: int, first: int, end: int) -> None:
        self.write(
            request, cache, first, [self.content(request, cache, p) for p in range(first, end)]
        )

    # A step.

    def verify(self, item: ScheduledRequest) -> tuple[list[int], list[int]]:
        """Feeds the target; which tokens it emits, and the accepted nodes."""
        request, start, rng = item.request, item.start, self.rng
        old = len(request.tokens)
        assert start == self.target.committed(request.id)
        assert not request.is_finished and item.num_rows >= 1
        assert item.is_generation == (start == old - 1)
        assert item.is_generation or item.max_nodes == 0
        self.events["chunk"] += not item.is_generation and not item.samples
        if request.id not in self.begun:
            self.begun.add(request.id)
            self.events["reused"] += start > 0
            self.events["reused output"] += start > request.num_prompt_tokens
            for draft, needs in zip(self.resources.drafts, self.needs.caches, strict=True):
                held, lacks = draft.committed(request.id), draft.absent(request.id)
                assert held + lacks == start or (needs.from_tokens and not lacks)
                assert draft.window or not (needs.from_tokens and lacks)
                self.events["reused before the draft"] += held + lacks < start
                self.events["lacked all"] += lacks > 0 and not held
                self.events["lacked some"] += lacks > 0 and held > 0
        self.write_right(request, 0, start, start + item.num_rows)
        nodes = rng.randint(0, item.max_nodes) if rng.random() < 0.3 else item.max_nodes
        self.num_nodes.append(nodes)
        self.write(request, 0, old, [-rng.getrandbits(40) for _ in range(nodes)])
        if item.max_nodes < useful_nodes(self.needs, request):
            self.events["cut drafts"] += item.is_generation
        if not item.samples:
            return [], []
        limit = min(nodes, self.needs.max_depth, request.draft_depth)
        kept = rng.randint(0, limit)
        to_border = -(start + 1) % self.world.block
        if to_border <= limit and rng.random() < 0.4:
            kept = to_border
            self.events["border"] += item.is_generation
        emitted = self.expected[request.id][request.num_output_tokens :][: kept + 1]
        # The accepted nodes are any rising rows of the tree.
        return emitted, sorted(rng.sample(range(nodes), len(emitted) - 1))

    def take_in(self, batch: StepPlan) -> None:
        """Feeds a step, extends texts, compacts the accepted rows and commits all caches."""
        lengths = [len(item.request.tokens) for item in batch.items]
        self.num_nodes.clear()
        verified = [self.verify(item) for item in batch.items]
        result = StepResult.of([emitted for emitted, _ in verified])
        result.rows = [
            row for emitted, path in verified for row in [0, *(n + 1 for n in path)][: len(emitted)]
        ]
        moves = self.resources.extend(batch, result)
        self.plans.append([slots.tolist() for slots in moves])
        drafted = []
        for item, old, (emitted, path) in zip(batch.items, lengths, verified, strict=True):
            request = item.request
            assert list(request.tokens)[old:] == emitted
            for depth, node in enumerate(path):
                self.write(request, 0, old + node, [self.content(request, 0, old + depth)])
            drafted.append(
                [self.run_drafter(item, c, old, len(path)) for c in range(1, len(self.rows))]
            )
        if moves:
            sources, places = (slots.tolist() for slots in moves)
            self.events["moved"] += len(sources)
            contents = [self.rows[0][slot] for slot in sources]
            self.rows[0].update(zip(places, contents, strict=True))
        self.move_states(batch, result)
        self.resources.commit(batch, result, drafted)
        for item in batch.items:
            request = item.request
            if request.output_tokens == self.expected[request.id]:
                request.finish_reason = "length"
                self.scheduler.finish(request)
                del self.live[request.id]

    def move_states(self, batch: StepPlan, result: StepResult) -> None:
        """What becomes of the target's states, where it keeps such."""

    def run_drafter(self, item: ScheduledRequest, cache: int, old: int, kept: int) -> int:
        """Writes a draft cache; returns its new committed length."""
        request, rng = item.request, self.rng
        slots, lookahead = self.needs.caches[cache - 1].slots, self.lookahead(cache)
        committed = self.manager(cache).committed(request.id) + self.absent(request, cache)
        self.events["not drafted for"] += not request.may_draft
        may_wait = item.is_generation or not self.manager(cache).window
        has_none = not request.may_draft or (item.is_generation and item.max_nodes == 0)
        if has_none or (rng.random() < 0.15 and may_wait):
            return committed  # it may lag behind
        fed = old if item.is_generation else item.start + item.num_rows
        # Rows whose later tokens are not known yet have to wait: a rollout precedes the result.
        known = old if item.is_generation else len(request.tokens)
        fed = max(committed, min(fed, known - lookahead))
        self.write_right(request, cache, committed, fed)
        if not item.is_generation:
            return fed
        keep = 0 if lookahead else rng.randint(0, min(kept, slots))
        wrong = [-rng.getrandbits(40) for _ in range(slots - keep)]
        self.write_right(request, cache, fed, fed + keep)
        self.write(request, cache, fed + keep, wrong)
        return fed + keep

    def step(self) -> None:
        batch = self.scheduler.schedule()
        for preempted in batch.preempted:
            self.begun.discard(preempted.id)
        for item in batch.items:
            if item.request.id not in self.begun:
                for cache in range(len(self.rows)):
                    rows = self.find_rows(item.request, cache)
                    self.found[cache, item.request.id] = rows
        self.note(batch)
        self.check()
        fed = sum(item.num_rows + item.max_nodes for item in batch.items)
        assert fed <= self.scheduler.max_num_tokens
        assert len(batch.items) <= self.scheduler.max_batch_size
        ids = [item.request.id for item in batch.items]
        assert ids == sorted(ids)
        if self.live:
            assert ids and ids[0] == min(self.live), "the earliest request made no progress"
        self.events["preempted"] += len(batch.preempted)
        assert not {r.id for r in batch.preempted} & set(ids)
        self.events["waited"] += self.scheduler.num_running > len(ids)
        for item in batch.items:
            assert self.resources.target.room(item.request.id) >= item.start + item.num_rows
            assert item.request.may_draft or not item.max_nodes
            for draft in () if item.request.may_draft else self.resources.drafts:
                held = len(draft.block_table(item.request.id))
                assert held == -(-draft.committed(item.request.id) // draft.block_size)
        self.take_in(batch)
        for manager in self.resources.all:
            for item in batch.items:
                if item.request.id in self.live:
                    used = -(-manager.committed(item.request.id) // manager.block_size)
                    assert len(manager.block_table(item.request.id)) == used, "surplus kept"
                    self.events["behind a window"] += bool(
                        (manager.block_table(item.request.id) < 0).any()
                    )
        self.check()

    def note(self, batch: StepPlan) -> None:
        requests = [item.request for item in batch.items]
        rows = [
            (i.request.id, i.start, i.num_rows, i.is_generation, i.max_nodes, i.samples)
            for i in batch.items
        ]
        blocks = [[m.block_table(r.id).tolist() for r in requests] for m in self.resources.all]
        assert [table.tolist() for table in batch.blocks] == blocks[0]
        gone, new = [r.id for r in batch.preempted], [i.request.id for i in batch.admitted]
        waiting = [r.id for r in self.scheduler.waiting]
        counts = batch.num_waiting, self.scheduler.num_running, self.scheduler.num_waiting
        self.plans.append((rows, blocks, gone, new, waiting, counts))

    def check(self) -> None:
        self.resources.check_invariants()
        for cache, manager in enumerate(self.resources.all):
            for id, committed in manager.committed_lengths().items():
                request = self.live[id]
                assert committed < len(request.tokens)
                found, seen = self.found[cache, id], self.seen(request, cache)
                for row, slot in zip(seen, self.slots(request, cache, seen), strict=True):
                    position = (
                        row + self.absent(request, cache) if row >= len(found) else found[row]
                    )
                    assert position is not None
                    held = self.rows[cache].get(slot)
                    assert held == self.content(request, cache, position), (cache, id, row)

    def disturb(self) -> None:
        """Arrivals and aborts between two steps."""
        rng = self.rng
        while self.arrivals and rng.random() < 0.5:
            request = self.arrivals.pop(0)
            self.live[request.id] = request
            self.scheduler.add(request)
        if self.live and rng.random() < 0.03:
            request = rng.choice(list(self.live.values()))
            assert self.scheduler.abort(request.id) is request
            assert self.scheduler.abort(request.id) is None
            assert request.finish_reason == "abort"
            del self.live[request.id]
            self.events["aborted"] += 1

    def run(self) -> Counter[str]:
        requests = list(self.arrivals)
        steps = 0
        while self.arrivals or self.live:
            self.disturb()
            self.step()
            steps += 1
            # Every step moves the earliest request by a row at least, so this bound is generous.
            assert (
                steps < 20 + len(requests) * (self.world.max_prompt + self.world.max_output) * 4
            ), "no end"
        for request in requests:
            assert request.is_finished
            if request.finish_reason != "abort":
                assert request.output_tokens == self.expected[request.id]
        for manager in self.resources.all:
            assert manager.num_free_blocks == manager.num_blocks, "a block leaked"
            assert not manager.committed_lengths()
        assert not self.scheduler.has_work
        self.events["steps"] += steps
        return self.events


class PlainSimulation(Simulation):
    """All that decides in plain Python. Tests that need something broken derive from this one."""

    manager_type = PlainKVCacheManager
    resources_type = PlainResourceManager
    scheduler_type = PlainScheduler
