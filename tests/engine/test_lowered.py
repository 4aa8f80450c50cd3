"""Exported graphs on ONNX Runtime give the numbers of the modules they were made of."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch
from torch import Tensor

from trtspec import LLM
from trtspec.engine.network import LinearGraph
from trtspec.executor.model_engine import ModelEngine
from trtspec.executor.packing import RowGroup
from trtspec.models.attention import PackedRows
from trtspec.models.linear_rows import MaskKind
from trtspec.ops.tree import TokenTree

from ..e2e.eagle_heads import eagle, random_eagle3
from ..e2e.helpers import TinyModels, open_llm, random_prompt
from ..models.tiny_hf import VOCAB

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

TREE = {"num_speculative_tokens": 3, "topk": 3, "num_draft_tokens": 10}
TOLERANCE = 2e-5


class Pair:
    """One engine as modules over a paged cache, and as graphs over a linear one."""

    def __init__(self, folder: Path, speculation: dict[str, object] | None = None) -> None:
        self.llms = [open_llm(folder, speculation, backend=b) for b in ("eager", "onnx")]

    def groups(self, llm: LLM, fed: Sequence[tuple[int, list[int], int, TokenTree | None]]) -> list:
        """Rows of requests by number, whose blocks, or slot, are theirs alone."""
        each = llm.config.layout.blocks_per_sequence if not llm.config.layout.is_linear else 1
        return [
            RowGroup(
                tokens,
                context,
                torch.arange(each * request, each * (request + 1), dtype=torch.int32),
                tree,
            )
            for request, tokens, context, tree in fed
        ]

    def forward(
        self, *fed: tuple[int, list[int], int, TokenTree | None]
    ) -> list[tuple[Tensor, Tensor | None]]:
        return [llm._target.forward(self.groups(llm, fed)) for llm in self.llms]

    def check(self, *fed: tuple[int, list[int], int, TokenTree | None]) -> None:
        (logits, hidden), (lowered, states) = self.forward(*fed)
        assert (logits - lowered).abs().max() < TOLERANCE * logits.abs().max()
        if hidden is not None and states is not None:
            assert (hidden - states).abs().max() < TOLERANCE * hidden.abs().max()


@pytest.fixture(scope="module", params=["mistral_window", "llama"])
def pair(
    request: pytest.FixtureRequest, models: TinyModels, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """With a sliding window, and with states captured for a draft."""
    folder, speculation = models.folder(request.param), None
    if request.param == "llama":
        root = tmp_path_factory.mktemp("heads")
        speculation = eagle(random_eagle3(models.hf("llama"), root), "eagle3", **TREE)
    both = Pair(folder, speculation)
    yield both
    for llm in both.llms:
        llm.shutdown()


def random_tree(seed: int, count: int) -> TokenTree:
    rng = random.Random(seed)
    parents = [rng.randint(-1, node - 1) for node in range(count)]
    return TokenTree([rng.randrange(VOCAB) for _ in parents], parents)


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


def test_an_eagle3_draft(pair: Pair) -> None:
    """Every node of the rollouts behind two prompts, and the scores."""
    drafts = [draft for llm in pair.llms for draft in llm._drafts]
    if not drafts:
        pytest.skip("a target without a draft")
    prompts = random_prompt(710, 12), random_prompt(711, 3)
    fed = [(0, prompts[0], 0, None), (1, prompts[1], 0, None)]
    states = [hidden for _, hidden in pair.forward(*fed)]
    kinds = (torch.float32, torch.int32, torch.float32, torch.float32, *[torch.int64] * 3)
    values = ([0.0, 0.9], [0, 0], [1.0, 0.95], [0.0, 0.0], [1, 2], [0, 0], [12, 3])
    sampling = [torch.tensor(v, dtype=k) for v, k in zip(values, kinds, strict=True)]
    trees = []
    for llm, draft, hidden in zip(pair.llms, drafts, states, strict=True):
        assert isinstance(draft, ModelEngine)
        trees.append(draft.rollout(pair.groups(llm, fed), sampling, hidden))
    (tokens, parents, scores), (lowered, places, found) = trees
    assert torch.equal(tokens, lowered) and torch.equal(parents, places)
    assert (scores - found).abs().max() < 1e-3


def test_a_new_sequence_clears_its_slot() -> None:
    """What is left in a slot, NaN as well, is gone with a sequence's first rows, and only then."""

    class Nothing:
        def run(self, inputs: Sequence[Tensor]) -> list[Tensor]:
            return [torch.zeros(inputs[0].numel(), 3)]

    graph = LinearGraph(Nothing(), 8, 4, [MaskKind()])
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
        graph.run(torch.tensor([1]), rows, caches[:1], caches[1:])

    feed(2, 1)
    assert all(cache.isnan().all() for cache in caches)
    feed(1, 0)
    for cache in caches:
        assert not cache[1].any()
        assert cache[[0, 2]].isnan().all()


def test_a_call_of_padding_gives_zeros_and_keeps_the_caches(pair: Pair) -> None:
    """As those by which the costs of calls are measured; a sequence beside it goes on unharmed."""
    prompt = random_prompt(720, 9)
    pair.check((1, prompt, 0, None))
    for llm in pair.llms:
        assert llm._target.time_call(3, 6) > 0
        for draft in llm._drafts:
            assert draft.time_call(3, 6) > 0
    pair.check((1, [5], 9, None))
