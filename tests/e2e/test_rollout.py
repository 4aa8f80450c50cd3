"""A draft model's rollout against the same tree grown step by step over whole texts.

Acceptance is lossless, so a rollout that reads the wrong rows changes no text and only lowers the
acceptance rate: nothing but this comparison would show it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import torch

from trtspec.backends.packing import RowGroup, pack
from trtspec.executor.engines.model_engine import ModelEngine
from trtspec.ops.sampling import draft_candidates

from .. import inside
from .helpers import TinyModels, open_llm, random_prompt, tree

PROMPTS = [random_prompt(130, 21), [9], random_prompt(131, 16), random_prompt(132, 5)]
COMMITTED = [18, 0, 15, 0]  # rows that the draft cache holds already
TREES = [(1, 1, 2), (1, 5, 6), (2, 3, 7), (3, 4, 12), (4, 2, 21), (5, 3, 30), (2, 4, 3)]
BLOCKS = 6  # of 16 tokens, per request


@dataclass(frozen=True)
class Node:
    token: int
    parent: int  # index in the pool of candidates, -1 = the root
    score: np.float32
    path: tuple[int, ...]


def sampling_columns(rows: list[tuple[float, int, float, float, int, int, int]]) -> list[Any]:
    kinds = (torch.float32, torch.int32, torch.float32, torch.float32, *[torch.int64] * 3)
    return [
        torch.tensor(column, dtype=kind)
        for column, kind in zip(zip(*rows, strict=True), kinds, strict=True)
    ]


# temperature, top_k, top_p, min_p, seed, sample_index, index of the first drafted token
OPTIONS = [
    (0.0, 0, 1.0, 0.0, 1, 0, 0),
    (0.8, 0, 1.0, 0.0, 2, 1, 30),
    (1.0, 5, 0.9, 0.0, 3, 0, 2),
    (0.5, 0, 1.0, 0.05, -4, 0, 7),
]


def grown(engine: ModelEngine, request: int, k: int, depth: int, rows: int) -> list[Node]:
    """The kept nodes in the order of the pool, parents as indices among the kept."""
    prompt, options = PROMPTS[request], OPTIONS[request]
    scratch = torch.arange(BLOCKS, dtype=torch.int32) + BLOCKS * len(PROMPTS)

    def children(parent: int, node: Node | None) -> list[Node]:
        path = node.path if node else ()
        logits, _ = engine.forward(pack([RowGroup([*prompt, *path], 0, scratch)], engine.layout))
        *fixed, index = options
        columns = sampling_columns([(*fixed, index + len(path))])
        ids, gains = draft_candidates(logits, *columns, None, k)
        base = node.score if node else np.float32(0)
        return [
            Node(token, parent, base + gain, (*path, token))
            for token, gain in zip(ids[0].tolist(), gains[0].numpy(), strict=True)
        ]

    pool = children(-1, None)
    beam = list(range(k))
    for _ in range(1, depth):
        level = []
        for i in beam:
            level += children(i, pool[i])
        best = sorted(range(k * k), key=lambda i: -level[i].score)[:k]  # stable, as the rollout
        beam = [len(pool) + i for i in best]
        pool += level
    kept = sorted(sorted(range(len(pool)), key=lambda i: -pool[i].score)[: rows - 1])
    position = {-1: -1, **{old: new for new, old in enumerate(kept)}}
    return [
        Node(pool[i].token, position[pool[i].parent], pool[i].score, pool[i].path) for i in kept
    ]


@pytest.mark.parametrize("shape", TREES)
@pytest.mark.parametrize("case", ["llama", "mistral_window"])
def test_equals_a_tree_grown_step_by_step(
    models: TinyModels, case: str, shape: tuple[int, int, int]
) -> None:
    folder = models.folder(case)
    with open_llm(folder, tree(folder, *shape)) as llm:
        engine = inside.drafts(llm)[0]
        assert engine is not None
        groups, held = [], []
        for request, (prompt, committed) in enumerate(zip(PROMPTS, COMMITTED, strict=True)):
            blocks = torch.arange(BLOCKS, dtype=torch.int32) + BLOCKS * request
            if committed:
                held.append(RowGroup(prompt[:committed], 0, blocks))
            groups.append(RowGroup(prompt[committed:], committed, blocks))
        engine.feed(held)
        tokens, parents, scores = engine.rollout(groups, sampling_columns(OPTIONS))
        for request in range(len(PROMPTS)):
            expected = grown(inside.target(llm), request, *shape)  # the same model
            found = [(n.score, n.parent, n.token) for n in expected if np.isfinite(n.score)]
            finite = scores[request].isfinite()
            assert [score for score, _, _ in found] == scores[request][finite].tolist()
            assert [parent for _, parent, _ in found] == parents[request][finite].tolist()
            assert [token for _, _, token in found] == tokens[request][finite].tolist()
