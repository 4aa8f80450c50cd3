"""Backend onnx gives the tokens of aoti, with the embedded target and its EAGLE-3 head."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams
from trtspec.bench.dataset import held_out_prompts
from trtspec.builder.build import cached_engine
from trtspec.builder.locate import find_model
from trtspec.builder.plan import plan_build
from trtspec.config.build import BuildConfig
from trtspec.config.speculative import parse_speculative_config
from trtspec.llmapi.prompts import load_tokenizer

from .helpers import assert_no_leak, tokens

pytest.importorskip("onnxruntime")
pytest.importorskip("onnxscript")
pytestmark = pytest.mark.slow

# Those of tests/cpp: there and here the same graphs are compiled.
LIMITS: dict[str, Any] = {"max_batch_size": 4, "max_seq_len": 256, "max_num_tokens": 64}
TREE = {"method": "eagle3", "num_speculative_tokens": 4, "topk": 3, "num_draft_tokens": 12}
GREEDY = SamplingParams(max_tokens=48, ignore_eos=True)
SAMPLED = [SamplingParams(48, temperature=0.8, seed=i, ignore_eos=True) for i in range(4)]
METHODS: dict[str, Any] = {"none": False, "eagle3": None}


@pytest.fixture(scope="module")
def folders() -> Mapping[str, Path]:
    """Prompts are longer than one call: they come in chunks, and beside generating requests."""
    model = {**TREE, "model": str(find_model("trtspec-tiny-eagle3"))}
    speculation, found = parse_speculative_config(model), {}
    for backend in ("aoti", "onnx"):
        config = BuildConfig("float32", backend=backend, **LIMITS)
        found[backend] = cached_engine(plan_build("trtspec-tiny", config, speculation))
    return found


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
    assert (lengths[0] > 1.6) == (method == "eagle3")
