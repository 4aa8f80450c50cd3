"""Quantised checkpoints in their bits, compiled, run by Python and by C++: the text of backend
eager."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest

from trtspec import LLM, SamplingParams
from trtspec.engine.folder import EngineConfig

from ..checkpoints import quantised_layers
from ..checkpoints.quantised_layers import CASES
from ..checkpoints.tiny_gguf import tiny
from ..compiled_engines import build_one
from ..e2e.eagle_heads import RightHeads
from ..e2e.helpers import TinyModels, ngram, open_llm, random_prompt, tokens
from ..e2e.quantised_folder import quantised
from .equality import assert_equal, cycling_samples
from .program import Program

pytestmark = [pytest.mark.slow, pytest.mark.matrix]

SCHEMES = (
    "modelopt-int8", "modelopt-awq", "pack-quantized", "int-quantized", "awq", "gptq", "gptq-act",
)  # fmt: skip
LEFT_OUT = ("mlp.up_proj", "self_attn.v_proj", "lm_head", "embed_tokens")
BLOCKS = ("Q8_0", "Q4_0", "Q4_1", "Q4_K", "Q6_K")
PROMPTS = [random_prompt(1, 30, 40), random_prompt(2, 6, 40) * 4]
DRAFTS = ("--speculative", "ngram", "--max_draft_len", 4, "--prompt_lookup_min", 1)


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a size that there are kernels for."""
    monkeypatch.setattr(quantised_layers, "GROUP", 16)


def checkpoint(name: str, models: TinyModels, root: Path) -> Path:
    """One layer, with parts of fused ones in floats, or of a GGUF file none."""
    if name in BLOCKS:
        return tiny(name).write(root / "model.gguf")
    hf = copy.deepcopy(models.hf("llama"))
    hf.model.layers, hf.config.num_hidden_layers = hf.model.layers[:1], 1
    hf.config.layer_types = None
    hf.save_pretrained(root / "llama")
    return quantised(root / "llama", CASES[name], root, LEFT_OUT)[0]


@pytest.mark.parametrize("name", [*SCHEMES, *BLOCKS])
def test_python_and_cpp(
    program: Program,
    models: TinyModels,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    name: str,
) -> None:
    """Products of whole numbers, of rows alone and behind each other."""
    path = checkpoint(name, models, tmp_path)
    params = SamplingParams(max_tokens=24, ignore_eos=True)
    with open_llm(path, None, max_seq_len=64) as llm:
        expected = tokens(llm.generate(PROMPTS, params, use_tqdm=False))
    engine = build_one(tmp_path_factory, path, None, max_seq_len=64, max_num_tokens=16)
    for speculation in (False, ngram(4)):
        with LLM(engine, speculation, skip_tokenizer_init=True) as llm:
            assert tokens(llm.generate(PROMPTS, params, use_tqdm=False)) == expected
            assert llm.config.target.storage is not None
    samples = [(prompt, 24) for prompt in PROMPTS]
    for flags in ((), DRAFTS):
        result = program.run(engine, samples, tmp_path, "--temperature", 0, *flags)
        assert result.tokens == expected
    assert result.figures["num_draft_tokens"] > 0
    read = result.report["engine"]["target_weight_bytes"]
    assert read == llm.config.pass_bytes().expected(1)


@pytest.mark.parametrize("name", ["modelopt-awq", "int-quantized"])
def test_a_head_over_a_target(
    program: Program,
    right_heads: RightHeads,
    tmp_path_factory: pytest.TempPathFactory,
    tmp_path: Path,
    name: str,
) -> None:
    """Both in whole numbers, and the drafts of Python and C++ are the same."""
    target, _ = quantised(right_heads.target, CASES[name], tmp_path / "t", rounds=True)
    head, _ = quantised(right_heads.eagle3, CASES[name], tmp_path / "d", (), rounds=True)
    drafts = {"method": "eagle3", "model": str(head), "num_speculative_tokens": 1}
    engine = build_one(tmp_path_factory, target, drafts, max_seq_len=128)
    cases = cycling_samples()
    metrics = assert_equal(program, engine, tmp_path, None, (), "plain", 0.8, cases)
    assert metrics["acceptance_length"] > 1.2
    assert all(draft.storage is not None for draft in EngineConfig.read(engine).drafts)
