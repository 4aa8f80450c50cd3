"""One compiled engine of the embedded target, whose embeddings are tied, and its draft model, of
another shape: its rows, its folder, and what the eager modules give."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

import trtspec.builder.graph_cache as graph_cache
from trtspec import LLM, SamplingParams
from trtspec.backends.packing import RowGroup, pack
from trtspec.errors import EngineError, RequestError
from trtspec.ops.draft_batch import DraftBatch
from trtspec.ops.tree import TokenTree

from .. import inside
from ..compiled_engines import LIMITS, Pairs, build_one, noisy
from .helpers import (
    PARAMS_40,
    assert_engine_calls,
    assert_no_leak,
    assert_way,
    open_llm,
    random_prompt,
    tokens,
)

pytestmark = pytest.mark.slow

PROMPTS = [random_prompt(110, 30), [77], random_prompt(111, 6) * 4, random_prompt(112, 17)]
SAMPLED = [SamplingParams(max_tokens=40, temperature=0.8, seed=seed) for seed in range(4)]
PENALISED = [
    replace(params, repetition_penalty=1.2, presence_penalty=0.5, top_p=0.9, logit_bias={3: 2.0})
    for params in SAMPLED
]
PAIR = Pairs(Path()).pair("chain")
USUAL = ("ngram", "shallow", "padded")
"""Ways that the others of test_compiled.py leave to their matrix, and such as know shapes."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The engine, whose graphs other files run too."""
    return build_one(tmp_path_factory, PAIR.target, PAIR.speculation)


@pytest.fixture(scope="module")
def greedy() -> list[list[int]]:
    """What transformers generates after each of the prompts."""
    model = AutoModelForCausalLM.from_pretrained(PAIR.target, dtype=torch.float32).eval()
    texts = []
    for prompt in PROMPTS:
        ids = torch.tensor([prompt])
        text = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=40, do_sample=False
        )
        texts.append(text[0, len(prompt) :].tolist())
    return texts


@pytest.fixture(scope="module")
def llm(folder: Path) -> Iterator[LLM]:
    with LLM(folder, skip_tokenizer_init=True) as llm:
        yield llm


def test_greedy_equals_transformers(greedy: list[list[int]], llm: LLM) -> None:
    assert tokens(llm.generate(PROMPTS, PARAMS_40, use_tqdm=False)) == greedy
    assert tokens([llm.generate(PROMPTS[0], PARAMS_40)]) == greedy[:1]


@pytest.mark.parametrize(
    "params", [[PARAMS_40] * 4, SAMPLED, PENALISED], ids=["greedy", "sampled", "penalised"]
)
def test_equals_eager(llm: LLM, params: list[SamplingParams]) -> None:
    """Tokens and even the drafts: the same ones are proposed and accepted."""
    before = llm.get_metrics()
    outputs = llm.generate(PROMPTS, params, use_tqdm=False)
    after = llm.get_metrics()
    with open_llm(PAIR.target, PAIR.speculation, **LIMITS) as eager:
        expected = eager.generate(PROMPTS, params, use_tqdm=False)
    with open_llm(PAIR.target, **LIMITS) as plain:
        assert tokens(plain.generate(PROMPTS, params, use_tqdm=False)) == tokens(expected)
    assert tokens(outputs) == tokens(expected)
    assert after["num_accepted_tokens"] > before["num_accepted_tokens"]
    for ours, other in zip(outputs, expected, strict=True):
        if len(ours.prompt_token_ids) < 16:  # no prefix that an earlier test left
            assert ours.metrics.to_dict() == other.metrics.to_dict()
    assert_no_leak(llm)


@pytest.mark.parametrize("name", USUAL)
def test_other_ways_with_the_same_engine(folder: Path, llm: LLM, name: str) -> None:
    assert_way(folder, llm, name, PAIR.smaller, PROMPTS, ([PARAMS_40] * 4, PENALISED))


def test_engine_calls_a_step(llm: LLM) -> None:
    assert_engine_calls(llm, PROMPTS, passes=PAIR.speculation["num_speculative_tokens"])


def test_rows_do_not_depend_on_their_neighbours(folder: Path) -> None:
    """A row alone, in a batch, in another chunk, on a chain or in a tree: the same bits."""
    with LLM(folder, skip_tokenizer_init=True) as llm:
        engine = inside.target(llm)
        prompt, size = random_prompt(113, 30), 16

        def blocks(request: int) -> torch.Tensor:
            first = request * llm.config.layout.blocks_per_sequence
            return first + torch.arange(llm.config.layout.blocks_per_sequence, dtype=torch.int32)

        def fed(request: int, tokens: list[int], context: int = 0) -> RowGroup:
            return RowGroup(tokens, context, blocks(request))

        def forward(*groups: RowGroup, drafts: DraftBatch | None = None) -> torch.Tensor:
            return engine.forward(pack(groups, engine.layout, drafts))[0]

        alone = forward(fed(0, prompt))
        others = [fed(i, random_prompt(120 + i, n)) for i, n in ((1, 1), (2, 25), (3, 7))]
        batched = forward(*others[:2], fed(0, prompt), others[2])
        assert torch.equal(batched[2], alone[0])
        forward(fed(0, prompt[:size]))
        assert torch.equal(forward(fed(0, prompt[size:], size), *others)[0], alone[0])

        def verified(draft: TokenTree, beside: list[RowGroup]) -> torch.Tensor:
            groups = [RowGroup(prompt[-1:], 29, blocks(0)), *beside]
            drafts = DraftBatch.of([draft, *[None] * len(beside)])
            return forward(*groups, drafts=drafts)[: 1 + len(draft)]

        path = [5, 9, 11]
        rows = [alone[0]]
        forward(fed(0, prompt))
        for i, token in enumerate(path):
            rows.append(forward(fed(0, [token], 30 + i))[0])
        one_by_one = torch.stack(rows)
        assert torch.equal(verified(TokenTree.chain(path), []), one_by_one)
        bushy = TokenTree([8, 5, 9, 3, 11, 11], [-1, -1, 1, 1, 2, 3])
        found = verified(bushy, others)
        assert torch.equal(found[[0, 2, 3, 5]], one_by_one)


def test_compiled_once(
    folder: Path, greedy: list[list[int]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second LLM of the checkpoint starts without a compiler; so does one with other weights of
    the same shape, and one with smaller limits that do not shape the graph."""

    def refuse(*args: object) -> None:
        raise AssertionError("compiled again")

    monkeypatch.setattr(graph_cache, "_compile_all", refuse)
    options = {"backend": "aoti", **LIMITS}
    with open_llm(PAIR.target, PAIR.speculation, **options) as again:
        assert tokens(again.generate(PROMPTS, PARAMS_40, use_tqdm=False)) == greedy
    other = noisy(PAIR.target, tmp_path / "other")
    with (
        open_llm(other, PAIR.speculation, **options) as compiled,
        open_llm(other, PAIR.speculation, **LIMITS) as eager,
    ):
        texts = tokens(compiled.generate(PROMPTS, PARAMS_40, use_tqdm=False))
        assert texts == tokens(eager.generate(PROMPTS, PARAMS_40, use_tqdm=False)) != greedy
    open_llm(PAIR.target, **{**options, "max_batch_size": 2}).shutdown()


def test_moved_and_damaged(folder: Path, greedy: list[list[int]], tmp_path: Path) -> None:
    moved = Path(shutil.copytree(folder, tmp_path / "moved"))
    with LLM(moved, skip_tokenizer_init=True) as llm:
        assert llm.generate(PROMPTS[0], PARAMS_40).outputs[0].token_ids == greedy[0]
    for name in ("draft/pass.pt2", "target/model.pt2"):
        package = moved / name
        package.write_bytes(package.read_bytes()[:50_000])
        with pytest.raises(EngineError, match=rf"{name} cannot be loaded .* rebuild"):
            LLM(moved, skip_tokenizer_init=True)


def test_nan_fails_its_request_alone(folder: Path, llm: LLM) -> None:
    """Compiled code gives the executor logits that it may change, and NaN stays in its rows."""
    bans = SamplingParams(bad_words=[[t] for t in range(llm.config.target.vocab_size)])
    outputs = llm.generate(PROMPTS[:3], [PARAMS_40, bans, PARAMS_40], use_tqdm=False)
    assert isinstance(outputs[1].error, RequestError)
    expected = tokens(llm.generate([PROMPTS[0], PROMPTS[2]], PARAMS_40, use_tqdm=False))
    assert tokens(outputs[::2]) == expected
