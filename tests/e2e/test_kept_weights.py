"""Quantised checkpoints that keep their bits: the numbers of the dequantised model, the same text
with drafts, and what cannot be kept refused by name."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from checkpoint_converters import load_checkpoint
from checkpoint_converters.quantised.gguf_blocks import STORAGES
from trtspec import LLM, SamplingParams
from trtspec.builder.accuracy import log_probabilities
from trtspec.builder.plan import BuildPlan, plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.engine.graphs import target_module
from trtspec.errors import ConfigError
from trtspec.formats.joined import JoinedFormat
from trtspec.formats.plain import PANELS
from trtspec.formats.quantised import QuantisedFormat
from trtspec.models.causal_lm import CausalLM
from trtspec.models.feed_forwards.experts import Experts

from ..checkpoints import quantised_layers, small_float_layers
from ..checkpoints.quantised_layers import CASES, in_groups
from ..checkpoints.test_mxfp4 import write as write_mxfp4
from ..checkpoints.tiny_gguf import SCALES, random_tensor, tiny
from .eagle_heads import eagle, random_eagle3
from .families import family_model
from .helpers import TinyModels, assert_no_leak, chain, ngram, open_llm, random_prompt, tokens
from .quantised_folder import quantised

IDS = torch.tensor(random_prompt(5, 40))
PROMPTS = [random_prompt(60 + i, 3 + 7 * i) for i in range(4)]
KEPT = {"activation_dtype": "float32"}
PARAMS = [SamplingParams(16), SamplingParams(16, temperature=0.9, seed=3)]


@pytest.fixture(autouse=True)
def groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a size that there are kernels for."""
    monkeypatch.setattr(quantised_layers, "GROUP", 16)


def plan(path: Path, **options: Any) -> BuildPlan:
    return plan_build(path, BuildConfig("float32", backend="eager", **options), None, True)


def loaded(path: Path, **options: Any) -> CausalLM:
    """The target of an engine, with its weights."""
    engine = plan(path, **options).engine
    model = target_module(engine)
    model.load_weights(replace(load_checkpoint(path), config=engine.target))
    return model


@pytest.mark.parametrize("name", CASES)
def test_logits_are_those_of_the_dequantised_model(
    models: TinyModels, tmp_path: Path, name: str
) -> None:
    """Layers that the file leaves out stay floats, parts of a fused one too."""
    path, floats = quantised(models.folder("llama"), CASES[name], tmp_path)
    model = loaded(path, activation_dtype="float32")
    kinds = [layer.mlp.gate_up.format for layer in model.layers]
    assert isinstance(kinds[0], JoinedFormat) and kinds[0].parts[1][1] == PANELS
    assert model.lm_head.format == PANELS
    o = model.layers[1].attn.o.format
    assert isinstance(o, QuantisedFormat) and o.input_bits == 0
    exact = log_probabilities(loaded(floats), IDS)
    torch.testing.assert_close(log_probabilities(model, IDS), exact, rtol=0, atol=2e-4)
    rounded = log_probabilities(loaded(path), IDS)
    divergence = (exact.exp() * (exact - rounded)).sum(-1).mean()
    assert 0 < divergence < 0.01


@pytest.mark.parametrize("name", ["deepseek", "compressed-channel", "modelopt-nvfp4"])
def test_small_floats_are_those_of_the_dequantised_model(
    models: TinyModels, tmp_path: Path, name: str
) -> None:
    """FP8 is multiplied by floats, FP4 also by activations of 8 bits."""
    case = small_float_layers.CASES[name]
    path, floats = quantised(models.folder("llama"), case, tmp_path)
    exact = log_probabilities(loaded(floats), IDS)
    found = log_probabilities(loaded(path, **KEPT), IDS)
    torch.testing.assert_close(found, exact, rtol=0, atol=2e-4)
    default = log_probabilities(loaded(path), IDS)
    divergence = (exact.exp() * (exact - default)).sum(-1).mean()
    assert abs(divergence) < (0.01 if "nvfp4" in name else 1e-6)


@pytest.mark.parametrize("name", ["compressed-mxfp4", "compressed-tensor"])
def test_experts_of_small_floats(models: TinyModels, tmp_path: Path, name: str) -> None:
    sizes = {"num_hidden_layers": 2, "moe_intermediate_size": 96}
    source = models.save(family_model("qwen3_moe", **sizes), "experts")
    left_out = ("lm_head", "embed_tokens", "mlp.gate")
    path, floats = quantised(source, small_float_layers.CASES[name], tmp_path, left_out)
    exact = log_probabilities(loaded(floats), IDS)
    found = log_probabilities(loaded(path, **KEPT), IDS)
    torch.testing.assert_close(found, exact, rtol=0, atol=2e-4)


def test_experts_of_blocks(tmp_path: Path) -> None:
    """gpt-oss's in MXFP4, whose gates and ups are interleaved, with biases."""
    write_mxfp4(tmp_path)
    kept = loaded(tmp_path, **KEPT)
    kinds = [each.format.name for each in kept.modules() if isinstance(each, Experts)]
    assert kinds == ["float4"] * 2
    exact = log_probabilities(loaded(tmp_path, weight_dtype="float32"), IDS)
    torch.testing.assert_close(log_probabilities(kept, IDS), exact, rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", ["deepseek", "compressed-nvfp4"])
def test_drafts_change_nothing_beside_small_floats(
    models: TinyModels, tmp_path: Path, name: str
) -> None:
    """A draft of small floats keeps them too."""
    case = small_float_layers.CASES[name]
    path, _ = quantised(models.folder("llama"), case, tmp_path)
    (tmp_path / "head").mkdir()
    head = random_eagle3(models.hf("llama"), tmp_path / "head", range(10, 34))
    small, _ = quantised(head, case, tmp_path / "draft", ("lm_head",))
    with open_llm(path, None, max_batch_size=1) as llm:
        expected = [tokens([llm.generate(p, q) for p in PROMPTS]) for q in PARAMS]
    shape = {"num_speculative_tokens": 3, "topk": 2, "num_draft_tokens": 6}
    for speculation in (chain(path, 3), eagle(small, "eagle3", **shape)):
        with open_llm(path, speculation, max_num_tokens=24) as llm:
            assert [tokens(llm.generate(PROMPTS, q, use_tqdm=False)) for q in PARAMS] == expected
            assert all(draft.storage is not None for draft in llm.config.drafts)


def test_experts_of_one_group_and_of_two(models: TinyModels, tmp_path: Path) -> None:
    """The 64 inputs of gates are one group, of the 104 behind them two, the last one shorter."""
    sizes = {"num_hidden_layers": 2, "moe_intermediate_size": 104}
    source = models.save(family_model("qwen3_moe", **sizes), "experts")
    case = in_groups(CASES["gptq"], lambda: 64)
    path, floats = quantised(source, case, tmp_path, ("lm_head", "embed_tokens", "mlp.gate"))
    model = loaded(path, **KEPT)
    kinds = [each.format for each in model.modules() if isinstance(each, Experts)]
    assert kinds and all(isinstance(kind, QuantisedFormat) for kind in kinds)
    exact = log_probabilities(loaded(floats), IDS)
    torch.testing.assert_close(log_probabilities(model, IDS), exact, rtol=0, atol=2e-4)


@pytest.mark.parametrize("name", ["gptq-act", "modelopt-awq", "int-quantized-zeros"])
def test_drafts_change_nothing(models: TinyModels, tmp_path: Path, name: str) -> None:
    """With inputs of 8 bits, however many rows a call has; drafts keep their bits too, and floats
    become 8 bits."""
    path, _ = quantised(models.folder("llama"), CASES[name], tmp_path)
    (tmp_path / "head").mkdir()
    head = random_eagle3(models.hf("llama"), tmp_path / "head", range(10, 34))
    small, _ = quantised(head, CASES[name], tmp_path / "draft", ("lm_head",))
    with open_llm(path, None, max_batch_size=1) as llm:
        expected = [tokens([llm.generate(p, q) for p in PROMPTS]) for q in PARAMS]
    shape = {"num_speculative_tokens": 3, "topk": 2, "num_draft_tokens": 6}
    for speculation in (None, ngram(4), chain(path, 3), eagle(small, "eagle3", **shape)):
        with open_llm(path, speculation, max_num_tokens=24) as llm:
            assert [tokens(llm.generate(PROMPTS, q, use_tqdm=False)) for q in PARAMS] == expected
            assert all(draft.storage is not None for draft in llm.config.drafts)
            assert_no_leak(llm)
    with open_llm(path, eagle(head, "eagle3", **shape), max_num_tokens=24) as llm:
        assert [tokens(llm.generate(PROMPTS, q, use_tqdm=False)) for q in PARAMS] == expected
        (draft,) = llm.config.drafts
        assert draft.weights is not None and draft.weights.weight_dtype == "int8"


def test_what_is_asked_for_counts(models: TinyModels, tmp_path: Path) -> None:
    """Floats are made where a float weight_dtype asks for them; float weights are rounded where
    bits are asked for; the others stay."""
    path, floats = quantised(models.folder("llama"), CASES["gptq"], tmp_path)
    made = loaded(path, weight_dtype="float32")
    assert made.config.storage is None
    exact = log_probabilities(loaded(floats), IDS)
    assert torch.equal(log_probabilities(made, IDS), exact)
    rounded = loaded(path, weight_dtype="int8")
    kinds = rounded.layers[0].attn.o.format, rounded.lm_head.format
    assert [kind.name for kind in kinds] == ["int4", "int8"]
    described = plan(path).describe()
    assert "because  weights int4: as the checkpoint stores them" in described
    whole, kept = (plan(p, weight_dtype=d).engine for p, d in ((path, "float32"), (path, "auto")))
    assert kept.weight_bytes() < 0.6 * whole.weight_bytes()


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("gptq", {"backend": "onnx"}, "int4, which is not available on backend 'onnx', .*floats"),
        ("gptq-8", {"weight_dtype": "int4"}, "int8, and are not quantised again; leave weight_dt"),
        ("gptq", {"weight_dtype": "int4", "weight_group_size": 32}, "groups of their own, and"),
    ],
)
def test_what_is_refused(
    models: TinyModels, tmp_path: Path, name: str, options: dict[str, Any], message: str
) -> None:
    path, _ = quantised(models.folder("llama"), CASES[name], tmp_path)
    with pytest.raises(ConfigError, match=message):
        LLM(path, dtype="float32", skip_tokenizer_init=True, **{"backend": "eager", **options})


def test_groups_without_a_kernel(
    models: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantised_layers, "GROUP", 8)
    path, _ = quantised(models.folder("llama"), CASES["gptq"], tmp_path)
    with pytest.raises(ConfigError, match="a scale for each 8 input features; kept are groups"):
        open_llm(path)
    with open_llm(path, weight_dtype="float32") as llm:
        assert llm.config.target.storage is None


@pytest.mark.parametrize("kind", SCALES)
def test_blocks_keep_their_numbers(tmp_path: Path, kind: str) -> None:
    """A GGUF file whose v has a type of its own, with a head, or tied to its embedding."""
    model, v = tiny(kind), "blk.0.attn_v.weight"
    other = "Q4_0" if kind == "Q6_K" else "Q6_K"
    shape = model.tensors[v].values.shape
    model.tensors[v] = random_tensor(other, shape, np.random.default_rng(4))
    if kind in ("Q4_1", "Q6_K"):
        del model.tensors["output.weight"]
    file = model.write(tmp_path / "model.gguf")
    kept, floats = (loaded(file, **o) for o in (KEPT, {"weight_dtype": "float32"}))
    bits = STORAGES[kind].name
    assert kept.config.head.tied == ("output.weight" not in model.tensors)
    assert kept.lm_head.format.name == kept.layers[0].mlp.down.format.name == bits
    assert isinstance(kept.layers[0].attn.qkv.format, JoinedFormat)
    ids = IDS % 40
    if kept.config.head.tied:  # the rows are the head's
        assert kept.embed is None
        rows = kept.lm_head.gather_rows(ids)
    else:
        assert kept.embed is not None and kept.embed.format.name == bits
        rows = kept.embed(ids)
    table = floats.embed
    exact_rows = floats.lm_head.gather_rows(ids) if table is None else table(ids)
    closeness = {"Q4_0": 0.0, "Q5_0": 0.0, "Q8_0": 0.0}.get(kind, 2e-2)
    torch.testing.assert_close(rows, exact_rows, rtol=0, atol=closeness)
    found, exact = (log_probabilities(each, ids) for each in (kept, floats))
    rounded = kind not in ("Q4_0", "Q5_0", "Q8_0")  # products of scales, or offsets, to float16
    torch.testing.assert_close(found, exact, rtol=0, atol=0.02 if rounded else 2e-3)
    divergence = (exact.exp() * (exact - found)).sum(-1).mean()
    assert divergence < 1e-5
