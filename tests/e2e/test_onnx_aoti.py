"""Backend onnx gives the tokens of aoti, with the embedded target and its draft model."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams
from trtspec.bench.data.dataset import held_out_prompts
from trtspec.builder.locate import find_model
from trtspec.llmapi.prompts import load_tokenizer

from ..compiled_engines import CHAIN, build_one
from .helpers import assert_no_leak, tokens

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = [pytest.mark.slow, pytest.mark.ci]

GREEDY = SamplingParams(max_tokens=48, ignore_eos=True)
SAMPLED = [SamplingParams(48, temperature=0.8, seed=i, ignore_eos=True) for i in range(4)]
METHODS: dict[str, Any] = {"none": False, "draft_model": None}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Path]:
    """Prompts are longer than one call: they come in chunks, and beside generating requests."""
    target, speculation = find_model("trtspec-tiny"), {**CHAIN, "model": "trtspec-tiny-draft"}
    return {
        backend: build_one(tmp_path_factory, target, speculation, backend=backend)
        for backend in ("aoti", "onnx")
    }


@pytest.mark.parametrize("method", METHODS)
def test_same_tokens(folders: Mapping[str, Path], method: str) -> None:
    tokenizer = load_tokenizer(Path(find_model("trtspec-tiny")))
    prompts = [prompt.token_ids for prompt in held_out_prompts(tokenizer, 4, 70)]
    texts, lengths = [], []
    for folder in folders.values():
        with LLM(folder, METHODS[method], skip_tokenizer_init=True) as llm:
            runs = [llm.generate(prompts, params, use_tqdm=False) for params in (GREEDY, SAMPLED)]
            texts.append([tokens(run) for run in runs])
            lengths.append(llm.get_metrics()["acceptance_length"])
            assert_no_leak(llm)
    assert texts[0] == texts[1]
    # A draft's near ties may fall differently, and cached prefixes are fed in other chunks.
    assert lengths[0] == pytest.approx(lengths[1], rel=0.02)
    assert (lengths[0] > 1.6) == (method == "draft_model")
