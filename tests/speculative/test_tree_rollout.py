"""TreeRollout over a scripted draft network: which nodes it feeds, records and keeps.

The network's logits are a function of the path of tokens that a row was reached by, which a row
learns from its *features* alone (those of its parent, plus its own token). So a wrong gather of
features, tokens or scores shows as another tree.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from trtspec.config.tree import Choices, TreeShape
from trtspec.models.rows import Caches, PackedRows
from trtspec.ops.sampling import SamplingColumns, draft_candidates, gumbel_noise
from trtspec.speculative.tree_rollout import TreeRollout

from .tree_reference import Children, Path, assert_equal_trees, columns, grow

GREEDY = (0.0, 0, 1.0, 0.0, 0, 0, 0)
BLOCK = 4
BLOCKS_EACH = 24
# Rows fed before the rollout, per request: committed ones and those of the first pass.
STARTS = ((5, 3), (0, 1), (9, 4))

Logits = Callable[[int, Path], Tensor]  # of a request and a path


class Scripted(nn.Module):
    """A draft network whose features are numbers of paths; remembers all calls."""

    def __init__(self, logits: Logits, token_map: Tensor | None = None) -> None:
        super().__init__()
        self.logits, self.token_map = logits, token_map
        self.paths: list[tuple[int, Path]] = []
        self.calls: list[tuple[list[tuple[int, Path]], PackedRows]] = []

    def _number(self, request: int, path: Path) -> int:
        self.paths.append((request, path))
        return len(self.paths) - 1

    def fuse(self, hidden_in: Tensor) -> Tensor:
        return torch.tensor([[float(self._number(int(row[0]), ()))] for row in hidden_in])

    def draft(
        self,
        input_ids: Tensor,
        features: Tensor | None,
        rows: PackedRows,
        caches: Caches,
        kept: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        assert features is not None and features.shape == (len(input_ids), 1)
        came_from = [self.paths[int(number)] for number in features[:, 0]]
        if self.calls:
            reached = [
                (request, (*path, token))
                for (request, path), token in zip(came_from, input_ids.tolist(), strict=True)
            ]
        else:
            reached = came_from  # the accepted rows: all at the root
        self.calls.append((reached, rows))
        out = torch.tensor([[float(self._number(*row))] for row in reached])
        out = out if kept is None else out[kept]
        return out, out

    def head(self, hidden: Tensor) -> Tensor:
        return torch.stack([self.logits(*self.paths[int(number)]) for number in hidden[:, 0]])


def roll_out(
    network: Scripted,
    shape: TreeShape,
    sampling: SamplingColumns,
    words: int = 1,
    blocks: int = BLOCKS_EACH,
) -> tuple[Tensor, Tensor, Tensor]:
    """Roll out for as many requests as ``sampling`` has, behind the rows of STARTS."""
    starts = STARTS[: len(sampling.seed)]
    tables = torch.randperm(len(starts) * blocks).view(len(starts), blocks).int()
    counts = [fed for _, fed in starts]
    positions = torch.cat([torch.arange(c, c + fed) for c, fed in starts])
    request = torch.repeat_interleave(torch.arange(len(starts)), torch.tensor(counts))
    slots = tables[request, positions // BLOCK].long() * BLOCK + positions % BLOCK
    query_start = torch.tensor([0, *counts]).cumsum(0)
    rows = PackedRows(
        positions,
        slots,
        tables,
        query_start.int(),
        torch.tensor([c for c, _ in starts], dtype=torch.int32),
        torch.zeros(len(starts), dtype=torch.bool),
        torch.zeros(len(positions), words, dtype=torch.int64),
    )
    rollout = TreeRollout(network, shape, BLOCK)
    ids = torch.zeros(len(positions), dtype=torch.int64)
    hidden = request[:, None].float()
    tokens, parents, scores = rollout(ids, rows, query_start[1:] - 1, sampling, hidden, [])
    assert (tokens.dtype, parents.dtype, scores.dtype) == (torch.int64, torch.int32, torch.float32)
    assert tokens.shape == parents.shape == scores.shape == (len(starts), shape.num_nodes)
    return tokens, parents, scores


def children_of(
    logits: Logits, request: int, sampling: SamplingColumns, token_map: Tensor | None = None
) -> Children:
    def children(path: Path, count: int) -> list[tuple[int, np.float32]]:
        row = SamplingColumns(*(column[request : request + 1] for column in sampling))
        row = row._replace(output_index=row.output_index + len(path))
        ids, gains = draft_candidates(logits(request, path)[None], *row, token_map, count)
        return list(zip(ids[0].tolist(), gains[0].clamp(max=0).numpy(), strict=True))

    return children


def random_logits(vocab: int, seed: int, levels: int = 0) -> Logits:
    """Different for every request and path; ``levels`` > 0: few values, hence many ties."""

    def logits(request: int, path: Path) -> Tensor:
        key = torch.Generator().manual_seed(hash((seed, request, path)) % 2**62)
        if levels:
            return torch.randint(levels, (vocab,), generator=key).float() * 5
        return 2 * torch.randn(vocab, generator=key)

    return logits


def given_probabilities(table: dict[Path, Sequence[float]]) -> Logits:
    return lambda request, path: torch.tensor(table[path]).log()


def test_the_worked_example() -> None:
    """k = 2, D = 3, N = 5 by hand: the pool is .6 .3 | .42 .12 .15 .12 | .336 .042 .09 .045."""
    table: dict[Path, Sequence[float]] = {
        (): (0.1, 0.6, 0.3, 0.0),
        (1,): (0.2, 0.1, 0.0, 0.7),
        (2,): (0.5, 0.0, 0.1, 0.4),
        (1, 3): (0.04, 0.8, 0.06, 0.1),
        (2, 0): (0.3, 0.1, 0.6, 0.0),
    }
    network = Scripted(given_probabilities(table))
    tokens, parents, scores = roll_out(network, TreeShape(2, 3, 5), columns(GREEDY))
    assert tokens.tolist() == [[1, 2, 3, 1]]
    assert parents.tolist() == [[-1, -1, 0, 2]]
    torch.testing.assert_close(scores.exp(), torch.tensor([[0.6, 0.3, 0.42, 0.336]]))
    fed = [[path for _, path in reached] for reached, _ in network.calls[1:]]
    assert fed == [[(1,), (2,)], [(1, 3), (2, 0)]]
    # Of the whole pool, the order and the parents of all candidates.
    tokens, parents, scores = roll_out(
        Scripted(network.logits), TreeShape(2, 3, 11), columns(GREEDY)
    )
    pool = [0.6, 0.3, 0.42, 0.12, 0.15, 0.12, 0.336, 0.042, 0.09, 0.045]
    torch.testing.assert_close(scores[0].exp(), torch.tensor(pool))
    assert tokens.tolist() == [[1, 2, 3, 0, 0, 3, 1, 3, 2, 0]]
    assert parents.tolist() == [[-1, -1, 0, 0, 1, 1, 2, 2, 4, 4]]


def test_a_chain_is_the_greedy_path() -> None:
    logits = random_logits(9, 4)
    tokens, parents, _ = roll_out(Scripted(logits), TreeShape(1, 5, 6), columns(GREEDY, GREEDY))
    for request in range(2):
        path: Path = ()
        for _ in range(5):
            path = (*path, int(logits(request, path).argmax()))
        assert tuple(tokens[request].tolist()) == path
        assert parents[request].tolist() == [-1, 0, 1, 2, 3]


CHOICES: list[Choices] = [
    ((0,),),
    ((3,),),  # the fourth best alone
    ((1,), (1, 0), (1, 0, 2)),  # a chain beside the best
    ((0,), (2,), (0, 1), (2, 0), (2, 3), (0, 1, 0), (2, 3, 1)),
    ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0), (0, 0, 1), (0, 0, 0, 0)),
]


@pytest.mark.parametrize("choices", CHOICES)
def test_static_trees(choices: Choices) -> None:
    shape, logits, sampling = TreeShape.static(choices), random_logits(7, 1), columns(*[GREEDY] * 3)
    network = Scripted(logits)
    found = roll_out(network, shape, sampling)
    for request in range(3):
        nodes = grow(children_of(logits, request, sampling), shape)
        assert_equal_trees(nodes, *(x[request] for x in found))
        for node, choice in zip(nodes, choices, strict=True):
            assert len(node.path) == len(choice)
            best = logits(request, node.path[:-1]).argsort(descending=True)
            assert node.token == best[choice[-1]]
    # No row is fed for the sake of a node without children.
    assert sum(len(reached) for reached, _ in network.calls[1:]) == 3 * shape.num_rollout_rows


def test_a_static_tree_is_not_what_scores_best() -> None:
    choices = ((0,), (1,), (1, 1))
    table: dict[Path, Sequence[float]] = {(): (0.9, 0.1), (0,): (0.9, 0.1), (1,): (0.2, 0.8)}
    network = Scripted(given_probabilities(table))
    tokens, parents, scores = roll_out(network, TreeShape.static(choices), columns(GREEDY))
    assert (tokens.tolist(), parents.tolist()) == ([[0, 1, 0]], [[-1, -1, 1]])
    torch.testing.assert_close(scores[0].exp(), torch.tensor([0.9, 0.1, 0.02]))


def test_ties_go_to_the_earlier_candidate() -> None:
    """All candidates of a depth equal, and children that are certain: equal to their parents."""
    even = Scripted(lambda request, path: torch.zeros(4))
    tokens, parents, scores = roll_out(even, TreeShape(2, 2, 5), columns(GREEDY))
    assert (tokens.tolist(), parents.tolist()) == ([[0, 1, 0, 1]], [[-1, -1, 0, 0]])
    torch.testing.assert_close(scores[0].exp(), torch.tensor([1 / 4, 1 / 4, 1 / 16, 1 / 16]))
    certain = Scripted(lambda request, path: torch.tensor([0.0, 0.0, 500.0, 0.0]))
    tokens, parents, scores = roll_out(certain, TreeShape(2, 4, 5), columns(GREEDY))
    assert scores.tolist() == [[0.0, 0.0, 0.0, 0.0]]
    assert (tokens.tolist(), parents.tolist()) == ([[2, 2, 2, 2]], [[-1, 0, 1, 2]])


shapes = st.integers(1, 5).flatmap(
    lambda k: st.integers(1, 4).flatmap(
        lambda d: st.builds(
            TreeShape,
            st.just(k),
            st.just(d),
            st.just(d + 1) if k == 1 else st.integers(2, 1 + k + (d - 1) * k * k),
        )
    )
)
options = st.tuples(
    st.sampled_from([0.0, 0.0, 0.3, 1.0]),
    st.sampled_from([0, 1, 3]),
    st.sampled_from([1.0, 0.8]),
    st.sampled_from([0.0, 0.1]),
    st.integers(-(2**63), 2**63 - 1),
    st.integers(0, 3),
    st.integers(0, 100),
)


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(shapes, st.lists(options, min_size=1, max_size=3), st.integers(), st.sampled_from([0, 2, 3]))
def test_equals_the_published_algorithm(
    shape: TreeShape, values: list[tuple[float, int, float, float, int, int, int]], seed: int,
    levels: int,
) -> None:  # fmt: skip
    """Random logits (with many ties, where there are few levels), filters and seeds."""
    logits, sampling = random_logits(6, seed, levels), columns(*values)
    tokens, parents, scores = roll_out(Scripted(logits), shape, sampling)
    for request in range(len(values)):
        nodes = grow(children_of(logits, request, sampling), shape)
        assert_equal_trees(nodes, tokens[request], parents[request], scores[request])
        for i, parent in enumerate(parents[request].tolist()):
            assert -1 <= parent < i
            if parent >= 0:
                assert scores[request, parent] >= scores[request, i]


@pytest.mark.parametrize("mapped", [False, True])
@pytest.mark.parametrize("shape", [TreeShape(3, 3, 12), TreeShape.static(CHOICES[3])])
def test_coupled_noise(shape: TreeShape, mapped: bool) -> None:
    """Children are the top of log q + G with the target's own noise for that output token, keyed
    by the target's ids; a score is the sum of log-softmaxes of that."""
    vocab, temperature, seed, sample, first = 8, 0.7, -99, 2, 41
    ids = torch.tensor([3, 4, 11, 12, 30, 31, 32, 90]) if mapped else torch.arange(vocab)
    logits = random_logits(vocab, 8)
    values = (temperature, 0, 1.0, 0.0, seed, sample, first)
    network = Scripted(logits, ids if mapped else None)
    tokens, parents, scores = (x[0] for x in roll_out(network, shape, columns(values)))

    def perturbed(path: Path) -> Tensor:
        keys = (torch.tensor(x) for x in (seed, sample, first + len(path)))
        log_q = (logits(0, path).double() / temperature).log_softmax(0)
        return (log_q + gumbel_noise(ids, *keys)).log_softmax(0)

    def children(path: Path, count: int) -> list[tuple[int, np.float32]]:
        best = perturbed(path).topk(count)
        return [
            (int(ids[i]), np.float32(gain))
            for i, gain in zip(best.indices.tolist(), best.values.tolist(), strict=True)
        ]

    nodes = grow(children, shape)
    assert tokens.tolist() == [node.token for node in nodes]
    assert parents.tolist() == [node.parent for node in nodes]
    expected = torch.tensor([float(node.score) for node in nodes])
    torch.testing.assert_close(scores, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("temperature", [0.5, 0.8, 1.0])
def test_a_certain_child_never_outranks_its_parent(temperature: float) -> None:
    """One survivor a row: its log probability is 0 but for rounding, which must not reorder."""
    for seed in range(20):
        values = columns((temperature, 1, 1.0, 0.0, seed, 0, 0))
        network = Scripted(random_logits(6, seed))
        _, parents, scores = roll_out(network, TreeShape(2, 6, 4), values)
        assert parents.tolist() == [[-1, 0, 1]]
        assert scores.max() <= 0 and scores.min() > -1e-6


def test_excluded_children() -> None:
    """Where the filters leave fewer than k children, the rest scores -inf."""
    values = (1.0, 2, 1.0, 0.0, 5, 0, 0)
    logits = random_logits(9, 3)
    _, parents, scores = roll_out(Scripted(logits), TreeShape(4, 2, 21), columns(values))
    finite = scores[0].isfinite()
    assert finite.sum() == 2 + 4
    assert all(finite[parent] for parent in parents[0][finite].tolist() if parent >= 0)
    broken = Scripted(lambda request, path: torch.full((9,), math.nan))
    assert not roll_out(broken, TreeShape(2, 2, 5), columns(values))[2].isfinite().any()


@pytest.mark.parametrize(
    ("shape", "words"),
    [
        (TreeShape(3, 4, 20), 1),
        (TreeShape(10, 9, 60), 2),  # 80 rows: more than one word of mask
        (TreeShape.static(CHOICES[4]), 1),
    ],
)
def test_rows_and_masks(shape: TreeShape, words: int) -> None:
    """A fed row stands at the position of its depth, has a slot of its own behind the accepted
    rows, and sees the prefix, its ancestors and itself."""
    network = Scripted(random_logits(12, 6))
    roll_out(network, shape, columns(*[GREEDY] * 3), words)
    held: dict[tuple[int, int], Path] = {}  # (request, cache offset behind the accepted rows)
    for depth, (reached, rows) in enumerate(network.calls[1:], 1):
        assert rows.is_tree.all() and rows.tree_mask.shape == (len(reached), words)
        assert rows.query_start.tolist() == list(range(0, len(reached) + 1, len(reached) // 3))
        context = [start + fed for start, fed in STARTS]
        assert rows.context_lens.tolist() == context
        for row, (request, path) in enumerate(reached):
            assert len(path) == depth
            assert rows.positions[row] == context[request] - 1 + depth
            block, place = divmod(int(rows.slot_mapping[row]), BLOCK)
            column = rows.block_tables[request].tolist().index(block)
            offset = column * BLOCK + place - context[request]
            assert offset >= 0 and (request, offset) not in held
            held[request, offset] = path
            mask = [int(word) % 2**64 for word in rows.tree_mask[row]]
            bits = sum(word << 64 * i for i, word in enumerate(mask))
            seen = [held[request, i] for i in range(bits.bit_length()) if bits >> i & 1]
            assert seen == [path[:length] for length in range(1, depth + 1)]
    assert len(held) == 3 * shape.num_rollout_rows
    assert {offset for _, offset in held} == set(range(shape.num_rollout_rows))


def test_rows_without_a_block_are_not_written() -> None:
    """A request that holds fewer blocks than the rollout would use (its nodes are cut later)."""
    network = Scripted(random_logits(12, 6))
    roll_out(network, TreeShape(2, 5, 9), columns(GREEDY), blocks=3)
    slots = torch.cat([rows.slot_mapping for _, rows in network.calls])
    inside = slots[slots >= 0]
    assert (slots == -1).sum() == 8 + 8 - 12
    assert inside.unique().numel() == len(inside)
