"""The embedded EAGLE-3 head on code that it has not seen: right often, and more rarely when it is
given wrong states or wrong tokens."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams
from trtspec.backends.packing import RowGroup
from trtspec.bench.data.dataset import held_out_prompts
from trtspec.builder.locate import find_model
from trtspec.executor.step.request import Request
from trtspec.speculative.hidden_state_drafter import HiddenStateDrafter

from .eagle_heads import LAYER_IDS, eagle
from .helpers import assert_no_leak, open_llm, tokens

TARGET, HEAD = "trtspec-tiny", "trtspec-tiny-eagle3"
CHAIN: dict[str, Any] = {"num_speculative_tokens": 3}
TREE: dict[str, Any] = {"num_speculative_tokens": 4, "topk": 3, "num_draft_tokens": 14}
GREEDY = SamplingParams(max_tokens=32, ignore_eos=True)
SAMPLED = [SamplingParams(32, temperature=0.8, seed=i, ignore_eos=True) for i in range(4)]


@cache
def prompts() -> list[list[int]]:
    """A multiple of no block and one more, so that a cached prefix leaves something to feed."""
    with open_llm(Path(find_model(TARGET)), skip_tokenizer_init=False) as llm:
        return [prompt.token_ids for prompt in held_out_prompts(llm.tokenizer, 4, 70)]


def open_head(head: Path | str = HEAD, shape: dict[str, Any] = CHAIN, **options: Any) -> LLM:
    config = eagle(find_model(head), "eagle3", **shape)
    return open_llm(Path(find_model(TARGET)), config, **options)


def generate(llm: LLM, params: Any = GREEDY) -> list[list[int]]:
    return tokens(llm.generate(prompts(), params, use_tqdm=False))


@cache
def texts() -> list[list[list[int]]]:
    """Without speculation: greedy and sampled."""
    with open_llm(Path(find_model(TARGET))) as llm:
        return [generate(llm), generate(llm, SAMPLED)]


def accepted(llm: LLM, turns: int = 1) -> float:
    """The acceptance rate of greedy texts, the last turn's alone."""
    before = llm.get_metrics()
    for _ in range(turns):
        before = llm.get_metrics()
        assert generate(llm) == texts()[0]
    after = llm.get_metrics()
    counts = [after[k] - before[k] for k in ("num_accepted_tokens", "num_draft_tokens")]
    return counts[0] / counts[1]


@cache
def good() -> float:
    with open_head() as llm:
        return accepted(llm)


@pytest.mark.slow
@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_it_is_often_right(shape: dict[str, Any]) -> None:
    lengths = []
    for params, expected in zip((GREEDY, SAMPLED), texts(), strict=True):
        with open_head(shape=shape) as llm:
            assert generate(llm, params) == expected
            lengths.append(llm.get_metrics()["acceptance_length"])
            assert_no_leak(llm)
    assert min(lengths) > 1.6


@pytest.mark.slow
def test_counts_do_not_depend_on_feeding() -> None:
    """Cold, warm, alone and in chunks."""

    def figures(llm: LLM, some: Sequence[list[int]]) -> list[dict[str, Any]]:
        outputs = llm.generate(list(some), SAMPLED[: len(some)], use_tqdm=False)
        return [output.metrics.to_dict() for output in outputs]

    with open_head(shape=TREE) as llm:
        cold = figures(llm, prompts())
        assert figures(llm, prompts()) == cold
    with open_head(shape=TREE, max_batch_size=1, max_num_tokens=32) as llm:
        assert figures(llm, prompts()) == cold


@pytest.mark.slow
def test_wrong_layers(tmp_path: Path) -> None:
    """The embeddings and the first two layers, where two of the head's three lie deeper."""
    folder = Path(shutil.copytree(find_model(HEAD), tmp_path / "head"))
    file = folder / "config.json"
    values = json.loads(file.read_text())
    assert min(values.pop("eagle_config")[LAYER_IDS][1:]) > 1
    file.write_text(json.dumps(values | {LAYER_IDS: [0, 1, 2]}))  # inputs
    with open_head(folder) as llm:
        assert llm.config.drafts[0].network.capture_layers == (-1, 0, 1)
        assert accepted(llm) < 0.8 * good()


def test_shifted_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    def group(self: HiddenStateDrafter, request: Request, start: int, count: int) -> RowGroup:
        blocks = self._cache.block_table(request)
        return RowGroup(request.tokens[start : start + count], start, blocks)

    expected = good()
    monkeypatch.setattr(HiddenStateDrafter, "_group", group)
    with open_head() as llm:
        found = accepted(llm)
        assert found < 0.5 * expected


def test_a_warm_cache() -> None:
    with open_head() as llm:
        assert accepted(llm, 2) == good()
