"""KVCacheManager against the plain Python one: the same blocks after every call of any schedule."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from trtspec.executor.schedule.kv_cache import KVCacheManager

from .kv_cache_reference import PlainKVCacheManager

REQUESTS = range(5)


class Pair:
    """Both managers, asked the same."""

    def __init__(self, seed: int) -> None:
        self.rng = rng = random.Random(seed)
        self.events: Counter[str] = Counter()
        self.block, self.ahead = rng.randint(1, 5), rng.choice((0, 0, 1, 2, 6))
        sizes = (rng.randint(4, 48), self.block, rng.random() < 0.9)
        options: dict[str, Any] = {"lookahead": self.ahead}
        options["window"] = rng.choice((0, 0, 1, 3, 8, 20))
        options["sinks"] = (None, 0, 1, 2)[seed % 4]
        self.cache = KVCacheManager(*sizes, **options)
        self.plain = PlainKVCacheManager(*sizes, **options)
        self.texts: dict[int, list[int]] = {}
        self.base = self.more(40)

    def ask(self, name: str, *arguments: Any) -> Any:
        """What both answer, or None if both refuse."""
        answers = []
        for manager, refusal in (
            (self.cache, RuntimeError),
            (self.plain, (AssertionError, KeyError)),
        ):
            method: Callable[..., Any] = getattr(manager, name)
            try:
                answers.append(method(*arguments))
            except refusal:  # type: ignore[misc]
                answers.append("refused")
        assert answers[0] == answers[1], (name, arguments)
        self.events["refused"] += answers[0] == "refused"
        return None if answers[0] == "refused" else answers[0]

    def more(self, count: int) -> list[int]:
        """Tokens that are often those of another request, and may be as large as int64 allows."""
        return [self.rng.choice((0, 0, 0, 1, -(2**63), 2**63 - 1)) for _ in range(count)]

    def step(self) -> None:
        rng = self.rng
        request = rng.choice(REQUESTS)
        if request not in self.texts:
            self.begin(request)
        elif rng.random() < 0.12:
            self.ask("free", request)
            del self.texts[request]
        else:
            self.grow(request)
        self.compare()

    def begin(self, request: int) -> None:
        text = self.base[: self.rng.randint(0, 40)] + self.more(self.rng.randint(1, 4))
        if self.rng.random() < 0.4:
            if self.rng.random() < 0.7:  # as another one may have begun
                text, end = self.base + self.more(2), 2 * self.block
            else:
                end = self.rng.randint(0, len(text) - 1)
            self.ask("begin_behind", request, text, end)
            self.texts[request] = text
            absent = self.ask("absent", request)
            self.events["lacks"] += absent > 0
            self.events["found behind a gap"] += self.cache.committed(request) > self.ask(
                "match", text
            )
            return
        cached = self.ask("match", text)
        self.events["found"] += cached > 0
        if cached and self.rng.random() < 0.3:
            cached = self.rng.randrange(0, cached + 1, self.block)
        if self.rng.random() < 0.05:
            self.ask("begin", request, text, self.cache.match(text) + self.block)
        self.ask("begin", request, text, cached)
        self.texts[request] = text

    def grow(self, request: int) -> None:
        text, rng = self.texts[request], self.rng
        committed = self.cache.committed(request)
        reserved = committed + rng.randint(0, 12)
        if not self.ask("reserve", request, reserved):
            self.events["full"] += 1
            self.ask("free", request)
            del self.texts[request]
            return
        target = committed + rng.randint(0, 9)
        absent = self.cache.absent(request)
        text += self.more(target + absent - len(text) + rng.choice((0, 0, 1, 3)))
        if rng.random() < 0.9:
            target = min(
                target, len(text) - absent, len(self.cache.block_table(request)) * self.block
            )
        self.ask("commit", request, text, target)

    def compare(self) -> None:
        self.cache.check_invariants()
        self.plain.check_invariants()
        assert self.ask("committed_lengths").keys() == self.texts.keys()
        assert self.cache.num_free_blocks == self.plain.num_free_blocks
        for request, text in self.texts.items():
            blocks = self.cache.block_table(request).tolist()
            assert blocks == self.plain.block_table(request).tolist()
            self.ask("room", request)
            self.ask("match", text)
            gone = [place for place, block in enumerate(blocks) if block == -1]
            self.events["behind"] += bool(gone)
            self.events["behind sinks"] += bool(gone and gone[0])
            if gone:
                self.ask("slots", request, [gone[-1] * self.block])
            held = [place for place in range(len(blocks)) if place not in gone]
            positions = [place * self.block + row for place in held for row in range(self.block)]
            slots = self.cache.slots(request, positions)
            assert slots.tolist() == self.plain.slots(request, positions).tolist()


@pytest.mark.slow
def test_the_same_blocks_after_every_call() -> None:
    events: Counter[str] = Counter()
    for seed in range(120):
        pair = Pair(seed)
        try:
            for _ in range(80):
                pair.step()
        except AssertionError as error:
            error.add_note(f"seed {seed}")
            raise
        events += pair.events
    for event in ("refused", "found", "full", "behind", "behind sinks", "lacks"):
        assert events[event] > 100, (event, events)
    assert events["found behind a gap"]
