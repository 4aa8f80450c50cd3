"""Rows of a tree are masked like the text of their own path; budgets are kept; users' code runs."""

from __future__ import annotations

import random
import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
import torch

from trtspec import LLM, LogitsProcessor, RequestOutput, SamplingParams
from trtspec.config.guided_decoding import GuidedDecodingParams
from trtspec.errors import ConfigError, EngineError, RequestError
from trtspec.executor.logits.logits_mask import LogitsMask
from trtspec.guided.compiler import GrammarCompiler
from trtspec.guided.grammar_processor import GrammarProcessor
from trtspec.guided.thinking_budget import ThinkingBudget, ThinkingMarks
from trtspec.llmapi.prompts import load_tokenizer
from trtspec.ops.logits_mask import unpack_bits
from trtspec.ops.tree import TokenTree

from ..e2e.helpers import assert_no_leak
from ..llmapi.conftest import METHODS, VOCAB, TextModel, text_model
from .grammars import random_case

__all__ = ["text_model"]

END, SPARE_END = 0, 5
PROMPT = [40, 41, 42]


@pytest.fixture(scope="module")
def compiler(text_model: TextModel) -> GrammarCompiler:
    return GrammarCompiler(load_tokenizer(text_model.folder), VOCAB, [END])


def processor(compiler: GrammarCompiler, seed: int, **options: Any) -> GrammarProcessor:
    matcher = partial(compiler.matcher, GuidedDecodingParams(**random_case(seed).guided))
    made = GrammarProcessor(
        matcher, VOCAB, compiler.num_ids, len(PROMPT), (END, SPARE_END), **options
    )
    made.extend(PROMPT)
    return made


def allowed(mask: LogitsMask | None) -> torch.Tensor:
    assert mask is not None and mask.allowed is not None
    return unpack_bits(mask.allowed)[:, :VOCAB]


def random_tree(draw: random.Random, made: GrammarProcessor) -> TokenTree:
    """Grown along what the masks allow, most of the time."""
    tree = TokenTree.empty()
    for _ in range(draw.randint(0, 9)):
        parent = draw.randint(-1, len(tree) - 1)
        ids = allowed(made.mask(tree))[parent + 1].nonzero().flatten().tolist() or range(VOCAB)
        token = draw.choice(ids) if draw.random() < 0.8 else draw.randrange(VOCAB)
        tree = TokenTree([*tree.tokens.tolist(), token], [*tree.parents.tolist(), parent])
    return tree


@pytest.mark.parametrize("begins_after", [None, 77])
@pytest.mark.parametrize("seed", range(40))
def test_a_row_is_masked_like_its_text(
    compiler: GrammarCompiler, seed: int, begins_after: int | None
) -> None:
    draw = random.Random(seed)
    made, said = processor(compiler, seed, begins_after=begins_after), list[int]()
    if begins_after is not None and draw.random() < 0.7:
        said = [9, begins_after]
    made.extend(said)
    for _ in range(draw.randint(0, 12)):
        ids = set(allowed(made.mask(TokenTree.empty()))[0].nonzero().flatten().tolist())
        ids -= {END, SPARE_END}
        if not ids:
            break
        said.append(draw.choice(sorted(ids)))
        made.extend(said[-1:])
    tree = random_tree(draw, made)
    rows, kept = allowed(made.mask(tree)), made.prune(tree)
    possible = {()}  # paths that may come
    for node in range(-1, len(tree)):
        path = tree.path_tokens(node)
        if path and path[:-1] not in possible:
            continue
        above = rows[0] if len(path) < 2 else rows[1 + tree.path(node)[-2]]
        if path and (path[-1] in (END, SPARE_END) or not above[path[-1]]):
            continue
        possible.add(path)
        alone = processor(compiler, seed, begins_after=begins_after)
        alone.extend([*said, *path])
        assert torch.equal(rows[1 + node], allowed(alone.mask(TokenTree.empty()))[0])
    assert {kept.path_tokens(node) for node in range(-1, len(kept))} == possible
    assert torch.equal(rows, allowed(made.mask(tree))), "the walk left the matcher elsewhere"


@pytest.mark.parametrize(
    ("vocab_size", "ends"), [(VOCAB - 30, [0]), (VOCAB + 100, [0, VOCAB + 50])]
)
def test_a_tokenizer_of_more_or_fewer_tokens_than_the_model(
    text_model: TextModel, vocab_size: int, ends: list[int]
) -> None:
    """Its masks fit, what it forces is of the model, and an end that it does not know is one."""
    tokenizer = load_tokenizer(text_model.folder)
    compiler = GrammarCompiler(tokenizer, vocab_size, ends)
    letters = sorted(i for token, i in tokenizer.get_vocab().items() if token in "abc")
    matcher = partial(compiler.matcher, GuidedDecodingParams(regex="[a-c]{2}"))
    made = GrammarProcessor(matcher, vocab_size, compiler.num_ids, 0, ends)
    for may_come in (letters, letters, ends):
        mask = made.mask(TokenTree.empty()).allowed
        assert unpack_bits(mask)[0, :vocab_size].nonzero().flatten().tolist() == may_come
        made.extend(may_come[:1])
    every = partial(compiler.matcher, GuidedDecodingParams(choice=["that is that and"]))
    forced = GrammarProcessor(every, vocab_size, compiler.num_ids, 0, ends).forced()
    assert all(token < vocab_size for token in forced)


@pytest.mark.parametrize("dead", ["X\nX: /[^\\s\\S]/", 'x\nx: x "c"', 'x\nx: "c" x'])
def test_a_draft_into_a_dead_end_leaves_the_text_alone(
    text_model: TextModel, compiler: GrammarCompiler, dead: str
) -> None:
    vocabulary = load_tokenizer(text_model.folder).get_vocab()
    a, b, c = (vocabulary[letter] for letter in "abc")
    form = GuidedDecodingParams(grammar=f'start: "a" "a" | "b" {dead}')
    made = GrammarProcessor(partial(compiler.matcher, form), VOCAB, compiler.num_ids, 0, (END,))
    tree = TokenTree([b, c, a], [-1, 0, -1])
    made.forced([b])
    made.mask(made.prune(tree))
    made.mask(tree)
    made.extend([a])
    assert allowed(made.mask(TokenTree.empty()))[0].nonzero().flatten().tolist() == [a]


MARKS = ThinkingMarks(200, 201)


def forced_rows(budget: int, output: Sequence[int], tree: TokenTree, prompt: list[int]) -> Any:
    made = ThinkingBudget(budget, MARKS, VOCAB, prompt)
    made.extend(prompt)
    made.extend(output)
    mask = made.mask(tree)
    return None if mask is None else allowed(mask).sum(1).tolist()


def test_the_budget_counts_along_each_path() -> None:
    tree = TokenTree([1, 2, MARKS.end, 3], [-1, 0, 0, 2])
    # Of three tokens one was said; the path 1, 2 says the others, the path over the end none.
    assert forced_rows(3, [9], tree, [MARKS.start]) == [VOCAB, VOCAB, 1, VOCAB, VOCAB]
    assert forced_rows(0, [], TokenTree.empty(), [MARKS.start]) == [1]
    assert forced_rows(0, [], TokenTree.empty(), [MARKS.start, 4, MARKS.end]) is None
    assert forced_rows(1, [7, MARKS.start], TokenTree.chain([8]), [4]) == [VOCAB, 1]
    made = ThinkingBudget(2, MARKS, VOCAB, [MARKS.start])
    made.extend([MARKS.start, MARKS.start])  # another start buys no more
    assert (made.forced(), made.forced([6]), made.forced([MARKS.end])) == ((), (MARKS.end,), ())


def test_a_start_within_a_form_is_text() -> None:
    """Its end might never be allowed there."""
    made = ThinkingBudget(1, MARKS, VOCAB, [MARKS.start], begins_again=False)
    made.extend([MARKS.start, MARKS.end, MARKS.start, 5])
    assert made.mask(TokenTree.empty()) is None


def half(output: list[int], logits: torch.Tensor) -> torch.Tensor:
    """What may come depends on the newest token."""
    logits[(output[-1] if output else 0) % 2 :: 2] = -torch.inf
    return logits


def longer(prompt: list[int], output: list[int], logits: torch.Tensor) -> torch.Tensor:
    logits[END] = -torch.inf if len(output) < len(prompt) else logits[END] + 3
    return logits


class Cycle(LogitsProcessor):
    """Counts what came by itself: each sequence has its own."""

    def __init__(self) -> None:
        self.count = 0

    def extend(self, tokens: Sequence[int]) -> None:
        self.count += len(tokens)

    def apply(self, logits: torch.Tensor, tree: TokenTree) -> None:
        for row, depth in enumerate([0, *tree.depths.tolist()]):
            logits[row, (self.count + depth) % 7 :: 7] = -torch.inf


def texts(outputs: list[RequestOutput]) -> list[list[int]]:
    return [c.token_ids for output in outputs for c in output.outputs]


def run_user(llm: LLM) -> list[list[int]]:
    wishes = [
        SamplingParams(max_tokens=20, temperature=t, seed=3, n=2, logits_processors=given)
        for t in (0.0, 0.9)
        for given in ([half], [longer, half], [Cycle()], [])
    ]
    found = texts(llm.generate(["the cat"] * len(wishes), wishes, use_tqdm=False))
    assert_no_leak(llm)
    return found


def test_code_of_users_sees_the_text_of_each_row(text_model: TextModel) -> None:
    runs = []
    for method in METHODS:
        with text_model.open(method) as llm:
            runs.append(run_user(llm))
    assert all(run == runs[0] for run in runs[1:])
    assert runs[0][0] != runs[0][6], "the function changed nothing"


def test_one_that_fails_fails_its_request_alone(text_model: TextModel) -> None:
    def broken(output: list[int], logits: torch.Tensor) -> torch.Tensor:
        if len(output) > 2:
            raise ValueError("no more")
        return logits

    class Worse(Cycle):
        def mask(self, tree: TokenTree) -> LogitsMask:
            raise RequestError("never")

    wishes: list[Any] = [
        SamplingParams(max_tokens=8),
        SamplingParams(max_tokens=8, logits_processors=[broken]),
        SamplingParams(max_tokens=8, logits_processors=[Worse()]),
    ]
    with text_model.open("ngram") as llm:
        alone = llm.generate("the cat", wishes[0]).outputs[0].token_ids
        fine, first, second = llm.generate(["the cat"] * 3, wishes, use_tqdm=False)
        assert_no_leak(llm)
    assert fine.outputs[0].token_ids == alone
    assert isinstance(first.error, EngineError) and "no more" in str(first.error)
    assert len(first.outputs[0].token_ids) == 3
    assert isinstance(second.error, RequestError) and "never" in str(second.error)


@pytest.mark.parametrize("given", [[lambda logits: logits], [3]])
def test_what_cannot_be_called_is_refused(text_model: TextModel, given: list[Any]) -> None:
    with text_model.open() as llm, pytest.raises(RequestError, match="logits"):
        llm.generate("the cat", SamplingParams(logits_processors=given))


def test_without_the_library_the_error_names_the_extra(
    text_model: TextModel, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "llguidance", None)
    with text_model.open() as llm, pytest.raises(ConfigError, match=r"trtspec\[grammar\]"):
        llm.generate("the cat", SamplingParams(guided_decoding={"regex": "a"}))
