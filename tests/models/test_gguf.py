"""Networks filled from GGUF files, in float32, against transformers with the same weights as the
gguf package reads them."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import cycle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Qwen2Config,
    Qwen2ForCausalLM,
    Qwen3Config,
    Qwen3ForCausalLM,
)

from checkpoint_converters import load_checkpoint
from trtspec.models.causal_lm import CausalLM

from ..checkpoints.tiny_gguf import (
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INNER,
    KV_HEADS,
    TYPES,
    VOCAB,
    Stored,
    TinyGguf,
    decoder_metadata,
    gguf_name,
    random_tensor,
    side_by_side,
)
from .paged import Feed, PagedModel

PROMPT = torch.randint(VOCAB, (48,), generator=torch.Generator().manual_seed(1)).tolist()
CLASSES: dict[str, tuple[Any, Any]] = {
    "llama": (LlamaConfig, LlamaForCausalLM),
    "qwen2": (Qwen2Config, Qwen2ForCausalLM),
    "qwen3": (Qwen3Config, Qwen3ForCausalLM),
}
LLAMA_3 = {
    "factor": 32.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 8192,
}


@dataclass(frozen=True)
class Case:
    """``kinds``: types of the matrices, in turn. ``options`` of transformers' config, and what a
    converter writes of them: ``said`` behind the architecture, and ``factors``."""

    architecture: str
    kinds: tuple[str, ...]
    options: dict[str, Any] = field(default_factory=dict)
    said: dict[str, Any] = field(default_factory=dict)
    factors: bool = False


def rope(kind: str, **values: Any) -> dict[str, Any]:
    return {"rope_parameters": {"rope_type": kind, "rope_theta": 10000.0, **values}}


CASES = {
    **{kind: Case("llama", (kind,)) for kind in TYPES},
    "qwen2, all types": Case("qwen2", TYPES, {"tie_word_embeddings": True}),
    "qwen3, all types": Case("qwen3", TYPES[::-1]),
    "biases": Case("llama", ("F16",), {"attention_bias": True, "mlp_bias": True}),
    "tied": Case("llama", ("F32",), {"tie_word_embeddings": True}),
    "llama3": Case("llama", ("Q8_0",), rope("llama3", **LLAMA_3), factors=True),
    "linear": Case(
        "llama",
        ("F32",),
        rope("linear", factor=3.0),
        {"rope__scaling__type": "linear", "rope__scaling__factor": 3.0},
    ),
    "an old linear one": Case(
        "llama", ("F32",), rope("linear", factor=3.0), {"rope__scale_linear": 3.0}
    ),
    "yarn": Case(
        "qwen3",
        ("F32",),
        rope("yarn", factor=4.0, original_max_position_embeddings=16),
        {
            "rope__scaling__type": "yarn",
            "rope__scaling__factor": 4.0,
            "rope__scaling__original_context_length": 16,
        },
    ),
}


def hugging_face(case: Case) -> PreTrainedModel:
    config, model = CLASSES[case.architecture]
    sizes = {
        "vocab_size": VOCAB,
        "hidden_size": HIDDEN,
        "intermediate_size": INNER,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "max_position_embeddings": 128,
        "rms_norm_eps": 1e-5,
        "attn_implementation": "eager",
    }
    if case.architecture == "qwen2":  # its heads share the width
        sizes["head_dim"] = HIDDEN // HEADS
    found: PreTrainedModel = model(config(**sizes, **case.options)).eval()
    return found


def write(case: Case, hf: PreTrainedModel, file: Path) -> None:
    """A file of random tensors, and the model filled with them."""
    random, kinds = np.random.default_rng(len(case.said)), cycle(case.kinds)
    said = dict(case.said)
    if case.architecture == "qwen2":
        said |= dict.fromkeys(("attention__key_length", "attention__value_length"))
    written = TinyGguf(decoder_metadata(case.architecture, **said), {}, case.architecture)
    for name, parameter in hf.named_parameters():
        kind = next(kinds) if parameter.dim() == 2 else "F32"
        tensor = random_tensor(kind, parameter.shape, random)
        if name.endswith("norm.weight"):
            tensor = Stored("F32", tensor.raw + np.float32(1))
        written.tensors[gguf_name(case.architecture, name)] = tensor
        values = tensor.values
        for part, heads in (("q_proj", HEADS), ("k_proj", KV_HEADS)):
            if part in name and case.architecture == "llama":
                values = torch.empty_like(values).index_copy_(
                    0, side_by_side(len(values), heads), values
                )
        parameter.data.copy_(values)
    if case.factors:
        values = [8192 / (2 * math.pi * 10000 ** (2 * i / HEAD_DIM)) for i in range(HEAD_DIM // 2)]
        kept = [min(max((turns - 1) / 3, 0.0), 1.0) for turns in values]
        factors = np.array([1 / (k + (1 - k) / 32) for k in kept], np.float32)
        written.tensors["rope_freqs.weight"] = Stored("F32", factors)
    written.write(file)


@pytest.mark.parametrize("name", CASES)
def test_logits(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    hf = hugging_face(case)
    write(case, hf, tmp_path / "model.gguf")
    checkpoint = load_checkpoint(tmp_path / "model.gguf")
    assert set(checkpoint.ignored) == ({"rope_freqs.weight"} if case.factors else set())
    dtypes = {"F32": "float32", "F16": "float16"}
    expected_dtype = dtypes.get(case.kinds[0], "bfloat16") if len(case.kinds) == 1 else "bfloat16"
    assert checkpoint.config.dtype == expected_dtype
    ours = CausalLM(checkpoint.config, torch.float32)
    for buffer in ours.layers.buffers():
        buffer.fill_(float("nan"))  # whatever stays unfilled shows
    ours.load_weights(checkpoint)
    with torch.no_grad():
        expected = hf(torch.tensor([PROMPT])).logits[0]
    found = PagedModel(ours).run({0: Feed(PROMPT, 0)})
    assert float(expected.std()) > 0.1
    torch.testing.assert_close(found, expected, rtol=0, atol=2e-5 * float(expected.abs().max()))
