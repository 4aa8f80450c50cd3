"""The ops of a step that lives on a device, against what they are defined by."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec.ops.acceptance import accept_trees
from trtspec.ops.resident_step import (
    ITEM,
    STATE,
    Draft,
    ResidentTensors,
    advance,
    pack_rollout,
    pack_verify,
)

from .resident_step_reference import (
    advance_reference,
    pack_rollout_reference,
    pack_verify_reference,
)

VOCAB = 5


@dataclass
class Case:
    """A step of some requests of a device. rule: behind, and how many rows are not final."""

    kept: ResidentTensors
    tables: tuple[Tensor, Tensor]
    items: Tensor
    chunk: Tensor
    draft: Draft
    rule: tuple[int, int]
    sizes: dict[str, int]
    padding: int

    @property
    def copied(self) -> ResidentTensors:
        return ResidentTensors._make(each.clone() for each in self.kept)


def drawn(seed: int) -> Case:
    rng = random.Random(seed)
    places, block, behind = rng.randint(1, 5), rng.randint(1, 4), rng.randrange(2)
    not_final = rng.randrange(3) if behind == 0 else 0
    nodes, ring = rng.choice((0, 0, 1, 4, 70)), rng.randint(3, 9)
    words, tables = 2, [_table(rng, places, block) for _ in range(2)]
    chosen = rng.sample(range(places), rng.randint(1, places))
    chosen += [-1] * rng.randrange(3)
    states, items, chunk, rows = [], [], list[int](), 0
    for place in chosen:
        fed, generates = rng.randint(1, 6), rng.random() < 0.7
        prompt = rng.randint(1, 12)
        length = prompt + rng.randrange(6)
        start = rng.randrange(length)
        if generates:
            start, fed = 0, 1
        else:
            fed = min(fed, length - start)
        samples = generates or start + fed == length
        begin = length - 1 if generates else start
        drafted = max(begin + behind - rng.randint(0, ring), 0)
        state = {
            "length": length,
            "num_prompt": prompt,
            "limit": length + rng.randint(1, 6),
            "reach": length + rng.randint(-1, 5),
            "newest": rng.randrange(VOCAB),
            "max_depth": rng.choice((0, 1, 3, 8)),
            "drafted": drafted,
            "absent": rng.randrange(min(drafted, 3) + 1),
            "end": rng.choice((0, 0, 0, 0, 1, 2)),
            "adapter": rng.randrange(-1, 3),
            "top_k": rng.randrange(9),
            "seed": rng.randrange(-(2**63), 2**63),
            "sample_index": rng.randrange(3),
        }
        states.append([state[name] for name in STATE])
        item = (place, start, fed, generates, rng.choice((0, nodes, 2)), samples, len(chunk))
        items.append(dict(zip(ITEM, map(int, item), strict=True)))
        if not generates and place >= 0:
            chunk += [rng.randrange(VOCAB) for _ in range(fed + 1)]
        rows += fed + items[-1]["max_nodes"]
    kept = ResidentTensors(
        torch.zeros(places, len(STATE), dtype=torch.int64),
        torch.rand(places, 3, generator=torch.Generator().manual_seed(seed)),
        torch.full((places, 3), -1),
        torch.tensor([[rng.randrange(VOCAB) for _ in range(ring)] for _ in range(places)]),
    )
    for place, state_row in zip(chosen, states, strict=True):
        if place >= 0:
            kept.state[place] = torch.tensor(state_row)
    for place in range(places):
        for end in range(rng.randrange(3)):
            kept.ends[place, end] = rng.randrange(VOCAB)
    asked = torch.tensor([[item[name] for name in ITEM] for item in items])
    sizes = {"tokens_per_block": block, "mask_words": words}
    spare = rng.choice((0, 0, 5))
    return Case(
        *(kept, (tables[0], tables[1]), asked, torch.tensor(chunk, dtype=torch.int64)),
        *(_draft(rng, len(items), nodes), (behind, not_final), sizes, rows + spare),
    )


def _table(rng: random.Random, places: int, block: int) -> Tensor:
    """Blocks for 110 rows of each place, and what is behind them."""
    count = -(-110 // block)
    own = [rng.sample(range(1000), count) + [-1] * 2 for _ in range(places)]
    return torch.tensor(own, dtype=torch.int32)


def _draft(rng: random.Random, count: int, nodes: int) -> Draft:
    tokens = torch.tensor(
        [[rng.randrange(VOCAB) for _ in range(nodes)] for _ in range(count)], dtype=torch.int64
    )
    parents = torch.full((count, nodes), -1, dtype=torch.int32)
    scores = torch.zeros(count, nodes)
    for tree in range(count):
        for node in range(nodes):
            parent = rng.choice((-1, node - 1, rng.randrange(-1, max(node, 1)))) if node else -1
            parents[tree, node] = parent
            above = 0.0 if parent < 0 else float(scores[tree, parent])
            gain = -float("inf") if rng.random() < 0.05 else -rng.choice((0.0, 0.5, 1.0))
            scores[tree, node] = above + gain
    return Draft(tokens.reshape(count, nodes), parents, scores)


def assert_equal(found: Any, expected: Any) -> None:
    """Tensors in nested tuples, which have the same dtypes, shapes and values."""
    if isinstance(found, Tensor):
        assert found.dtype == expected.dtype and torch.equal(found, expected), (found, expected)
        return
    assert len(found) == len(expected)
    for own, other in zip(found, expected, strict=True):
        assert_equal(own, other)


def test_a_step_is_what_the_reference_says() -> None:
    """Packing, and what becomes of random samples; trees, prompts, ended texts and padding."""
    rolled = emitted = full = 0
    depth = STATE.index("max_depth")
    for seed in range(200):
        case = drawn(seed)
        behind, not_final = case.rule
        of_rollout = {"behind": behind, "num_rows": 9 * len(case.items) + 3, **case.sizes}
        fed = pack_rollout(case.kept, case.tables[1], case.items, **of_rollout)
        assert_equal(
            fed, pack_rollout_reference(case.kept, case.tables[1], case.items, **of_rollout)
        )
        rolled += int(fed.rows[4][-1] > 0)
        given = case.kept, case.tables[0], case.items, case.chunk, case.draft
        sizes = {"num_rows": case.padding, "num_logits": case.padding, "behind": behind}
        call = pack_verify(*given, **sizes, **case.sizes)
        assert_equal(call, pack_verify_reference(*given, **sizes, **case.sizes))
        sampled = torch.randint(-1, VOCAB, (case.padding,), generator=_seeded(seed))
        # Follow the tree, as otherwise few nodes are accepted.
        for row, parent in enumerate(call.parents.tolist()):
            first = int(call.row_start[call.row_start <= row].max())
            if parent >= 0 and torch.rand(1, generator=_seeded(seed + row)) < 0.6:
                sampled[first + parent] = call.tokens[row]
        walked = accept_trees(sampled, call.tokens, call.parents, call.row_start, 72)
        own, other = case.copied, case.copied
        rest = case.tables[0], case.items, case.chunk, call, sampled, *walked
        kinds = {"behind": behind, "not_final": not_final}
        block = case.sizes["tokens_per_block"]
        found = advance(own, *rest, tokens_per_block=block, **kinds)
        assert_equal(found, advance_reference(other, *rest, tokens_per_block=block, **kinds))
        assert_equal(own, other)
        emitted += int(found.result[:, 0].sum())
        full += int((own.state[:, depth] != case.kept.state[:, depth]).sum())
    assert rolled > 20 and emitted > 150 and full > 2, (rolled, emitted, full)


def _seeded(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def test_rows_that_do_not_fit_are_refused() -> None:
    case = drawn(3)
    given = case.kept, case.tables[0], case.items, case.chunk, case.draft
    case.kept.state[:, STATE.index("end")] = 0
    sizes = {"num_logits": case.padding, "behind": 0, **case.sizes}
    with pytest.raises(RuntimeError, match=r"pack_verify: the rows of item 0 do not fit"):
        pack_verify(*given, num_rows=0, **sizes)
    with pytest.raises(RuntimeError, match=r"state must have 13 columns, got 12"):
        pack_verify(case.kept._replace(state=case.kept.state[:, 1:].contiguous()), *given[1:],
                    num_rows=9, **sizes)  # fmt: skip
