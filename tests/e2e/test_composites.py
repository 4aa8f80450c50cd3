"""The language model of a composite checkpoint writes transformers' text; its towers are listed."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as hf
from transformers import PreTrainedModel

from checkpoint_converters import load_checkpoint

from .families import SIZES, VOCAB
from .helpers import PARAMS_40, TinyModels, ngram, open_llm, random_prompt, tokens

_TOWER = {"hidden_size": 32, "intermediate_size": 32, "num_attention_heads": 2, "image_size": 28}
_PATCHES = {**_TOWER, "num_hidden_layers": 1, "patch_size": 14}
_GEMMA4_TOWER = {key: value for key, value in _PATCHES.items() if key != "image_size"}
_QWEN = {"depth": 1, "hidden_size": 32, "intermediate_size": 32, "num_heads": 2}
_QWEN_TOWER = {**_QWEN, "out_hidden_size": 64}
_MROPE = {"rope_type": "default", "rope_theta": 10000.0, "mrope_section": [2, 3, 3]}
_TEXT = {key: value for key, value in SIZES.items() if key != "attn_implementation"}
_HEADS = {**_TEXT, "head_dim": 16}
_HYBRID = {
    **_HEADS,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 4,
    "linear_key_head_dim": 12,
    "linear_value_head_dim": 20,
    "rope_parameters": {
        **_MROPE,
        "mrope_section": [1, 1, 0],
        "mrope_interleaved": True,
        "partial_rotary_factor": 0.25,
    },
}

COMPOSITES: dict[str, Callable[[], PreTrainedModel]] = {
    "gemma3": lambda: hf.Gemma3ForConditionalGeneration(
        hf.Gemma3Config(
            text_config={**_HEADS, "sliding_window": 9, "sliding_window_pattern": 2},
            vision_config=_PATCHES,
            mm_tokens_per_image=4,
        )
    ),
    "gemma4": lambda: hf.Gemma4ForConditionalGeneration(
        hf.Gemma4Config(
            text_config={
                **_TEXT,
                "head_dim": 24,
                "global_head_dim": 32,
                "sliding_window": 9,
                "num_kv_shared_layers": 2,
                "layer_types": ["sliding_attention", "full_attention"] * 2,
                "hidden_size_per_layer_input": 12,
                "vocab_size_per_layer_input": VOCAB,
            },
            vision_config={**_GEMMA4_TOWER, "num_key_value_heads": 2, "head_dim": 16},
        )
    ),
    "mistral3": lambda: hf.Mistral3ForConditionalGeneration(
        hf.Mistral3Config(
            text_config={**_HEADS, "model_type": "mistral", "sliding_window": None},
            vision_config={**_PATCHES, "model_type": "pixtral"},
        )
    ),
    "qwen2_5_vl": lambda: hf.Qwen2_5_VLForConditionalGeneration(
        hf.Qwen2_5_VLConfig(
            text_config={**_TEXT, "rope_parameters": _MROPE}, vision_config=_QWEN_TOWER
        )
    ),
    "qwen3_vl": lambda: hf.Qwen3VLForConditionalGeneration(
        hf.Qwen3VLConfig(
            text_config={**_HEADS, "rope_parameters": {**_MROPE, "mrope_interleaved": True}},
            vision_config={**_QWEN_TOWER, "deepstack_visual_indexes": [0]},
        )
    ),
    "qwen3_5": lambda: hf.Qwen3_5ForConditionalGeneration(
        hf.Qwen3_5Config(text_config=_HYBRID, vision_config=_QWEN_TOWER)
    ),
    "qwen3_5_moe": lambda: hf.Qwen3_5MoeForConditionalGeneration(
        hf.Qwen3_5MoeConfig(
            text_config={
                **_HYBRID,
                "num_experts": 6,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 40,
                "shared_expert_intermediate_size": 48,
            },
            vision_config=_QWEN_TOWER,
        )
    ),
}


def composite_model(case: str) -> PreTrainedModel:
    torch.manual_seed(3)
    model = COMPOSITES[case]().eval()
    model.generation_config.eos_token_id = None
    model.config.text_config.eos_token_id = None
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2 and "layers" in name:
                weight.normal_(std=0.125)
            elif "norm" not in name and weight.dim() == 2:
                weight.normal_(std=0.3)
            elif weight.dim() == 1:
                weight.uniform_(0.2, 0.9)
    return model


@pytest.mark.parametrize("case", COMPOSITES)
def test_text_only(case: str, tmp_path: Path) -> None:
    models = TinyModels(tmp_path)
    models.hf = cache(composite_model)
    folder = models.folder(case)
    ignored = load_checkpoint(folder).ignored
    assert ignored and all("vis" in name or "projector" in name for name in ignored)
    prompts = [random_prompt(4, 30, VOCAB), random_prompt(5, 6, VOCAB) * 3]
    expected = [models.greedy(case, prompt, 40) for prompt in prompts]
    options: dict[str, Any] = {"max_num_tokens": 16}
    with open_llm(folder, ngram(4), **options) as llm:
        assert tokens(llm.generate(prompts, PARAMS_40)) == expected
