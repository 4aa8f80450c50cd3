"""Which replica a request goes to: properties over random histories, and what the costs mean."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from trtspec.serve.replicas.balancer import PREFIX_AWARE, RANDOM, SEQUENCE_TOKENS, Balancer
from trtspec.serve.replicas.prefix_index import BLOCK_TOKENS, PrefixIndex, block_hashes

NAMES = "abcd"
PROMPTS = st.lists(st.integers(0, 2), max_size=6).map(lambda b: [t for t in b for _ in range(16)])


class Histories(RuleBasedStateMachine):
    """Replicas come and go, requests begin and end, in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.live: list[str] = []
        self.under_way: dict[str, dict[str, int]] = {}
        self.sent: dict[str, list[list[int]]] = {}
        self.balancer = Balancer(PREFIX_AWARE)
        self.at_random = Balancer(RANDOM, seed=0)
        self.number = 0

    @rule(names=st.lists(st.sampled_from(NAMES), unique=True))
    def update(self, names: list[str]) -> None:
        for balancer in (self.balancer, self.at_random):
            balancer.update(names)
        self.live = names
        self.under_way = {name: self.under_way.get(name, {}) for name in names}
        self.sent = {name: self.sent.get(name, []) for name in names}

    @rule(tokens=PROMPTS, where=st.sampled_from(NAMES), sequences=st.integers(1, 3))
    def begin(self, tokens: list[int], where: str, sequences: int) -> None:
        """Sometimes at one that died between the choice and the sending."""
        self.number += 1
        self._begin(str(self.number), tokens, where, sequences)

    @rule(number=st.integers(1, 12), tokens=PROMPTS, where=st.sampled_from(NAMES))
    def move(self, number: int, tokens: list[int], where: str) -> None:
        """The one that was chosen first was full."""
        self._begin(str(number), tokens, where, 1)

    def _begin(self, request: str, tokens: list[int], where: str, sequences: int) -> None:
        self.balancer.began(request, where, block_hashes(tokens), sequences)
        self._end(request)
        if where in self.live:
            self.under_way[where][request] = sequences
            self.sent[where].append(tokens)

    @rule(number=st.integers(0, 12))
    def end(self, number: int) -> None:
        self.balancer.ended(str(number))
        self._end(str(number))

    def _end(self, request: str) -> None:
        for requests in self.under_way.values():
            requests.pop(request, None)

    @rule(tokens=PROMPTS)
    def ranks_by_what_is_left_to_compute(self, tokens: list[int]) -> None:
        def cost(name: str) -> tuple[int, int]:
            common = max((_common(tokens, sent) for sent in self.sent[name]), default=0)
            busy = sum(self.under_way[name].values())
            return len(tokens) - common + SEQUENCE_TOKENS * busy, busy

        ranked = self.balancer.rank(block_hashes(tokens))
        assert sorted(ranked) == sorted(self.live)
        assert [cost(name) for name in ranked] == sorted(map(cost, self.live))

    @invariant()
    def none_but_the_living(self) -> None:
        assert sorted(self.at_random.rank([])) == sorted(self.live)


def _common(one: list[int], other: list[int]) -> int:
    same = 0
    while same < min(len(one), len(other)) and one[same] == other[same]:
        same += 1
    return same - same % BLOCK_TOKENS


TestHistories = Histories.TestCase
TestHistories.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)


@given(st.lists(PROMPTS, max_size=30), st.integers(1, 8))
def test_an_index_is_bounded_and_keeps_the_beginning_of_the_last_prompt(
    prompts: list[list[int]], capacity: int
) -> None:
    index = PrefixIndex(capacity)
    for tokens in prompts:
        blocks = block_hashes(tokens)
        index.add(blocks)
        assert len(index) <= capacity
        assert index.match(blocks) == min(len(blocks), capacity)


def test_blocks_stand_for_all_before_them_and_for_their_adapter() -> None:
    tokens = list(range(3 * BLOCK_TOKENS + 5))
    blocks = block_hashes(tokens)
    assert len(blocks) == 3
    assert block_hashes(tokens[: 2 * BLOCK_TOKENS]) == blocks[:2]
    assert not {*block_hashes([99, *tokens[1:]])} & {*blocks}
    assert not {*block_hashes(tokens, "an adapter")} & {*blocks}


def test_requests_stay_with_their_prefix_until_its_replica_is_too_busy() -> None:
    balancer = Balancer(PREFIX_AWARE)
    balancer.update("ab")
    prompt = block_hashes([7] * (4 * SEQUENCE_TOKENS))
    went = []
    for number in range(12):
        went.append(balancer.rank(prompt)[0])
        balancer.began(str(number), went[-1], prompt)
    # A lead of four makes up for the whole prompt; then both have it, and the load decides.
    assert "".join(went) == "aaaa" + "bbbb" + "abab"
    for number in range(12):
        balancer.ended(str(number))
    assert balancer.rank(block_hashes([8] * BLOCK_TOKENS)) == ["a", "b"]


def test_random_asks_all_alike() -> None:
    balancer = Balancer(RANDOM, seed=1)
    balancer.update("abc")
    first = Counter(balancer.rank([])[0] for _ in range(3000))
    assert first.keys() == set("abc") and min(first.values()) > 900
