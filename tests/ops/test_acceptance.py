from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

from trtspec.ops.acceptance import accept, accept_reference
from trtspec.ops.sampling import draft_candidates, sample

REJECTED = 1e-6


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """The torch reference runs many tiny operations, which threads only slow down."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def walk(sampled: list[int], tokens: list[int], parents: list[int]) -> list[int]:
    rows, count = accept(
        torch.tensor(sampled),
        torch.tensor(tokens),
        torch.tensor(parents, dtype=torch.int32),
        torch.tensor([0, len(sampled)], dtype=torch.int32),
    )
    length = int(count[0])
    assert rows[0, length:].tolist() == [-1] * (len(sampled) - length)
    return rows[0, :length].tolist()


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_forced_walks(data: st.DataObject) -> None:
    """As the reference says, beside walks that are not forced, and broken rows."""
    sampled, tokens, parents, starts = [], [], [], [0]
    forced = data.draw(st.lists(st.integers(-1, 5), min_size=1, max_size=4))
    for _ in forced:
        rows = data.draw(st.integers(1, 9))
        parents += [-1, *(data.draw(st.integers(0, row - 1)) for row in range(1, rows))]
        tokens += data.draw(st.lists(st.integers(0, 2), min_size=rows, max_size=rows))
        sampled += data.draw(st.lists(st.integers(-1, 2), min_size=rows, max_size=rows))
        starts.append(starts[-1] + rows)
    columns = torch.tensor(sampled), torch.tensor(tokens)
    rest = [torch.tensor(x, dtype=torch.int32) for x in (parents, starts, forced)]
    found, expected = accept(*columns, *rest), accept_reference(*columns, *rest)
    assert torch.equal(found[0], expected[0]) and torch.equal(found[1], expected[1])
    plain, (_, emitted) = accept(*columns, *rest[:2])[1], found
    for b, count in enumerate(forced):
        if count < 0:
            assert emitted[b] == plain[b]
        elif min(sampled) >= 0:
            own = parents[starts[b] : starts[b + 1]]
            depths = [0]
            for parent in own[1:]:
                depths.append(depths[parent] + 1)
            assert emitted[b] == 1 + min(count, max(depths))


ROOT = (-7, -1)  # its token is not read

CASES = {
    "nothing drafted": ([5], [ROOT], [0]),
    "first token wrong": ([5, 6], [ROOT, (4, 0)], [0]),
    "chain of three, none accepted": ([5, 2, 3, 4], [ROOT, (1, 0), (2, 1), (3, 2)], [0]),
    "chain of three, two accepted": ([1, 2, 9, 4], [ROOT, (1, 0), (2, 1), (3, 2)], [0, 1, 2]),
    "chain of three, all accepted": ([1, 2, 3, 4], [ROOT, (1, 0), (2, 1), (3, 2)], [0, 1, 2, 3]),
    "second sibling": ([8, 0, 4], [ROOT, (7, 0), (8, 0)], [0, 2]),
    "lowest of equal siblings": ([8, 1, 2], [ROOT, (8, 0), (8, 0)], [0, 1]),
    "right token under the wrong parent": ([8, 0, 3, 4], [ROOT, (7, 0), (8, 1), (3, 1)], [0]),
    "deep in the second branch": (
        [2, 0, 5, 0, 0, 6, 9],
        [ROOT, (1, 0), (2, 0), (5, 1), (4, 2), (5, 2), (6, 5)],
        [0, 2, 5, 6],
    ),
    "branch order of rows": (
        [2, 3, 3, 0, 1],
        [ROOT, (1, 0), (2, 0), (3, 1), (3, 2)],
        [0, 2, 4],
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_hand_made_trees(case: tuple[list[int], list[tuple[int, int]], list[int]]) -> None:
    sampled, nodes, expected = case
    assert walk(sampled, [t for t, _ in nodes], [p for _, p in nodes]) == expected


@st.composite
def batches(draw: st.DrawFn) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    sizes = draw(st.lists(st.integers(0, 12), min_size=0, max_size=5))
    parents: list[int] = []
    for size in sizes:
        parents += [-1][:size] + [draw(st.integers(0, row - 1)) for row in range(1, size)]
    token = st.integers(0, 2)
    sampled = [draw(token) for _ in parents]
    tokens = [draw(token) for _ in parents]
    starts = np.concatenate([[0], np.cumsum(sizes)])
    return (
        torch.tensor(sampled, dtype=torch.int64),
        torch.tensor(tokens, dtype=torch.int64),
        torch.tensor(parents, dtype=torch.int32),
        torch.tensor(starts, dtype=torch.int32),
    )


@pytest.mark.slow
@settings(max_examples=200, deadline=None, derandomize=True)
@given(batches())
def test_accept_equals_the_reference(batch: tuple[Tensor, Tensor, Tensor, Tensor]) -> None:
    rows, count = accept(*batch)
    expected_rows, expected_count = accept_reference(*batch)
    assert torch.equal(rows, expected_rows)
    assert torch.equal(count, expected_count)


def test_wrong_arguments_are_named() -> None:
    def ints(*values: int) -> Tensor:
        return torch.tensor(values, dtype=torch.int32)

    ids = torch.zeros(3, dtype=torch.int64)
    for parents, starts, message in [
        (ints(-1, 0, 2), ints(0, 3), "request 0 has a node whose parent"),
        (ints(-1, 0, -1), ints(0, 3), "request 0 has a node whose parent"),
        (ints(-1, 0, 0), ints(0, 2), "from 0 to the 3 rows"),
        (ints(-1, 0, 0), ints(0, 4, 3), "request 1 has -1 rows"),
        (ints(-1, 0), ints(0, 3), "parents must have shape"),
    ]:
        with pytest.raises(RuntimeError, match=message):
            accept(ids, ids, parents, starts)


# -- exactness: a toy Markov target ---------------------------------------------------------------

VOCAB = 5
LENGTH = 3
TARGET = torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(11)) * 1.5
DRAFT = TARGET + torch.randn(VOCAB, VOCAB, generator=torch.Generator().manual_seed(12)) * 0.7
PARENTS = torch.tensor([-1, 0, 0, 1, 1, 2, 3], dtype=torch.int32)
DEPTHS = torch.tensor([0, 1, 1, 2, 2, 2, 3])
CHILDREN = {0: (1, 2), 1: (3, 4), 2: (5,), 3: (6,)}


def noise_rows(seed: Tensor, output_index: Tensor, temperature: float) -> tuple[Tensor, ...]:
    rows = len(seed)
    return (
        torch.full((rows,), temperature),
        torch.zeros(rows, dtype=torch.int32),
        torch.ones(rows),
        torch.zeros(rows),
        seed,
        torch.zeros_like(seed),
        output_index,
    )


def markov(table: Tensor, last: Tensor, seed: Tensor, index: Tensor, temperature: float) -> Tensor:
    return sample(table[last].contiguous(), *noise_rows(seed, index, temperature))


def alone(runs: int) -> Tensor:
    """The first LENGTH tokens of each run without speculation, int64 [runs, LENGTH]."""
    last = torch.zeros(runs, dtype=torch.int64)
    tokens = []
    for i in range(LENGTH):
        last = markov(TARGET, last, torch.arange(runs), torch.full((runs,), i), 1.0)
        tokens.append(last)
    return torch.stack(tokens, dim=1)


def draft_tree(kind: str, last: Tensor, seed: Tensor, index: Tensor) -> Tensor:
    """Tokens of the tree of PARENTS for each run, int64 [runs, 7] (the root's is `last`)."""
    runs = len(last)
    tokens = last[:, None].repeat(1, len(PARENTS))
    if kind == "random":
        noise = torch.Generator().manual_seed(int(index.sum()))
        tokens[:, 1:] = torch.randint(VOCAB, (runs, len(PARENTS) - 1), generator=noise)
        return tokens
    table = TARGET if kind == "target" else -TARGET if kind == "adversarial" else DRAFT
    temperature = 0.0 if kind == "greedy" else 1.0
    for parent, children in CHILDREN.items():
        rows = noise_rows(seed, index + DEPTHS[parent], temperature)
        logits = table[tokens[:, parent]].contiguous()
        tokens[:, list(children)] = draft_candidates(logits, *rows, None, len(children))[0]
    return tokens


def speculate(kind: str, runs: int) -> tuple[Tensor, float]:
    """The same tokens by drafting, verifying and walking, and the mean accepted drafts a step."""
    width = len(PARENTS)
    emitted = [[0] for _ in range(runs)]
    accepted = steps = 0
    while True:
        live = [r for r in range(runs) if len(emitted[r]) <= LENGTH]
        if not live:
            break
        seed = torch.tensor(live)
        last = torch.tensor([emitted[r][-1] for r in live])
        index = torch.tensor([len(emitted[r]) - 1 for r in live])
        tokens = draft_tree(kind, last, seed, index)
        sampled = markov(
            TARGET,
            tokens.flatten(),
            seed.repeat_interleave(width),
            (index[:, None] + DEPTHS).flatten(),
            1.0,
        )
        starts = torch.arange(len(live) + 1, dtype=torch.int32) * width
        rows, count = accept(sampled, tokens.flatten(), PARENTS.repeat(len(live)), starts)
        picked = sampled.view(-1, width).gather(1, rows.clamp(min=0).long()).tolist()
        for r, path, length in zip(live, picked, count.tolist(), strict=True):
            emitted[r] += path[:length]
            accepted, steps = accepted + length - 1, steps + 1
    return torch.tensor([tokens[1 : LENGTH + 1] for tokens in emitted]), accepted / steps


@pytest.mark.parametrize("kind", ["random", "adversarial", "greedy", "coupled", "target"])
def test_the_text_does_not_depend_on_the_draft(kind: str) -> None:
    tokens, _ = speculate(kind, 1500)
    assert torch.equal(tokens, alone(1500))


def test_the_emitted_law_is_the_targets() -> None:
    """The joint law of LENGTH tokens of a Markov target, emitted with a coupled tree."""
    runs = 12_000
    tokens = speculate("coupled", runs)[0].numpy()
    cells = np.bincount(tokens @ np.array([VOCAB**2, VOCAB, 1]), minlength=VOCAB**3)

    def fit(temperature: float) -> float:
        p = torch.softmax(TARGET.double() / temperature, dim=1).numpy()
        law = (p[0][:, None, None] * p[:, :, None] * p[None, :, :]).ravel()
        common = law * runs >= 5
        counts = np.append(cells[common], cells[~common].sum())
        expected = np.append(law[common], law[~common].sum()) * runs
        return float(stats.chisquare(counts, expected).pvalue)

    assert fit(1.0) > REJECTED
    assert fit(1.2) < REJECTED  # negative control


def test_acceptance_by_draft() -> None:
    accepted = {kind: speculate(kind, 1500)[1] for kind in ("adversarial", "greedy", "coupled")}
    assert accepted["coupled"] > accepted["greedy"] + 0.1
    assert accepted["greedy"] > accepted["adversarial"]
    assert speculate("target", 1500)[1] == 3.0  # the depth of the tree: everything is accepted
