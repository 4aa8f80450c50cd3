"""Rollouts pass by pass against a plain reference: what each pass is fed, where it ends, the tree.

The draft is a table: what a row comes to follows from the tokens on the path to it, which is found
by the row's mask and by what earlier passes wrote into their slots. So a wrong slot, mask, position
or column changes the tree.
"""

from __future__ import annotations

import math
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import NamedTuple

import numpy as np
import pytest
import torch

from trtspec.backends.inputs import EngineInputs, RowInputs
from trtspec.backends.packing import RowGroup, pack
from trtspec.config.kv import CacheLayout
from trtspec.config.tree import TreeShape
from trtspec.executor.engines import pass_rollout
from trtspec.executor.engines.buckets import greedy_sampling
from trtspec.executor.engines.kv_tensors import KVTensors
from trtspec.executor.engines.pass_rollout import PassRollout, StopRule
from trtspec.speculative.tree_levels import make_levels

NONE = -math.inf
Path = tuple[int, ...]


class Clock:
    """Between two looks at it ``seconds`` pass."""

    def __init__(self, seconds: float) -> None:
        self._now, self._seconds = 0.0, seconds

    def perf_counter(self) -> float:
        self._now += self._seconds
        return self._now


@dataclass
class Draft:
    """Its children of a path, and how likely they are. certain: sharp distributions, 0 to 1.
    filtered: how often filters leave fewer."""

    seed: int
    topk: int
    vocab: int = 50
    certain: float = 0.5
    filtered: float = 0.2
    seen: list[int] = field(default_factory=list)  # rows of each pass

    def children(self, path: Path, output_index: int) -> list[tuple[int, np.float32]]:
        rng = random.Random(f"{self.seed} {path} {output_index}")
        ids = rng.sample(range(self.vocab), self.topk)
        gains = sorted((math.log(rng.random() ** (1 - self.certain)) for _ in ids), reverse=True)
        if rng.random() < self.filtered:
            gains[rng.randrange(len(gains)) :] = [NONE] * self.topk
        return list(zip(ids, map(np.float32, gains[: len(ids)]), strict=True))


class Engine:
    """A session of passes: keeps in every slot the path of the row that was written there. Given
    states, a state is the number of its path: each row takes one in."""

    def __init__(self, draft: Draft, layout: CacheLayout) -> None:
        self.draft, self._layout = draft, layout
        self.rows: dict[int, Path] = {}
        self._numbers: dict[Path, int] = {}

    def number(self, path: Path) -> int:
        """Of a path, and no other."""
        return self._numbers.setdefault(path, len(self._numbers))

    def run(self, inputs: EngineInputs) -> list[torch.Tensor]:
        rows, wanted, columns = inputs.rows, inputs.last_rows, inputs.columns
        assert rows is not None and wanted is not None and columns is not None
        paths = [self._path(rows, row) for row in range(len(rows.input_ids))]
        self.draft.seen.append(len(paths))
        if inputs.state_slots is not None:
            self._step(inputs.state_slots.tolist(), inputs, paths)
        found = [
            self.draft.children(paths[row], int(index))
            for row, index in zip(wanted.tolist(), columns.output_index, strict=True)
        ]
        ids = torch.tensor([[token for token, _ in row] for row in found])
        gains = torch.tensor(np.array([[gain for _, gain in row] for row in found], np.float32))
        return [ids, gains]

    def _step(self, slots: list[int], inputs: EngineInputs, paths: list[Path]) -> None:
        assert inputs.rows is not None and len(set(slots)) == len(slots)
        (states,) = inputs.caches
        starts = inputs.rows.query_start.tolist()
        assert len(starts) == len(slots) + 1
        for slot, (first, end) in zip(slots, pairwise(starts), strict=True):
            assert end == first + 1 or not inputs.rows.is_tree.any()
            before = paths[first][:-1]
            assert not before or states[slot].item() == self.number(before)
            states[slot] = self.number(paths[end - 1])

    def _path(self, rows: RowInputs, row: int) -> Path:
        request = int(np.searchsorted(rows.query_start.numpy(), row, side="right")) - 1
        context, size = int(rows.context_lens[request]), self._layout.tokens_per_block
        table = rows.block_tables[request]
        if rows.is_tree[request]:
            mask = rows.tree_mask[row].tolist()
            beyond = [j for j in range(64 * len(mask)) if mask[j // 64] >> (j % 64) & 1]
            visible = [*range(context), *(context + j for j in beyond)]
        else:
            visible = list(range(context + row - int(rows.query_start[request]) + 1))
        own, token = int(rows.slot_mapping[row]), int(rows.input_ids[row])
        slots = [int(table[p // size]) * size + p % size for p in visible]
        assert slots[-1] == own and int(rows.positions[row]) == len(visible) - 1
        path = (*self.rows[slots[-2]], token) if len(slots) > 1 else (token,)
        assert [self.rows[slot] for slot in slots[:-1]] == [
            path[: i + 1] for i in range(len(path) - 1)
        ]
        self.rows[own] = path
        return path


class Node(NamedTuple):
    """A candidate. chance: of its path, in logarithms."""

    token: int
    parent: int
    score: np.float32
    chance: float
    path: Path


def grown(
    draft: Draft, shape: TreeShape, texts: Sequence[tuple[Path, int]], rule: StopRule, times: Times
) -> tuple[list[list[tuple[int, int, float]]], list[int]]:
    """The trees behind these texts, whose next tokens have these output indices, as tokens, parents
    and scores; and the rows of each pass but the first."""
    levels = make_levels(shape)
    pools: list[list[Node]] = [[] for _ in texts]
    fed = [[Node(0, -1, np.float32(0), 0.0, path)] for path, _ in texts]
    places = [[-1] for _ in texts]
    passes: list[int] = []
    for depth, branching in enumerate(levels.branching, 1):
        first = len(pools[0])
        for pool, rows, parents, (_, index) in zip(pools, fed, places, texts, strict=True):
            for row, parent in zip(rows, parents, strict=True):
                for token, gain in draft.children(row.path, index + depth - 1)[:branching]:
                    is_one = not rule.p_min or gain >= np.float32(math.log(rule.p_min))
                    score = row.score + gain if is_one else np.float32(NONE)
                    chance = row.chance + worth(rule, depth, float(gain))
                    pool.append(Node(token, parent, score, chance, (*row.path, token)))
        if depth == len(levels.branching) or depth >= rule.max_depth:
            break
        for i, pool in enumerate(pools):
            beam = chosen_of(pool[first:], levels.widths[depth - 1], levels.beam(depth - 1))
            places[i] = [first + place for place in beam]
            fed[i] = [pool[place] for place in places[i]]
        alive = [[math.exp(n.chance) for n in rows if n.score > NONE] for rows in fed]
        tokens, count = sum(max(each, default=0.0) for each in alive), sum(map(len, fed))
        if not any(alive) or not times.pays(count, tokens, rule.pace):
            break
        passes.append(count)
    found = []
    for pool in pools:
        tree = chosen_of(pool, levels.num_nodes, levels.tree)
        kept = sorted(place for place in tree if place < len(pool))
        place = {-1: -1, **{old: new for new, old in enumerate(kept)}}
        nodes = [pool[i] for i in kept]
        found.append([(node.token, place[node.parent], float(node.score)) for node in nodes])
    return found, passes


def chosen_of(nodes: Sequence[Node], count: int, places: torch.Tensor | None) -> list[int]:
    """The given places, or the best nodes'."""
    if places is not None:
        return [int(place) for place in places]
    return sorted(range(len(nodes)), key=lambda i: -nodes[i].score)[:count]  # stable


def worth(rule: StopRule, depth: int, gain: float) -> float:
    if rule.gains is None:
        return gain
    depths, levels = rule.gains.shape
    level = int(4 * math.log2(1 + 4 * -gain / math.log(2))) if gain > NONE else levels
    return float(rule.gains[min(depth, depths) - 1, min(level, levels - 1)])


@dataclass
class Times:
    """What passes take, as far as one of so many rows was made."""

    seconds: float
    known: set[int] = field(default_factory=set)

    def pays(self, rows: int, tokens: float, pace: float) -> bool:
        if pace and rows in self.known and tokens <= pace * self.seconds:
            return False
        self.known.add(rows)
        return True


STATIC = ((0,), (1,), (2,), (0, 0), (0, 1), (2, 0), (0, 0, 0), (2, 0, 1), (0, 0, 0, 0))
SHAPES = [
    *(TreeShape(1, depth, depth + 1) for depth in (1, 2, 5, 12)),
    *(TreeShape(*size) for size in ((2, 3, 7), (3, 4, 12), (4, 6, 9), (5, 3, 56), (8, 12, 64))),
    TreeShape.static(STATIC),
]


def random_gains(rng: random.Random, depths: int, levels: int) -> torch.Tensor:
    return torch.tensor([[-rng.random() for _ in range(levels)] for _ in range(depths)])


def random_rule(rng: random.Random, seconds: float) -> StopRule:
    return StopRule(
        max_depth=rng.choice((1, 2, 4, 99)),
        pace=rng.choice((0.0, 0.0, 0.05, 0.3, 0.8)) / seconds,
        gains=rng.choice((None, random_gains(rng, 2, 5), random_gains(rng, 12, 20))),
        p_min=rng.choice((0.0, 0.0, 0.3, 0.7)),
    )


def fed_requests(
    rng: random.Random, engine: Engine, layout: CacheLayout, rows_behind: int
) -> tuple[list[RowGroup], list[Path]]:
    """Requests by their tokens that the cache lacks, and all tokens of each."""
    groups, texts = [], []
    free = rng.sample(range(400), 400)
    for _ in range(rng.randint(1, 4)):
        text = tuple(rng.randrange(50) for _ in range(rng.randint(1, 20)))
        held = rng.randrange(len(text))
        size = layout.tokens_per_block
        blocks = [free.pop() for _ in range(-(-(len(text) + rows_behind) // size))]
        for position in range(held):
            slot = blocks[position // size] * size + position % size
            engine.rows[slot] = text[: position + 1]
        table = torch.tensor(blocks, dtype=torch.int32)
        groups.append(RowGroup(text[held:], held, table))
        texts.append(text)
    return groups, texts


def fill_states(
    rng: random.Random,
    engine: Engine,
    groups: Sequence[RowGroup],
    texts: Sequence[Path],
    states: torch.Tensor,
) -> torch.Tensor:
    """States of requests among the first nine; returns the slot of each."""
    own = torch.tensor(rng.sample(range(9), len(texts)), dtype=torch.int32)
    states.fill_(-1)
    for slot, group, text in zip(own.tolist(), groups, texts, strict=True):
        states[slot] = engine.number(text[: group.context])
    return own


@pytest.mark.parametrize("keeps_states", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_equals_the_reference(
    shape: TreeShape, keeps_states: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With states each row steps that of its own path, and none of those is a request's."""
    rng, stopped, whole = random.Random(str(shape)), 0, 0
    layout = CacheLayout(tokens_per_block=4, blocks_per_sequence=40, mask_words=2)
    monkeypatch.setattr(pass_rollout, "time", Clock(0.01))
    for seed in range(6):
        draft = Draft(seed, shape.topk, certain=rng.choice((0.2, 0.8, 0.97)))
        engine, times = Engine(draft, layout), Times(0.01)
        buffer = torch.zeros(9 + 4 * shape.widest_pass, 1, 1, dtype=torch.int64)
        caches = KVTensors([(buffer,)], [["slot"]], buffer.dtype, layout)
        loop = PassRollout(engine, shape, layout.tokens_per_block, caches if keeps_states else None)
        for _ in range(8):
            groups, texts = fed_requests(rng, engine, layout, shape.num_rollout_rows)
            indices = [rng.randrange(100) for _ in texts]
            rows, last_rows, *_ = pack(groups, layout)
            columns = greedy_sampling(len(texts))._replace(output_index=torch.tensor(indices))
            loop.rule, draft.seen = random_rule(rng, 0.01), []
            inputs = EngineInputs(rows, last_rows=last_rows, columns=columns)
            if keeps_states:
                own = fill_states(rng, engine, groups, texts, buffer)
                inputs = inputs._replace(state_slots=own, caches=(buffer,))
            found = loop.run(inputs)
            roots = list(zip(texts, indices, strict=True))
            expected, passes = grown(draft, shape, roots, loop.rule, times)
            assert draft.seen == [len(rows.input_ids), *passes]
            assert loop.num_passes == 1 + len(passes)
            if keeps_states:
                assert buffer[own.long()].flatten().tolist() == [*map(engine.number, texts)]
            for nodes, *tree in zip(expected, *found, strict=True):
                assert nodes == list(zip(*(part.tolist() for part in tree), strict=True))
            stopped += len(passes) + 1 < shape.num_steps
            whole += len(passes) + 1 == shape.num_steps
    assert whole and (stopped or shape.num_steps == 1)


def test_rows_behind_the_blocks_are_refused() -> None:
    layout = CacheLayout(tokens_per_block=4, blocks_per_sequence=40, mask_words=1)
    shape = TreeShape(1, 4, 5)
    loop = PassRollout(Engine(Draft(0, 1, filtered=0.0), layout), shape, 4)
    rows, last_rows, *_ = pack([RowGroup([1, 2], 0, torch.tensor([3], dtype=torch.int32))], layout)
    inputs = EngineInputs(rows, last_rows=last_rows, columns=greedy_sampling(1))
    with pytest.raises(RuntimeError, match="behind the blocks"):
        loop.run(inputs)
