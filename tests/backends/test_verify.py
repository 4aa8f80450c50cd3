"""Target graphs with plugins see, sample and accept what the modules, `sample` and `accept` do."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import accumulate
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from trtspec import LLM
from trtspec.backends.packing import RowBatch, RowGroup, pack
from trtspec.executor.engines.verify_call import VerifyInputs, VerifyOutputs
from trtspec.ops.acceptance import accept
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.sampling import SamplingColumns, sample
from trtspec.ops.tree import TokenTree

from .. import inside
from ..e2e.eagle_heads import eagle, random_eagle3
from ..e2e.helpers import TinyModels, open_llm, random_prompt
from ..models.tiny_hf import VOCAB

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")

from .plugin_graph import HOW

pytestmark = pytest.mark.slow

TREE = {"num_speculative_tokens": 3, "topk": 3, "num_draft_tokens": 10}
TOLERANCE = 2e-5
Fed = tuple[int, list[int], int, TokenTree | None, bool]
"""Of a request: its number, tokens, context, tree, and whether its last token is verified."""


def verify_inputs(fed: Sequence[Fed], temperature: float) -> VerifyInputs:
    """What the sampler asks, of requests with seeds of their own."""
    asked_of = [(number, tree or TokenTree.empty()) for number, _, _, tree, asks in fed if asks]
    counts = [1 + len(tree) for _, tree in asked_of]
    parents = np.concatenate([tree.row_parents() for _, tree in asked_of])
    depths = np.concatenate([(0, *tree.depths) for _, tree in asked_of])
    seeds = np.repeat([7 * number + 1 for number, _ in asked_of], counts)
    total = sum(counts)
    columns = SamplingColumns(
        torch.full((total,), temperature),
        torch.full((total,), 20, dtype=torch.int32),
        torch.full((total,), 0.95),
        torch.zeros(total),
        torch.from_numpy(seeds),
        torch.zeros(total, dtype=torch.int64),
        torch.from_numpy(depths + 3),
    )
    return VerifyInputs(
        columns,
        torch.tensor([token for _, tree in asked_of for token in (0, *tree.tokens)]),
        torch.from_numpy(parents),
        torch.tensor(list(accumulate(counts, initial=0)), dtype=torch.int32),
    )


class Pair:
    """One engine as modules over a paged cache, and as a graph over a slot one that samples and
    accepts by plugins, or by the same ops beside it."""

    def __init__(
        self, folder: Path, how: str, speculation: dict[str, object] | None = None
    ) -> None:
        self.eager = open_llm(folder, speculation)
        with pytest.MonkeyPatch.context() as patch:
            self.sessions = HOW[how](patch)
            self.verifying = open_llm(folder, speculation, backend="onnx")
        self.accepted = 0

    def packed(self, llm: LLM, fed: Sequence[Fed]) -> RowBatch:
        """Rows and drafts of requests by number, whose blocks, or slot, are theirs alone."""
        layout = llm.config.layout
        each = 1 if layout.is_slots else layout.blocks_per_sequence
        groups = [
            RowGroup(
                tokens,
                context,
                torch.arange(each * number, each * (number + 1), dtype=torch.int32),
                asks,
            )
            for number, tokens, context, _, asks in fed
        ]
        return pack(groups, layout, DraftBatch.of([tree for *_, tree, _ in fed]))

    def expected(
        self, fed: Sequence[Fed], asked: VerifyInputs
    ) -> tuple[Tensor, Tensor | None, VerifyOutputs]:
        logits, hidden = inside.target(self.eager).forward(self.packed(self.eager, fed))
        columns, *nodes = asked
        sampled = sample(logits, *columns)
        return logits, hidden, VerifyOutputs(sampled, *accept(sampled, *nodes))

    def check(self, fed: Sequence[Fed], temperature: float) -> None:
        asked = verify_inputs(fed, temperature)
        logits, hidden, expected_outputs = self.expected(fed, asked)
        found, states, outputs = inside.target(self.verifying).verify(
            self.packed(self.verifying, fed), asked
        )
        assert (logits - found).abs().max() < TOLERANCE * logits.abs().max()
        if hidden is not None and states is not None:
            assert (hidden - states).abs().max() < TOLERANCE * hidden.abs().max()
        assert torch.equal(outputs.sampled, expected_outputs.sampled)
        assert torch.equal(outputs.num_emitted, expected_outputs.num_emitted)
        width = expected_outputs.accepted_rows.shape[1]
        assert torch.equal(outputs.accepted_rows[:, :width], expected_outputs.accepted_rows)
        assert (outputs.accepted_rows[:, width:] == -1).all()
        self.accepted += int((outputs.num_emitted - 1).sum())

    def lucky(self, fed: Sequence[Fed], temperature: float) -> list[Fed]:
        """The same with a tree of which some nodes carry what the target emits, level by level."""
        for _ in range(3):
            asked = verify_inputs(fed, temperature)
            sampled = self.expected(fed, asked)[2].sampled.tolist()
            starts = iter(asked.row_start.tolist())
            fed = [
                (*request[:3], lucky_tree(request[3], sampled[next(starts) :]), True)
                if request[4]
                else request
                for request in fed
            ]
        return list(fed)


def lucky_tree(tree: TokenTree | None, sampled: Sequence[int]) -> TokenTree | None:
    """The first child of each row but every seventh carries what was sampled there."""
    if tree is None:
        return None
    tokens, seen = tree.tokens.tolist(), set()
    for node, parent in enumerate(tree.parents.tolist()):
        if parent not in seen and node % 7 != 6:
            tokens[node] = sampled[parent + 1]
        seen.add(parent)
    return TokenTree(tokens, tree.parents.tolist())


def random_tree(seed: int, count: int) -> TokenTree:
    rng = random.Random(seed)
    parents = [rng.randint(-1, node - 1) for node in range(count)]
    return TokenTree([rng.randrange(VOCAB) for _ in parents], parents)


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("mistral_window", "plugins"), marks=pytest.mark.matrix),
        ("llama", "plugins"),
        ("mistral_window", "kernels"),
    ],
    ids="-".join,
)
def pair(
    request: pytest.FixtureRequest, models: TinyModels, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Pair]:
    """With a sliding window, and with states captured for a draft."""
    case, how = request.param
    folder, speculation = models.folder(case), None
    if case == "llama":
        root = tmp_path_factory.mktemp("heads")
        speculation = eagle(random_eagle3(models.hf("llama"), root), "eagle3", **TREE)
    both = Pair(folder, how, speculation)
    yield both
    for llm in (both.eager, both.verifying):
        llm.shutdown()


@pytest.mark.parametrize("temperature", [0.0, 0.9])
def test_prefill_decode_and_verify(pair: Pair, temperature: float) -> None:
    """Two prompts, one of them in chunks, the first of which is not verified; then single rows
    beside random trees, in an order other than that of the slots; and a slot used again."""
    first, second = random_prompt(700, 90), random_prompt(701, 20)
    pair.check([(2, second, 0, None, True), (0, first[:80], 0, None, False)], temperature)
    pair.check([(0, first[80:], 80, None, True), (2, [5], 20, None, True)], temperature)
    pair.accepted = 0
    for seed in range(4):
        trees = random_tree(seed, 1 + 3 * seed), random_tree(seed + 50, 9)
        fed = [
            (2, [7 + seed], 21, trees[0], True),
            (0, [9], 90, trees[1], True),
            (3, first[:5], 0, None, seed % 2 == 0),
        ]
        pair.check(pair.lucky(fed, temperature), temperature)
    assert pair.accepted > 4
    pair.check([(0, second, 0, None, True)], temperature)
    for session in pair.sessions:  # masks end behind what rows can see
        assert (
            min(session.views)
            == 64
            < max(session.views)
            < pair.verifying.config.layout.tokens_per_block
        )


def test_logits_without_a_question(pair: Pair) -> None:
    """As for requests whose logits the host changes: two calls, in which nothing is asked_of; and a
    call of padding alone."""
    prompt = random_prompt(702, 40)
    fed = [(1, prompt, 0, None, True), (0, prompt[:3], 0, None, True)]
    logits, _ = inside.target(pair.eager).forward(pair.packed(pair.eager, fed))
    found, _ = inside.target(pair.verifying).forward(pair.packed(pair.verifying, fed))
    assert (logits - found).abs().max() < TOLERANCE * logits.abs().max()
    assert inside.target(pair.verifying).time_call(3, 6) > 0
