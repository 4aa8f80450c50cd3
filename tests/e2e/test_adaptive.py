"""Whatever the controller chooses, the text is the same; and it does choose."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trtspec import LLM
from trtspec.llmapi.engines import build
from trtspec.speculative.hybrid.options import HybridDecodingConfig
from trtspec.speculative.suffix.options import SuffixDecodingConfig

from .. import inside
from .eagle_heads import eagle, random_eagle3
from .helpers import (
    GREEDY_24,
    SAMPLED_24,
    TinyModels,
    assert_no_leak,
    chain,
    eight_prompts,
    ngram,
    open_llm,
    tokens,
    tree,
)
from .hybrid_drafts import hybrid
from .medusa_heads import fitted_heads, medusa, write_heads

pytestmark = pytest.mark.slow

PROMPTS = eight_prompts(520)
RUNS = (GREEDY_24, SAMPLED_24)


@pytest.fixture(scope="module")
def texts(models: TinyModels) -> list[list[list[int]]]:
    with open_llm(models.folder("llama")) as llm:
        return [tokens(llm.generate(PROMPTS, params, use_tqdm=False)) for params in RUNS]


@pytest.fixture(scope="module")
def configs(
    models: TinyModels, texts: list[list[list[int]]], tmp_path_factory: pytest.TempPathFactory
) -> dict[str, dict[str, Any]]:
    root, hf = tmp_path_factory.mktemp("adaptive"), models.hf("llama")
    said = [p + t for p, t in zip(PROMPTS, texts[0], strict=True)]
    heads = write_heads(root / "medusa", fitted_heads(hf, said, 3))
    head = eagle(random_eagle3(hf, root / "eagle3", modelopt=False), "eagle3")
    eagle3 = {**head, "num_speculative_tokens": 3, "topk": 2, "num_draft_tokens": 6}
    draft = models.draft("llama")
    return {
        "ngram": ngram(4),
        "suffix": {"method": "suffix"},
        "chain": chain(draft, 4),
        "tree": tree(draft, 2, 3, 6),
        "eagle3": eagle3,
        "medusa": medusa(heads, 3),
        "hybrid": hybrid({"method": "suffix"}, chain(draft, 3), eagle3),
        "auto": {"method": "auto"},
        "auto with a draft": {"method": "auto", "model": str(draft)},
    }


OPTIONS: dict[str, dict[str, Any]] = {
    "eight": {},
    "alone": {"max_batch_size": 1},
    "preempted": {"tokens_per_block": 4, "kv_cache_config": {"max_tokens": 128}},
}
METHODS = ("ngram", "suffix", "chain", "tree", "eagle3", "medusa", "hybrid")
CASES = [(name, "eight") for name in (*METHODS, "auto", "auto with a draft")]
CASES += [("chain", "alone"), ("hybrid", "alone"), ("eagle3", "preempted"), ("hybrid", "preempted")]


@pytest.mark.parametrize(("name", "options"), CASES)
def test_same_tokens(
    models: TinyModels,
    configs: dict[str, dict[str, Any]],
    texts: list[list[list[int]]],
    name: str,
    options: str,
) -> None:
    """Greedy and sampled, once more over cached prefixes."""
    config = {**configs[name], "adaptive": True}
    with open_llm(models.folder("llama"), config, **OPTIONS[options]) as llm:
        on_another_machine(llm, 0.0001)
        for turn in (0, 1, 0):
            assert tokens(llm.generate(PROMPTS, RUNS[turn], use_tqdm=False)) == texts[turn]
        assert llm.get_metrics()["num_draft_tokens"] > 0
        assert_no_leak(llm)


def on_another_machine(llm: LLM, row_seconds: float) -> Any:
    """The union of an LLM as if a target's row more took so long, and drafts a fifth of a step;
    nothing takes longer at one time than at another."""
    union: Any = inside.drafter(llm)
    drafts = [(member.costs, 0.002, 0.0) for member in union._members]
    for table, first, row in ((union.target_cost, 0.01, row_seconds), *drafts):
        table.run = lambda requests, rows, count, context=0, first=first, row=row: (
            first + row * np.arange(rows, rows + count)
        )
        table.observe = lambda *seen: None
    return union


def settle(models: TinyModels, folder: Path, rate: float, row_seconds: float) -> list[int]:
    """Nodes verified in late steps that have room for all, with forced acceptance."""
    config = {**chain(models.draft("llama"), 4), "adaptive": True}
    config["simulate_acceptance"] = [rate ** (i + 1) for i in range(4)]
    with open_llm(folder, config, max_batch_size=1) as llm:
        union = on_another_machine(llm, row_seconds)
        sizes: list[int] = []
        given = union.on_accepted

        def on_accepted(batch: Any, result: Any) -> Any:
            sizes.extend(
                count
                for i, count in zip(batch.items, result.drafts.counts, strict=True)
                if i.is_generation and i.request.remaining_tokens > 4
            )
            return given(batch, result)

        union.on_accepted = on_accepted
        for prompt in PROMPTS * 3:
            llm.generate(prompt, GREEDY_24)
    return sizes[-len(sizes) // 3 :]


@pytest.mark.parametrize("rate", [0.05, 0.95])
def test_forced_acceptance_is_seen(models: TinyModels, rate: float) -> None:
    """Few drafts are accepted: nothing is drafted but for a try; many are: all."""
    config = chain(models.draft("llama"), 4)
    folder = build(models.folder("llama"), config, backend="eager", dtype="float32")
    sizes = settle(models, folder, rate, 0.001)
    mean = sum(sizes) / len(sizes)
    assert mean > 3.5 if rate > 0.5 else mean < 0.5, sizes


def test_auto_of_an_engine_folder(models: TinyModels, tmp_path: Path) -> None:
    """It goes on with what is built in; without a draft it is suffix decoding."""
    options = {"backend": "eager", "dtype": "float32"}
    with_draft = build(
        models.folder("llama"), {"method": "auto", "model": str(models.draft("llama"))},
        tmp_path / "with", **options
    )  # fmt: skip
    without = build(models.folder("llama"), None, tmp_path / "without", **options)
    for folder, asked, wanted in (
        (with_draft, None, HybridDecodingConfig),
        (with_draft, {"method": "auto"}, HybridDecodingConfig),
        (without, {"method": "auto"}, SuffixDecodingConfig),
    ):
        with open_llm(folder, asked) as llm:
            assert isinstance(llm.speculation, wanted) and llm.speculation.adaptive
            llm.generate(PROMPTS[0], GREEDY_24)
