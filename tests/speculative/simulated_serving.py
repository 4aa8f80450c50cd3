"""A server whose costs and acceptance are formulas, to see what a controller makes of them."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field

import numpy as np
import torch

from trtspec.config.sampling import SamplingParams
from trtspec.executor.engines.counted_engine import CountedEngine
from trtspec.executor.step.drafter import DrafterNeeds
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import ScheduledRequest, StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree
from trtspec.speculative.hybrid.member import Member
from trtspec.speculative.hybrid.union import UnionDrafter

HOST = 0.5e-3
EXPERTS, CHOSEN = 128, 8
BONUS = 1_000_000


def steady(now: float) -> float:
    return 1.0


def in_steps(now: float) -> float:
    """Slower for seconds at a time."""
    return (1.0, 2.2, 1.5, 3.0)[int(now / 3.1) % 4]


def in_bursts(now: float) -> float:
    """Slower for an eighth of a second, at times that look random."""
    return 1.0 if random.Random(int(now * 8)).random() < 0.6 else 2.5


class ChainDrafter:
    """Drafts chains whose nodes are right with chance `acceptance` each, once their parent is; what
    it says of them is noise around `says`. An engine if it costs anything."""

    def __init__(
        self,
        world: World,
        length: int,
        acceptance: float,
        seconds: float = 0.0,
        says: float = 0.7,
        name: int = 1,
    ) -> None:
        self.world, self.length, self.seconds = world, length, seconds
        self.acceptance, self.says, self.name = acceptance, says, name
        self.host_seconds = 0.0  # of looking for drafts, on the host
        self.num_calls = 0
        self.paces: list[float] = []  # tokens a second that it may stop at
        self.num_told = 0  # steps
        self.needs = DrafterNeeds(max_nodes=length, max_depth=length, has_draft_engine=seconds > 0)

    def prepare_draft_tokens(self, batch: StepPlan) -> DraftBatch:
        self.num_calls += 1
        self.paces.append(batch.pace)
        self.world.pass_time(self.seconds + self.host_seconds)
        trees = []
        for item in batch.items:
            request = item.request
            right = self.num_right(request)
            text = self.world.text(request)
            tokens = [text(i) if i < right else -self.name for i in range(self.length)]
            noise = random.Random(hash((request.id, len(request.tokens), self.name, 7)))
            gains = [min(self.says * np.exp(noise.gauss(0, 0.4)), 1) for _ in tokens]
            scores = np.log(np.cumprod(gains)).astype(np.float32)
            trees.append(TokenTree(tokens, range(-1, self.length - 1), scores))
        return DraftBatch.of(trees)

    def num_right(self, request: Request) -> int:
        draws = random.Random(hash((request.id, len(request.tokens), self.name)))
        right = 0
        while right < self.length and draws.random() < self.acceptance:
            right += 1
        return right

    def skips_drafts(self, num_requests: int) -> bool:
        return False

    def on_accepted(self, batch: StepPlan, result: StepResult) -> list[tuple[()]]:
        self.num_told += 1
        return [()] * len(batch.items)

    def release(self, request_id: int) -> None: ...

    live_requests: Set[int] = frozenset()


@dataclass
class World:
    """target: seconds of a step by its rows. acceptance: of the only drafter; the tokens expected
    of what it verifies are then counted, not those that chance gives it. slowness: by the time,
    how many times as long everything takes. work: the seconds that have passed, each divided by the
    slowness of then: two runs meet slow times at different places.
    num_waiting: requests in the queue. drafts: of the last step."""

    target: Callable[[int], float]
    acceptance: float | None = None
    now: float = 0.0
    work: float = 0.0
    tokens: float = 0.0
    verified: list[int] = field(default_factory=list)
    slowness: Callable[[float], float] = lambda now: 1.0
    num_waiting: int = 1
    drafts: DraftBatch = DraftBatch.none(0)  # noqa: RUF009

    def clock(self) -> float:
        return self.now

    def pass_time(self, seconds: float) -> None:
        self.work += seconds
        self.now += seconds * self.slowness(self.now)

    def text(self, request: Request) -> Callable[[int], int]:
        """The tokens that the target emits from here on."""
        return lambda i: 10 * (len(request.tokens) + i) + 1

    def begin(self, drafter: UnionDrafter, request: Request) -> None:
        """Feed the prompt of a request, by itself."""
        item = ScheduledRequest(request, 0, len(request.tokens), False, 0, True)
        batch = StepPlan((item,))
        drafts = drafter.prepare_draft_tokens(batch)
        emitted = self.text(request)(0)
        request.tokens.extend([emitted])
        drafter.on_accepted(batch, StepResult.of([[emitted]], drafts))

    def serve(self, drafter: UnionDrafter, requests: Sequence[Request], steps: int) -> float:
        """Tokens a second over that many steps."""
        began, before = self.now, self.tokens
        for _ in range(steps):
            most = 0 if drafter.skips_drafts(len(requests)) else drafter.needs.max_nodes
            batch = StepPlan(
                tuple(
                    ScheduledRequest(r, len(r.tokens) - 1, 1, True, most, True) for r in requests
                ),
                num_waiting=self.num_waiting,
            )
            self.drafts = drafter.prepare_draft_tokens(batch)
            nodes = sum(self.drafts.counts)
            self.verified.append(nodes)
            self.pass_time(self.target(len(requests) + nodes))
            all_emitted = []
            for request, tree in zip(requests, self.drafts, strict=True):
                text = self.text(request)
                row, emitted = -1, []
                while True:
                    emitted.append(text(len(emitted)))
                    children = [
                        node
                        for node, parent in enumerate(tree.parents.tolist())
                        if parent == row and tree.tokens[node] == emitted[-1]
                    ]
                    if not children:
                        break
                    row = children[0]
                request.tokens.extend(emitted)
                if self.acceptance is None:
                    self.tokens += len(emitted)
                else:
                    self.tokens += 1 + float((self.acceptance**tree.depths).sum())
                all_emitted.append(emitted)
            drafter.on_accepted(batch, StepResult.of(all_emitted, self.drafts))
            self.pass_time(HOST)
        return (self.tokens - before) / (self.now - began)

    def best_fixed(self, drafter: ChainDrafter, requests: int) -> tuple[float, int]:
        """Tokens a second of the best fixed number of drafts, and that number; 0: no drafting."""
        speeds = []
        for length in range(drafter.length + 1):
            tokens = requests * sum(drafter.acceptance**i for i in range(length + 1))
            seconds = self.target(requests * (1 + length)) + HOST + drafter.seconds * (length > 0)
            speeds.append(tokens / seconds)
        best = int(np.argmax(speeds))
        return speeds[best], best


class ProfiledUnion(UnionDrafter):
    """Its costs come from a formula."""

    def profile_with(self, target: Callable[[int], float], max_rows: int) -> None:
        self.target_cost.profile(target, max_rows, CountedEngine(torch.device("cpu")))


def union_of(
    world: World,
    drafters: Sequence[ChainDrafter],
    adapts: bool = True,
    has_own_rule: bool = False,
) -> ProfiledUnion:
    """Ready to serve, its costs unknown."""
    most = max(drafter.length for drafter in drafters)
    needs = DrafterNeeds(
        max_nodes=most,
        max_depth=most,
        has_draft_engine=any(drafter.seconds > 0 for drafter in drafters),
    )
    members = [Member(drafter) for drafter in drafters]
    return ProfiledUnion(
        members, needs, adapts=adapts, has_own_rule=has_own_rule, clock=world.clock
    )


def mixture_cost(rows: int) -> float:
    """Seconds of a mixture whose rows choose experts evenly and for themselves."""
    return _seconds(EXPERTS * (1 - (1 - CHOSEN / EXPERTS) ** rows))


def drawn_mixture(shared: float) -> Callable[[int], float]:
    """The same of rows that really draw them, each with such a share of the row's before it."""
    draws = random.Random(3)

    def cost(rows: int) -> float:
        seen: set[int] = set()
        own: list[int] = []
        for _ in range(rows):
            own = [expert for expert in own if draws.random() < shared]
            while len(own) < CHOSEN:
                expert = draws.randrange(EXPERTS)
                if expert not in own:
                    own.append(expert)
            seen.update(own)
        return _seconds(len(seen))

    return cost


def _seconds(experts: float) -> float:
    return 4e-3 + 1.2e-3 * experts


def requests_of(count: int) -> list[Request]:
    return [
        Request.create(i, [1], SamplingParams(max_tokens=1 << 20), seed=i, max_seq_len=1 << 21)
        for i in range(count)
    ]
