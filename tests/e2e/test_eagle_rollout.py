"""Every rollout of an EAGLE head over whole texts against the same tree grown from nothing.

Acceptance is lossless, so a head that is fed wrong states, tokens or positions, or reads stale rows
of its cache, changes no text and only lowers the acceptance: nothing but this comparison would show
it. Each tree is grown again from the request's tokens alone: the target's states by one whole pass,
the draft's rows by one whole pass a node, without a cache.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from trtspec import LLM, SamplingParams
from trtspec.backends.packing import RowGroup, pack
from trtspec.config.tree import TreeShape
from trtspec.executor.step.request import Request
from trtspec.models.causal_lm import new_caches
from trtspec.models.rows import PackedRows
from trtspec.ops.sampling import SamplingColumns, draft_candidates
from trtspec.speculative.eagle.network import EagleDraft

from .. import inside
from ..speculative.tree_reference import Children, assert_equal_trees, grow
from ..speculative.tree_reference import Path as TokenPath
from .eagle_heads import eagle, random_eagle1, random_eagle3, save_right_heads
from .helpers import TinyModels, open_llm, random_prompt, watch

CHAIN = {"num_speculative_tokens": 4}
TREE = {"num_speculative_tokens": 3, "topk": 3, "num_draft_tokens": 9}
STATIC = {"eagle_choices": [[0], [1], [3], [1, 0], [1, 2], [3, 1], [1, 2, 0]]}
SHAPES = {"chain": CHAIN, "tree": TREE, "static": STATIC}

PROMPTS = [random_prompt(140, 33), [9], random_prompt(141, 16), random_prompt(142, 5)]
GREEDY = SamplingParams(max_tokens=14)
SAMPLED = [
    GREEDY,
    SamplingParams(max_tokens=14, temperature=0.8, seed=2),
    SamplingParams(max_tokens=14, temperature=1.0, seed=3, top_k=5, top_p=0.9),
    SamplingParams(max_tokens=14, temperature=0.5, seed=-4, min_p=0.05),
]


class Oracle:
    """Grows a request's tree with the LLM's own modules and caches of its own."""

    def __init__(self, llm: LLM) -> None:
        engine = llm.config
        assert inside.drafts(llm)
        self.layout = engine.layout
        self.shape: TreeShape = engine.drafts[0].speculation.tree
        self.blocks = torch.arange(self.layout.blocks_per_sequence, dtype=torch.int32)
        count = len(self.blocks)
        self.target = inside.own_caches(llm, count)
        rollout: Any = inside.rollout(inside.drafts(llm)[0])
        self.draft: EagleDraft = rollout._module.model
        decoder = engine.drafts[0].network.decoder
        assert decoder is not None
        size = self.layout.tokens_per_block
        self.caches = new_caches(decoder, count, size, torch.float32)

    @torch.no_grad()
    def children(self, tokens: Sequence[int], sampling: SamplingColumns) -> Children:
        _, hidden = self.target.forward(pack([RowGroup(tokens[:-1], 0, self.blocks)], self.layout))
        assert hidden is not None
        base = self.draft.fuse(hidden)
        known: dict[TokenPath, tuple[Tensor, Tensor]] = {}  # of the last row of a path

        def last(path: TokenPath) -> tuple[Tensor, Tensor]:
            if path not in known:
                fed = [last(path[:length])[0] for length in range(len(path))]
                features = torch.cat([base, *fed])
                group = RowGroup([*tokens[1:], *path], 0, self.blocks)
                ids, *rows = pack([group], self.layout).rows
                out, ready = self.draft.draft(ids, features, PackedRows(*rows), self.caches)
                known[path] = out[-1:].clone(), self.draft.head(ready[-1:])
            return known[path]

        def children(path: TokenPath, count: int) -> list[tuple[int, np.float32]]:
            values = sampling._replace(output_index=sampling.output_index + len(path))
            with torch.no_grad():
                logits = last(path)[1]
            ids, gains = draft_candidates(logits, *values, self.draft.token_map, count)
            return list(zip(ids[0].tolist(), gains[0].clamp(max=0).numpy(), strict=True))

        return children


def check_rollouts(llm: LLM) -> list[int]:
    """From now on compare every rollout; the list grows by the number of first-pass rows of each
    request compared."""
    drafter: Any = inside.drafter(llm)
    oracle, engine, rows = Oracle(llm), inside.drafts(llm)[0], []
    first_pass, rollout = drafter._first_pass, engine.rollout
    under_way: list[Request] = []
    is_chain = oracle.shape.topk == 1 and oracle.shape.choices is None

    def watched_first_pass(requests: Sequence[Request]) -> Any:
        under_way[:] = requests
        return first_pass(requests)

    def checked_rollout(groups: Any, sampling: Any, hidden: Any, *rule: Any) -> Any:
        found = rollout(groups, sampling, hidden, *rule)
        assert len(groups) == len(under_way)
        for i, request in enumerate(under_way):
            own = SamplingColumns(*(column[i : i + 1] for column in sampling))
            assert own.output_index == request.num_output_tokens
            nodes = grow(oracle.children(request.tokens, own), oracle.shape)
            if is_chain:  # its first step alone is enough where nobody can use more
                nodes = nodes[: found[0].shape[1]]
            assert_equal_trees(nodes, *(x[i] for x in found))
            rows.append(len(groups[i].tokens))
        return found

    drafter._first_pass, engine.rollout = watched_first_pass, checked_rollout
    return rows


def run(llm: LLM, prompts: list[list[int]] = PROMPTS, params: Any = SAMPLED) -> list[int]:
    """Generate twice, the second time over cached prefixes; all rollouts are compared."""
    rows = check_rollouts(llm)
    for _ in range(2):
        for output in llm.generate(prompts, params, use_tqdm=False):
            if output.error is not None:
                raise output.error
    assert len(rows) > 20
    return rows


@pytest.fixture(scope="module")
def heads(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    root = tmp_path_factory.mktemp("heads")
    llama, window = models.hf("llama"), models.hf("mistral_window")
    ids = sorted(set(random_prompt(150, 60)))
    return {
        "eagle": ("llama", random_eagle1(llama, root / "1")),
        "eagle3": ("llama", random_eagle3(llama, root / "3", ids)),
        "eagle3_window": ("mistral_window", random_eagle3(window, root / "3w", modelopt=False)),
        "eagle_tied": ("llama3_tied", random_eagle1(models.hf("llama3_tied"), root / "1t")),
        "eagle3_tied": ("llama3_tied", random_eagle3(models.hf("llama3_tied"), root / "3t", ids)),
    }


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("head", ["eagle", "eagle3"])
def test_every_rollout(models: TinyModels, heads: Any, head: str, shape: str) -> None:
    case, folder = heads[head]
    with open_llm(models.folder(case), eagle(folder, head, **SHAPES[shape])) as llm:
        run(llm)


@pytest.mark.parametrize("head", ["eagle3_window", "eagle_tied", "eagle3_tied"])
def test_other_targets(models: TinyModels, heads: Any, head: str) -> None:
    case, folder = heads[head]
    with open_llm(models.folder(case), eagle(folder, head.split("_")[0], **TREE)) as llm:
        run(llm)


@pytest.mark.parametrize("head", ["eagle", "eagle3"])
def test_chunks_and_few_rows(models: TinyModels, heads: Any, head: str) -> None:
    """Prompts in pieces, steps without room for drafts: states wait to be fed."""
    case, folder = heads[head]
    config = eagle(folder, head, **TREE)
    limits = {"max_batch_size": 4, "max_num_tokens": 9}
    with open_llm(models.folder(case), config, **limits) as llm:
        assert max(run(llm)) > 4, "no state ever waited for longer than a step"


@pytest.mark.parametrize("head", ["eagle", "eagle3"])
def test_preempted(models: TinyModels, heads: Any, head: str) -> None:
    case, folder = heads[head]
    kv = {"max_tokens": 96}
    options = {"kv_cache_config": kv, "tokens_per_block": 4}
    with open_llm(models.folder(case), eagle(folder, head, **TREE), **options) as llm:
        steps = watch(llm)
        run(llm)
        assert sum(step.num_preempted for step in steps) > 0


@pytest.mark.parametrize("head", ["eagle1", "eagle1_cached", "eagle3"])
def test_where_many_drafts_are_accepted(head: str, tmp_path: Path) -> None:
    """First passes of several rows: those of accepted drafts."""
    found = save_right_heads(tmp_path, 3.0)
    prompts = [[0, *range(5, 25)], [1, 9], [0, 3, 3, 7, 8, 2, 11], [1, 4, 28]]
    method = "eagle3" if head == "eagle3" else "eagle"
    config = eagle(getattr(found, head), method, **TREE)
    with open_llm(found.target, config, tokens_per_block=4) as llm:
        rows = run(llm, prompts, [GREEDY, *(replace(p, top_k=0, top_p=1.0) for p in SAMPLED[1:])])
    assert max(rows) == 4 and min(rows) == 1
