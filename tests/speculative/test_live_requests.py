"""Drafters say which requests they hold anything of, whoever wraps them; of released ones, none."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.bench.doctor.agreement import WatchedDrafter
from trtspec.config.sampling import SamplingParams
from trtspec.executor.step.drafter import Drafter, NoDrafter
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch
from trtspec.speculative.draft_runtime import DraftRuntime
from trtspec.speculative.hybrid.member import Member
from trtspec.speculative.hybrid.union import UnionDrafter
from trtspec.speculative.reads_part import ReadsPart
from trtspec.speculative.registry import methods

from .simulated_serving import ChainDrafter, World, union_of

FIRST = 10**12
"""The id of the first request: no other number that a drafter keeps is as large."""
HIDDEN = 4


class Cache:
    """Of a draft: empty."""

    lookahead = 1

    def committed(self, request: Request) -> int:
        return 0

    def rows(self, request: Request, start: int, tokens: list[int]) -> None: ...

    def ends(self, request: Request, start: int, end: int) -> list[int]:
        return [end]

    def rows_to_offer(self, *what: Any) -> int:
        return 0


class Engine:
    """Drafts one token for each request, takes anything in."""

    vocab_size = 100
    rolls_first_step = False

    def rollout(self, groups: Any, *rest: Any, **options: Any) -> tuple[torch.Tensor, ...]:
        shape = (len(groups), 1)
        return (
            torch.ones(shape, dtype=torch.int64),
            torch.full(shape, -1, dtype=torch.int32),
            torch.zeros(shape),
        )

    def feed(self, *what: Any) -> None: ...


BLOCKS = (torch.zeros(1, dtype=torch.int32),) * 3
"""Of a target's cache, which engines here do not read."""
CACHED: Any = (None, Engine(), Cache())
OPTIONS: Mapping[str, Mapping[str, Any]] = {
    "ngram": {"max_draft_len": 2, "prompt_lookup_min": 1, "prompt_lookup_max": 2},
    "suffix": {},
    "medusa": {"model": "draft", "num_medusa_heads": 1},
    "ddtree": {"model": "draft", "num_speculative_tokens": 1, "num_draft_tokens": 2},
    "jetspec": {"model": "draft", "num_speculative_tokens": 1, "num_draft_tokens": 2},
    "mtp": {"num_speculative_tokens": 1},
    "extract_hidden_states": {"capture_layers": (0,)},
}
DRAFTERS = [method.name for method in methods().values() if method.make is not None]


def make(name: str, root: Path) -> Drafter:
    """The drafter of a method."""
    method = methods()[name]
    options = OPTIONS.get(name, {"model": "draft", "num_speculative_tokens": 1})
    if name == "extract_hidden_states":
        options = {**options, "shared_storage_path": str(root)}
    assert method.make is not None
    return method.make(method.options(**options), DraftRuntime("draft", *CACHED))


WRAPPED: Mapping[str, Callable[[Drafter], Drafter]] = {
    "alone": lambda drafter: drafter,
    "part": lambda drafter: ReadsPart(drafter, slice(0, HIDDEN)),
    "union": lambda drafter: union([drafter], adapts=False),
    "adaptive": lambda drafter: union([drafter], adapts=True),
    "hybrid": lambda drafter: union(
        [ReadsPart(drafter, slice(0, HIDDEN)), NoDrafter()], adapts=True
    ),
    "watched": lambda drafter: WatchedDrafter(drafter),
}


def union(drafters: list[Drafter], adapts: bool) -> UnionDrafter:
    members = [Member(drafter) for drafter in drafters]
    return warm(UnionDrafter(members, drafters[0].needs, adapts=adapts))


def warm(drafter: UnionDrafter) -> UnionDrafter:
    """Past the first steps, in which engines are not tried yet."""
    for _ in range(8):
        drafter.skips_drafts(1)
    return drafter


def held(value: Any, seen: set[int] | None = None) -> Iterator[int]:
    """Ids of requests anywhere in what an object of ours is made of."""
    seen = set() if seen is None else seen
    if isinstance(value, int):
        if FIRST <= value < FIRST + 100:  # addresses are not ids
            yield value
        return
    if id(value) in seen:
        return
    seen.add(id(value))
    if hasattr(value, "_live_requests"):  # C++ holds them
        yield from value._live_requests()
    parts: list[Any] = []
    if isinstance(value, dict):
        parts = [*value.keys(), *value.values()]
    elif isinstance(value, (list, tuple, set, frozenset)):
        parts = list(value)
    elif type(value).__module__.split(".")[0] in ("trtspec", "tests"):
        slots = [name for cls in type(value).__mro__ for name in getattr(cls, "__slots__", ())]
        parts = [*getattr(value, "__dict__", {}).values()]
        parts += [getattr(value, name) for name in slots if hasattr(value, name)]
    for part in parts:
        yield from held(part, seen)


def running(count: int) -> list[Request]:
    params = SamplingParams(max_tokens=1000)
    return [
        Request.create(FIRST + i, [7, 8, 7, 8], params, seed=i, max_seq_len=2000)
        for i in range(count)
    ]


def step(drafter: Drafter, requests: list[Request], is_generation: bool) -> None:
    """Each emits one token."""
    items = []
    for request in requests:
        start = len(request.tokens) - 1 if is_generation else 0
        rows, nodes = len(request.tokens) - start, drafter.needs.max_nodes * is_generation
        items.append(ScheduledRequest(request, start, rows, is_generation, nodes, True))
    batch = StepPlan(tuple(items), BLOCKS[: len(items)])
    drafts = drafter.prepare_draft_tokens(batch)
    for item in items:
        item.request.tokens.extend([1])
    result = StepResult.of([[1]] * len(items), drafts)
    result.hidden = torch.zeros(sum(item.num_rows for item in items), HIDDEN)
    drafter.on_accepted(batch, result)


@pytest.mark.parametrize("wrapper", WRAPPED)
@pytest.mark.parametrize("name", DRAFTERS)
def test_what_is_held_is_said(name: str, wrapper: str, tmp_path: Path) -> None:
    """Before, while and after three requests run, of which one waits for its prompt."""
    drafter = WRAPPED[wrapper](make(name, tmp_path))
    assert not drafter.live_requests
    requests = running(3)

    def check(live: AbstractSet[int]) -> None:
        said = set(drafter.live_requests)
        # What a watching drafter records is kept on purpose.
        inside = drafter._drafter if isinstance(drafter, WatchedDrafter) else drafter
        assert set(held(inside)) == said <= live

    step(drafter, requests[:2], is_generation=False)
    check({FIRST, FIRST + 1})
    for _ in range(3):
        step(drafter, requests[:2], is_generation=True)
        check({FIRST, FIRST + 1})
    drafter.prepare_draft_tokens(
        StepPlan(
            tuple(
                ScheduledRequest(r, len(r.tokens) - 1, 1, True, drafter.needs.max_nodes, True)
                for r in requests[:2]
            ),
            BLOCKS[:2],
        )
    )
    assert drafter.live_requests == {FIRST, FIRST + 1}  # of a step that fails, too
    drafter.release(FIRST)
    drafter.release(FIRST + 2)  # unknown
    check({FIRST + 1})
    drafter.release(FIRST + 1)
    check(set())


class Keeps(ChainDrafter):
    """Keeps a request for as long as it runs, or, ``leaks``, for ever."""

    leaks = False

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.kept: dict[int, int] = {}

    @property
    def live_requests(self) -> AbstractSet[int]:  # type: ignore[override]
        return self.kept.keys()

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        self.kept.update({item.request.id: 1 for item in batch.items})
        return super().prepare_draft_tokens(batch)

    def release(self, request_id: int) -> None:
        if not self.leaks:
            self.kept.pop(request_id, None)


@pytest.mark.slow
@given(
    adapts=st.booleans(),
    events=st.lists(
        st.tuples(st.sets(st.integers(0, 4)), st.sets(st.integers(0, 4)), st.integers(1, 40)),
        max_size=6,
    ),
)
@settings(deadline=None, max_examples=40)
def test_a_union_through_any_run(
    adapts: bool, events: list[tuple[set[int], set[int], int]]
) -> None:
    """Requests come, go and come again between steps; now and then one is tried with drafts."""
    world = World(lambda rows: 0.03 + 0.02 * rows)
    members = [Keeps(world, 3, 0.5, 0.0, name=1), Keeps(world, 4, 0.2, 5e-2, name=2)]
    drafter = union_of(world, members, adapts)
    drafter.profile_with(world.target, 20)
    requests, alive = running(5), set[int]()
    for come, go, steps in events:
        alive |= come
        world.serve(drafter, [requests[i] for i in sorted(alive)], steps) if alive else None
        assert drafter.live_requests <= {FIRST + i for i in alive}
        assert set(held(drafter)) == set(drafter.live_requests)
        for i in go & alive:
            drafter.release(FIRST + i)
        alive -= go
        assert set(held(drafter)) == set(drafter.live_requests) <= {FIRST + i for i in alive}
    for i in alive:
        drafter.release(FIRST + i)
    assert not drafter.live_requests and not set(held(drafter))


@pytest.mark.parametrize("adapts", [False, True])
def test_a_members_leak_shows_through(adapts: bool) -> None:
    world = World(lambda rows: 0.03)
    members = [Keeps(world, 3, 0.5, 0.0, name=1), Keeps(world, 4, 0.2, 5e-2, name=2)]
    members[1].leaks = True
    parts: Any = [ReadsPart(member, slice(0, 1)) for member in members]
    drafter = UnionDrafter(
        [Member(parts[0]), Member(parts[1])],
        members[0].needs,
        adapts=adapts,
    )
    warm(drafter)
    (request,) = running(1)
    items = (ScheduledRequest(request, 3, 1, True, 3, True),)
    drafter.prepare_draft_tokens(StepPlan(items))
    drafter.release(FIRST)
    assert drafter.live_requests == {FIRST}
