"""GGUF files of every family that llama.cpp runs write transformers' text in float32."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint_converters import read_config
from trtspec.config.layer import Layers
from trtspec.config.model import ModelConfig
from trtspec.errors import CheckpointError
from trtspec.models.rope import inverse_frequencies

from .families import VOCAB, family_model
from .family_files import CONVERSIONS, write_family
from .helpers import GREEDY_24, TinyModels, ngram, open_llm, random_prompt, tokens

PROMPTS = [random_prompt(1, 30, VOCAB), random_prompt(2, 6, VOCAB) * 4]


# Fused tensors, in blocks too.
CASES = [
    *((case, "F32", {}) for case in CONVERSIONS),
    ("phi3", "Q8_0", {"intermediate_size": 96}),
    ("qwen3_5", "Q8_0", {"intermediate_size": 96, "linear_value_head_dim": 32}),
    ("granite_hybrid", "Q8_0", {"shared_intermediate_size": 96}),
    (
        "granite_hybrid_moe",
        "Q8_0",
        {
            "shared_intermediate_size": 96,
            "intermediate_size": 32,
            "position_embedding_type": "nope",
        },
    ),
    (
        "qwen3_5_moe",
        "Q8_0",
        {
            "moe_intermediate_size": 32,
            "shared_expert_intermediate_size": 64,
            "linear_value_head_dim": 32,
        },
    ),
    ("gemma4", "F32", {"vocab_size_per_layer_input": VOCAB + 30}),
    ("gemma4", "Q8_0", {"intermediate_size": 96, "hidden_size_per_layer_input": 32}),
]


@pytest.mark.parametrize(("case", "kind", "changes"), CASES)
def test_text_of_a_file(case: str, kind: str, changes: dict[str, Any], tmp_path: Path) -> None:
    models = TinyModels(tmp_path)
    said = {**CONVERSIONS[case].changes, **changes}
    models.hf = cache(lambda name: family_model(name, **said))
    file = write_family(case, models.hf(case), tmp_path / "model.gguf", kind)
    assert_same_shape(read_config(file), read_config(models.folder(case)))
    expected = [models.greedy(case, prompt, 24) for prompt in PROMPTS]
    length = models.hf(case).config.max_position_embeddings
    with open_llm(file, ngram(4), weight_dtype="float32", max_seq_len=length) as llm:
        assert tokens(llm.generate(PROMPTS, GREEDY_24, use_tqdm=False)) == expected


def in_turn(layers: Layers) -> Layers:
    """With value heads in the order of checkpoints that are no files."""
    tiled = [getattr(layer.mixer, "tiled", False) for layer in layers]
    pairs = zip(layers, tiled, strict=True)
    return Layers.of(layer.with_mixer(tiled=False) if mark else layer for layer, mark in pairs)


def assert_same_shape(found: ModelConfig, expected: ModelConfig) -> None:
    """What greedy text does not show, too: scales and caps of logits, factors of rotations."""
    assert found.architecture == expected.architecture
    assert (in_turn(found.layers), found.norm) == (expected.layers, expected.norm)
    assert (found.embedding, found.head) == (expected.embedding, expected.head)
    for ours, theirs in zip(found.ropes, expected.ropes, strict=True):
        frequencies, factor = inverse_frequencies(ours, 12)
        their_frequencies, their_factor = inverse_frequencies(theirs, 12)
        assert torch.equal(frequencies, their_frequencies)
        assert factor == pytest.approx(their_factor, rel=1e-6)


BAD: list[tuple[str, dict[str, Any], str]] = [
    (
        "cohere2",
        {"attention.sliding_window_pattern": [1, 0]},
        r"\[1, 0\], neither a number nor a",
    ),
    ("granite", {"rope.scaling.finetuned": False}, "finetuned is False: layers without rope"),
    (
        "granite_hybrid",
        {"attention.head_count_kv": [0, 2, 1, 0]},
        r"\[0, 2, 1, 0\]; supported: one number for layers with attention, 0 for the others",
    ),
    (
        "glm4",
        {"rope.dimension_sections": [1, 1, 2, 0]},
        r"sections is \[1, 1, 2, 0\], which",
    ),
    ("glm4", {"nextn_predict_layers": 1}, "nextn_predict_layers is 1, which is not supported"),
    ("qwen3_5", {"full_attention_interval": 0}, "full_attention_interval is 0; it must be at"),
    ("glm", {"rope.dimension_count": 18}, "rope.dimension_count is 18; heads have 16"),
    ("gemma", {"attention.sliding_window": 9}, "attention.sliding_window is 9, which is not supp"),
    ("gemma4", {"attention.head_count_kv": [2, 2]}, r"\[2, 2\], neither a number nor a list of 6"),
    (
        "gemma4",
        {"attention.head_count_kv": [2, 2, 1, 2, 2, 2]},
        r"\[2, 2, 1, .*: one number for each kind",
    ),
    (
        "gemma4",
        {"feed_forward_length": [88] * 3 + [100] * 3},
        "feed_forward_length is 100 in layers that share K and V, 88 in others",
    ),
    ("gemma4", {"rope.dimension_count_swa": 12}, "dimension_count_swa is 12, heads have 24; supp"),
    ("gemma4", {"expert_count": 4}, "expert_count is 4, which is not supported; supported: 0"),
    ("gemma2", {"rope.dimension_count": 12}, "dimension_count is 12, heads have 24; supported: t"),
]


@pytest.mark.parametrize(("case", "more", "message"), BAD)
def test_refused_by_key_and_value(
    case: str, more: dict[str, Any], message: str, tmp_path: Path
) -> None:
    file = write_family(case, family_model(case), tmp_path / "model.gguf", more=more)
    with pytest.raises(CheckpointError, match=message):
        read_config(file)
