"""Several methods that draft together change no token, and each drafts as it does alone."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest

from trtspec.ops.tree import TokenTree

from .. import inside
from .eagle_heads import eagle, random_eagle1, random_eagle3
from .helpers import (
    GREEDY_24,
    SAMPLED_24,
    TinyModels,
    assert_no_leak,
    eight_prompts,
    ngram,
    open_llm,
    tokens,
    tree,
    watch,
)
from .hybrid_drafts import hybrid, record_drafts
from .medusa_heads import fitted_heads, medusa, write_heads

pytestmark = pytest.mark.slow

PROMPTS = eight_prompts(330)
RUNS = (GREEDY_24, SAMPLED_24)
SUFFIX = {"method": "suffix"}


class Drafts:
    """Networks for the tiny llama, and what it says without speculation."""

    def __init__(self, models: TinyModels, root: Path) -> None:
        self.models, self.root = models, root
        self.target = models.folder("llama")
        self.texts = cache(self._texts)
        self.configs = cache(self._configs)

    def _texts(self) -> list[list[list[int]]]:
        with open_llm(self.target) as llm:
            return [tokens(llm.generate(PROMPTS, params, use_tqdm=False)) for params in RUNS]

    def _configs(self) -> dict[str, dict[str, Any]]:
        hf = self.models.hf("llama")
        texts = [p + t for p, t in zip(PROMPTS, self.texts()[0], strict=True)]
        heads = write_heads(self.root / "medusa", fitted_heads(hf, texts, 3))
        eagle1, eagle3 = self.root / "eagle1", self.root / "eagle3"
        shape = {"num_speculative_tokens": 3, "topk": 2, "num_draft_tokens": 6}
        return {
            "suffix": SUFFIX,
            "ngram": ngram(4),
            "draft_model": tree(self.models.draft("llama"), 2, 3, 6),
            "eagle": eagle(random_eagle1(hf, eagle1), "eagle", num_speculative_tokens=2),
            "eagle3": eagle(random_eagle3(hf, eagle3, modelopt=False), "eagle3", **shape),
            "medusa": medusa(heads, 3),
        }

    def hybrid(self, *names: str, **options: Any) -> dict[str, Any]:
        return hybrid(*(self.configs()[name] for name in names), **options)


@pytest.fixture(scope="module")
def drafts(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Drafts:
    return Drafts(models, tmp_path_factory.mktemp("drafts"))


UNIONS = {
    "no_engine": ("suffix", "ngram"),
    "one_engine": ("suffix", "eagle3"),
    "two_caches": ("draft_model", "eagle3"),
    "heads": ("medusa", "eagle3", "ngram"),
    "all": ("suffix", "medusa", "eagle", "draft_model", "eagle3", "ngram"),
}
OPTIONS: dict[str, dict[str, Any]] = {
    "eight": {},
    "alone": {"max_batch_size": 1},
    "chunked": {"max_num_tokens": 20},
    "preempted": {"tokens_per_block": 4, "kv_cache_config": {"max_tokens": 128}},
    "padded": {"cuda_graph_config": True},
}
CASES = [(union, option) for union in UNIONS for option in ("eight", "alone")]
CASES += [("two_caches", "chunked"), ("two_caches", "preempted"), ("heads", "preempted")]
CASES += [("all", "chunked"), ("all", "preempted"), ("all", "padded")]


@pytest.mark.parametrize(("union", "options"), CASES)
def test_same_tokens(drafts: Drafts, union: str, options: str) -> None:
    """Greedy and sampled; the greedy texts once more, over cached prefixes."""
    config = drafts.hybrid(*UNIONS[union])
    with open_llm(drafts.target, config, **OPTIONS[options]) as llm:
        steps = watch(llm)
        some = slice(None, None, 2) if options == "alone" else slice(None)
        for turn in (0, 1, 0):
            params = RUNS[turn] if turn == 0 else SAMPLED_24[some]
            found = tokens(llm.generate(PROMPTS[some], params, use_tqdm=False))
            assert found == drafts.texts()[turn][some]
        metrics = llm.get_metrics()
        assert 1 < metrics["num_accepted_tokens"] < metrics["num_draft_tokens"]
        for name in ("num_draft_tokens", "num_accepted_tokens"):
            assert sum(metrics[f"{name}_per_source"]) == metrics[name]
        assert len(inside.resources(llm).drafts) == len(
            {*UNIONS[union]} & {"draft_model", "eagle", "eagle3"}
        )
        assert (sum(step.num_preempted for step in steps) > 0) == (options == "preempted")
        assert_no_leak(llm)


def paths(tree: TokenTree) -> set[tuple[int, ...]]:
    return {tree.path_tokens(node) for node in range(len(tree))}


def test_the_union_of_the_trees(drafts: Drafts) -> None:
    """By token path; a part of it where there are more nodes than rows."""
    names = ("medusa", "draft_model", "eagle3", "ngram")
    for rows in (28, 8):
        config = drafts.hybrid(*names, num_draft_tokens=rows)
        with open_llm(drafts.target, config) as llm:
            steps = record_drafts(llm)
            llm.generate(PROMPTS, GREEDY_24, use_tqdm=False)
        assert len(steps) > 50
        num_cut = 0
        for step in steps:
            parts, union = step.parts, step.union
            assert len(parts) == len(names)
            every = set().union(*map(paths, parts))
            if len(every) < rows:
                assert paths(union) == every
            else:
                assert len(union) == rows - 1 and paths(union) < every
                num_cut += 1
            assert len(paths(union)) == len(union)
        assert (num_cut > 0) == (rows == 8)
        assert all(any(len(step.parts[i]) for step in steps) for i in range(len(names)))


def test_a_request_is_forgotten_by_all(drafts: Drafts) -> None:
    with open_llm(drafts.target, drafts.hybrid("suffix", "medusa", "eagle3", "ngram")) as llm:
        union: Any = inside.drafter(llm)
        released: list[tuple[int, int]] = []
        for i, member in enumerate(union._members):

            def release(request_id: int, i: int = i, inner: Any = member.release) -> None:
                released.append((i, request_id))
                inner(request_id)

            member.release = release
        request = llm.generate(PROMPTS[0], GREEDY_24).request_id
        assert {i for i, request_id in released if request_id == request} == {0, 1, 2, 3}
        assert not union.live_requests
