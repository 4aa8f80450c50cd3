"""Exported graphs on ONNX Runtime give the numbers of the modules they were made of."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec import LLM
from trtspec.backends.packing import RowGroup, pack
from trtspec.backends.parts import MaskKind
from trtspec.backends.slots.networks import SlotGraph
from trtspec.executor.engines.model_engine import ModelEngine
from trtspec.executor.engines.pass_rollout import StopRule
from trtspec.models.rows import PackedRows
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree

from .. import inside
from ..e2e.every_method import METHODS
from ..e2e.helpers import TinyModels, open_llm, random_prompt
from ..models.tiny_hf import VOCAB

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

TOLERANCE = 2e-5
HALF_TOLERANCE = 1e-2
"""Of float16 beside float32: of the largest value, as the tolerance is."""

Fed = tuple[int, list[int], int, TokenTree | None]
"""Rows of a request: its number, its tokens, what is committed before them, and a tree."""


class Pair:
    """One engine as modules over a paged cache, and as graphs over a slot one."""

    tolerance = TOLERANCE

    def __init__(self, folder: Path, speculation: Any = None, dtype: str = "float32") -> None:
        """``dtype``: of the graphs."""
        self.llms = [
            open_llm(folder, speculation, backend=backend, dtype=kind)
            for backend, kind in (("eager", "float32"), ("onnx", dtype))
        ]
        if dtype != "float32":
            self.tolerance = HALF_TOLERANCE

    def groups(self, llm: LLM, fed: Sequence[Fed]) -> list:
        """Rows of requests by number, whose blocks, or slot, are theirs alone."""
        each = llm.config.layout.blocks_per_sequence if not llm.config.layout.is_slots else 1
        return [
            RowGroup(
                tokens,
                context,
                torch.arange(each * request, each * (request + 1), dtype=torch.int32),
            )
            for request, tokens, context, _ in fed
        ]

    def forward(self, *fed: Fed) -> list[tuple[Tensor, Tensor | None]]:
        drafts = DraftBatch.of([tree for *_, tree in fed])
        return [
            inside.target(llm).forward(pack(self.groups(llm, fed), llm.config.layout, drafts))
            for llm in self.llms
        ]

    def check(self, *fed: Fed) -> None:
        (logits, hidden), (lowered, states) = self.forward(*fed)
        assert (logits - lowered).abs().max() < self.tolerance * logits.abs().max()
        if hidden is not None and states is not None:
            assert (hidden - states).abs().max() < self.tolerance * hidden.abs().max()

    def feed(self, *fed: Fed) -> None:
        """Rows for target and draft, without drafting."""
        states = [hidden for _, hidden in self.forward(*fed)]
        for llm, draft, hidden in zip(self.llms, self.drafts, states, strict=True):
            draft.feed(self.groups(llm, fed), hidden)

    def roll_out(self, *fed: Fed) -> None:
        """Rows for target and draft, and the drafts behind them, with those of the first step
        alone; every second one is sampled."""
        states = [hidden for _, hidden in self.forward(*fed)]
        kinds = (torch.float32, torch.int32, torch.float32, torch.float32, *[torch.int64] * 3)
        values = zip(
            *((0.9 * (i % 2), 0, 1.0, 0.0, i, 0, 12) for i in range(len(fed))), strict=True
        )
        sampling = [torch.tensor(v, dtype=k) for v, k in zip(values, kinds, strict=True)]
        first = [StopRule(max_depth=1)] if self.drafts[0].rolls_first_step else []
        for rule in (*first, StopRule()):
            (tokens, parents, scores), (lowered, places, found) = (
                draft.rollout(
                    self.groups(llm, fed),
                    sampling,
                    hidden,
                    rule,
                )
                for llm, draft, hidden in zip(self.llms, self.drafts, states, strict=True)
            )
            assert torch.equal(tokens, lowered) and torch.equal(parents, places)
            assert (scores - found).abs().max() < 1e-3
            assert rule.max_depth > 1 or (parents == -1).all()

    @property
    def drafts(self) -> list[ModelEngine]:
        (engines,) = zip(*(inside.drafts(llm) for llm in self.llms), strict=True)
        return [engine for engine in engines if isinstance(engine, ModelEngine)]

    def close(self) -> None:
        for llm in self.llms:
            llm.shutdown()


@pytest.fixture(scope="module", params=["plain", "eagle3"])
def pair(
    request: pytest.FixtureRequest, models: TinyModels, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """With a sliding window, and with states captured for a draft."""
    both = Pair(*METHODS[request.param](models, tmp_path_factory.mktemp("pair")))
    yield both
    both.close()


def random_tree(seed: int, count: int) -> TokenTree:
    rng = random.Random(seed)
    parents = [rng.randint(-1, node - 1) for node in range(count)]
    return TokenTree([rng.randrange(VOCAB) for _ in parents], parents)


@pytest.mark.slow
def test_prefill_decode_and_verify(pair: Pair) -> None:
    """Two prompts, one of them in chunks, more rows than a shared call takes; then single rows
    beside random trees, and a slot used again."""
    first, second = random_prompt(700, 90), random_prompt(701, 20)
    pair.check((0, first[:80], 0, None), (2, second, 0, None))
    pair.check((0, first[80:], 80, None), (2, [5], 20, None))
    for seed in range(6):
        trees = random_tree(seed, 1 + 3 * seed), random_tree(seed + 50, 9)
        pair.check((2, [7 + seed], 21, trees[0]), (0, [9], 90, trees[1]), (3, first[:5], 0, None))
    pair.check((0, second, 0, None))


@pytest.mark.slow
def test_float16(models: TinyModels, tmp_path: Path) -> None:
    """Prefill, decode and verify of a target in half precision."""
    pair = Pair(*METHODS["plain"](models, tmp_path), dtype="float16")
    first, second = random_prompt(730, 70), random_prompt(731, 20)
    pair.check((0, first, 0, None), (2, second, 0, None))
    pair.check((0, [5], 70, None), (2, [6], 20, random_tree(3, 9)))
    pair.close()


# These compile again what tests/e2e/test_onnx.py runs.
SELDOM = ("modules", "p_eagle", "ddtree")


@pytest.mark.slow
@pytest.mark.parametrize(
    "method",
    [
        "tree",
        "eagle3",
        *(pytest.param(name, marks=pytest.mark.matrix) for name in SELDOM),
    ],
)
def test_drafts(models: TinyModels, tmp_path: Path, method: str) -> None:
    """Every node of the rollouts, and the scores: behind two prompts, of which one has been fed in
    part before; then, where other drafts were written, behind rows that were accepted."""
    pair = Pair(*METHODS[method](models, tmp_path))
    prompts = random_prompt(710, 12), random_prompt(711, 3)
    pair.feed((2, prompts[0][:8], 0, None))
    pair.roll_out((2, prompts[0][8:], 8, None), (0, prompts[1], 0, None))
    pair.roll_out((0, [5, 9], 3, None), (1, prompts[1], 0, None), (2, [7], 12, None))
    pair.close()


def test_a_new_sequence_clears_its_slot() -> None:
    """What is left in a slot, NaN as well, is gone with a sequence's first rows, and only then."""

    class Nothing:
        def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
            return [torch.zeros(inputs[0].numel(), 3)]

    graph = SlotGraph(Nothing(), 8, 4, [MaskKind()])
    caches = [torch.full((3, 2, 8, 4), float("nan")) for _ in range(2)]

    def feed(slot: int, start: int) -> None:
        rows = PackedRows(
            torch.tensor([start]),
            torch.tensor([slot * 8 + start]),
            torch.tensor([[slot]], dtype=torch.int32),
            torch.tensor([0, 1], dtype=torch.int32),
            torch.tensor([start], dtype=torch.int32),
            torch.tensor([False]),
            torch.zeros(1, 1, dtype=torch.int64),
        )
        graph.run(torch.tensor([1]), rows, [tuple(caches)])

    feed(2, 1)
    assert all(cache.isnan().all() for cache in caches)
    feed(1, 0)
    for cache in caches:
        assert not cache[1].any()
        assert cache[[0, 2]].isnan().all()


@pytest.mark.slow
def test_a_call_of_padding_gives_zeros_and_keeps_the_caches(pair: Pair) -> None:
    """As those by which the costs of calls are measured; a sequence beside it goes on unharmed."""
    prompt = random_prompt(720, 9)
    pair.check((1, prompt, 0, None))
    for llm in pair.llms:
        assert inside.target(llm).time_call(3, 6) > 0
        for draft in inside.drafts(llm):
            assert draft.time_call(3, 6) > 0
    pair.check((1, [5], 9, None))
