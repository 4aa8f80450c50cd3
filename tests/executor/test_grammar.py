"""A grammar is one more LogitsProcessor: the same text with drafts and without, and drafts that it
refuses are not verified."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from trtspec import LLM, SamplingParams
from trtspec.errors import EngineError
from trtspec.executor.logits.logits_mask import LogitsMask
from trtspec.executor.logits.logits_processor import LogitsProcessor
from trtspec.ops.logits_mask import pack_bits
from trtspec.ops.tree import TokenTree

from .. import inside
from ..e2e.helpers import TinyModels, assert_no_leak, ngram, open_llm, random_prompt, tokens, tree
from ..models.tiny_hf import VOCAB

PROMPTS = [random_prompt(910, 9), random_prompt(911, 4) * 3, [7]]
RUNS = [
    SamplingParams(max_tokens=40, ignore_eos=True),
    SamplingParams(max_tokens=40, ignore_eos=True, temperature=1.0, seed=5, repetition_penalty=1.2),
]
SAID, FIRST = (30, 31, 32), 30
"""What must follow once FIRST has come."""


class Automaton:
    """Behind an odd token comes an even one; three even ones in a row want an odd one; and FIRST
    begins a fixed phrase. A state: even tokens in a row (-1: an odd one came), tokens of the phrase
    said."""

    start = (0, 0)

    def allowed(self, state: tuple[int, int]) -> torch.Tensor:
        evens, said = state
        ids = torch.arange(VOCAB)
        if said:
            return ids == SAID[said]
        if evens < 0:
            return ids % 2 == 0
        return ids % 2 == 1 if evens == 3 else ids >= 0

    def next(self, state: tuple[int, int], token: int) -> tuple[int, int]:
        evens, said = state
        said = (said + 1) % len(SAID) if said or token == FIRST else 0
        return (-1, said) if token % 2 else (max(evens, 0) + 1, said)


class Grammar(LogitsProcessor):
    """Lets come what the automaton does; the prompt may be anything."""

    def __init__(self, num_prompt_tokens: int) -> None:
        self.automaton = Automaton()
        self.state = Automaton.start
        self.num_left = num_prompt_tokens  # of the prompt
        self.refused = 0

    def extend(self, tokens: Sequence[int]) -> None:
        prompt, self.num_left = self.num_left, max(self.num_left - len(tokens), 0)
        for token in tokens[prompt:]:
            assert self.automaton.allowed(self.state)[token]
            self.state = self.automaton.next(self.state, token)

    def states(self, tree: TokenTree) -> list[tuple[int, int]]:
        """The root's, then that of each node; of a path that is refused, any."""
        states = [self.state]
        for token, parent in zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True):
            states.append(self.automaton.next(states[parent + 1], token))
        return states

    def mask(self, tree: TokenTree) -> LogitsMask:
        rows = [self.automaton.allowed(state) for state in self.states(tree)]
        return LogitsMask(allowed=pack_bits(torch.stack(rows)))

    def prune(self, tree: TokenTree) -> TokenTree:
        states, kept = self.states(tree), [-1]
        places = {-1: -1}
        for node, (token, parent) in enumerate(
            zip(tree.tokens.tolist(), tree.parents.tolist(), strict=True)
        ):
            if parent in places and self.automaton.allowed(states[parent + 1])[token]:
                places[node] = len(kept) - 1
                kept.append(node)
        self.refused += len(tree) - len(kept) + 1
        nodes = kept[1:]
        return TokenTree(
            [int(tree.tokens[node]) for node in nodes],
            [places[int(tree.parents[node])] for node in nodes],
        )

    def forced(self, tokens: Sequence[int] = ()) -> Sequence[int]:
        state = self.state
        for token in tokens:
            state = self.automaton.next(state, token)
        return SAID[state[1] :] if state[1] else ()


class Unpruned(Grammar):
    """Leaves it to the masks."""

    def prune(self, tree: TokenTree) -> TokenTree:
        return tree

    def forced(self, tokens: Sequence[int] = ()) -> Sequence[int]:
        return ()


class RootAlone(Unpruned):
    """Masks all rows by the text of the root: a fault."""

    def states(self, tree: TokenTree) -> list[tuple[int, int]]:
        return [self.state] * (1 + len(tree))


Made = list[Any]


def use(llm: LLM, kind: Callable[[int], Grammar]) -> Made:
    """From now on every request of the LLM has such a grammar; the list grows by them."""
    executor, made = inside.executor(llm), []
    add = type(executor).add

    def added(request: Any, stop: Any) -> None:
        made.append(kind(request.num_prompt_tokens))
        request.processors = (made[-1],)
        add(executor, request, stop)

    executor.add = added
    return made


def texts(llm: LLM) -> list[list[list[int]]]:
    return [tokens(llm.generate(PROMPTS, params, use_tqdm=False)) for params in RUNS]


@pytest.fixture(scope="module")
def plain(models: TinyModels) -> list[list[list[int]]]:
    """The texts without drafts."""
    with open_llm(models.folder("llama")) as llm:
        free = texts(llm)
        use(llm, Grammar)
        bound = texts(llm)
        assert_no_leak(llm)
    assert bound != free
    for text in (text for run in bound for text in run):
        state = Automaton.start
        for token in text:
            assert Automaton().allowed(state)[token]
            state = Automaton().next(state, token)
    assert any(FIRST in text for run in bound for text in run)
    return bound


@pytest.fixture(scope="module", params=["tree", "ngram"])
def drafting(request: pytest.FixtureRequest, models: TinyModels) -> Iterator[LLM]:
    config = ngram(4) if request.param == "ngram" else tree(models.draft("llama"), 3, 3, 10)
    with open_llm(models.folder("llama"), config) as llm:
        yield llm
        assert_no_leak(llm)


@pytest.mark.parametrize("kind", [Grammar, Unpruned])
def test_drafts_change_no_text(
    drafting: LLM, plain: list[list[list[int]]], kind: Callable[[int], Grammar]
) -> None:
    before = drafting.get_metrics()
    made = use(drafting, kind)
    assert texts(drafting) == plain
    after = drafting.get_metrics()
    accepted = after["num_accepted_tokens"] - before["num_accepted_tokens"]
    assert accepted > 0
    assert (sum(grammar.refused for grammar in made) > 0) == (kind is Grammar)


def test_a_state_that_ignores_the_path_is_noticed(
    drafting: LLM, plain: list[list[list[int]]]
) -> None:
    use(drafting, RootAlone)
    with pytest.raises((AssertionError, EngineError)):
        assert texts(drafting) == plain
