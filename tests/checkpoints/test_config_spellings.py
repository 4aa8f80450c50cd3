"""config.json in its spellings and defaults, against what transformers reads from the same file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoConfig

from checkpoint_converters import load_checkpoint, read_config
from trtspec.config.model import ModelConfig
from trtspec.config.rope import RopeConfig
from trtspec.errors import CheckpointError, ConfigError

from ..tiny_config import attention_of
from .tiny_folder import CONFIG, TinyFolder


def config_of(folder: Path, drop: tuple[str, ...] = (), **changes: Any) -> ModelConfig:
    values = {key: value for key, value in (CONFIG | changes).items() if key not in drop}
    (folder / "config.json").write_text(json.dumps(values))
    return read_config(folder)


LLAMA3 = {
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}


def test_transformers_4_and_5_spellings_agree(tmp_path: Path) -> None:
    old = config_of(tmp_path, rope_scaling={"rope_type": "llama3", **LLAMA3})
    new = config_of(
        tmp_path,
        drop=("rope_theta", "torch_dtype"),
        dtype="bfloat16",
        rope_parameters={"rope_type": "llama3", "rope_theta": 500.0, **LLAMA3},
    )
    assert old == new
    assert old.ropes[0] == RopeConfig(theta=500.0, type="llama3", **LLAMA3)  # type: ignore[arg-type]
    assert old.dtype == "bfloat16" and attention_of(old).head_dim == 4 and old.eos_token_ids == (2,)


@pytest.mark.parametrize(
    ("scaling", "rope"),
    [
        (None, {}),
        ({"type": "linear", "factor": 2}, {"type": "linear", "factor": 2.0}),
        (
            {"type": "yarn", "factor": 4.0, "finetuned": True},
            {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
        ),
        (
            {"rope_type": "yarn", "original_max_position_embeddings": 16, "factor": None},
            {"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16},
        ),
    ],
)
def test_rope_scaling(tmp_path: Path, scaling: Any, rope: dict[str, Any]) -> None:
    assert config_of(tmp_path, rope_scaling=scaling).ropes[0] == RopeConfig(theta=500.0, **rope)


@pytest.mark.parametrize(
    ("scaling", "usual"),
    [
        ({"type": "linear", "factor": 8.0}, 64),  # LLaMA-2-7B-32K says 32768, the length after it
        ({"type": "yarn", "factor": 4.0}, 64),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16}, 64),
        ({"type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}, 256),
        ({"type": "yarn", "factor": 2.5, "original_max_position_embeddings": 40}, 100),
        ({"rope_type": "llama3", **LLAMA3}, 64),
    ],
)
def test_nothing_is_stretched_twice(tmp_path: Path, scaling: Any, usual: int) -> None:
    """Only a length that is said to be that before the stretch is stretched."""
    assert config_of(tmp_path, rope_scaling=scaling).usual_sequence == usual


def test_rope_theta_defaults(tmp_path: Path) -> None:
    assert config_of(tmp_path, drop=("rope_theta",)).ropes[0].theta == 10000.0


@pytest.mark.parametrize(
    ("generation", "in_config", "expected"),
    [
        ({"eos_token_id": [7, 8, 7]}, 2, (7, 8)),
        ({"eos_token_id": 0}, 2, (0,)),
        ({"eos_token_id": None}, [3, 4], (3, 4)),
        ({}, None, ()),
        (None, 2, (2,)),
    ],
)
def test_eos(tmp_path: Path, generation: Any, in_config: Any, expected: tuple[int, ...]) -> None:
    if generation is not None:
        (tmp_path / "generation_config.json").write_text(json.dumps(generation))
    assert config_of(tmp_path, eos_token_id=in_config).eos_token_ids == expected


def test_dtype_comes_from_the_weights_when_the_config_is_silent(tmp_path: Path) -> None:
    folder = TinyFolder(tmp_path).drop("torch_dtype").write()
    assert read_config(folder).dtype == load_checkpoint(folder).config.dtype == "bfloat16"


@pytest.mark.parametrize("window", [{}, {"sliding_window": None}, {"sliding_window": 16}])
def test_mistral_window(tmp_path: Path, window: dict[str, Any]) -> None:
    names = {"architectures": ["MistralForCausalLM"], "model_type": "mistral"}
    config = config_of(tmp_path, **names, **window)
    theirs = AutoConfig.from_pretrained(tmp_path).sliding_window
    assert [layer.window for layer in config.layers] == [theirs or 0] * 2


@pytest.mark.parametrize("family", ["qwen2", "qwen3"])
@pytest.mark.parametrize(
    "window",
    [
        {},
        {"use_sliding_window": False, "sliding_window": 8, "max_window_layers": 0},
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 1},
        {"use_sliding_window": True, "sliding_window": 8, "max_window_layers": 2},
        {
            "use_sliding_window": True,
            "sliding_window": 8,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ],
)
def test_qwen_windows(tmp_path: Path, family: str, window: dict[str, Any]) -> None:
    names = {"architectures": [f"{family.title()}ForCausalLM"], "model_type": family}
    config = config_of(tmp_path, **names, **window)
    theirs = AutoConfig.from_pretrained(tmp_path)
    expected = [
        theirs.sliding_window if kind == "sliding_attention" else 0 for kind in theirs.layer_types
    ]
    assert [layer.window for layer in config.layers] == expected
    mixer = attention_of(config)
    assert bool(mixer.qk_norm) == (family == "qwen3") and mixer.bias == (family == "qwen2")
    assert mixer.head_dim == (128 if family == "qwen3" else 4)


def test_kv_heads_and_model_type_alone(tmp_path: Path) -> None:
    config = config_of(tmp_path, drop=("num_key_value_heads", "architectures"))
    assert attention_of(config).num_kv_heads == 4 and config.architecture == "LlamaForCausalLM"


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"architectures": ["GPT2LMHeadModel"]}, "'GPT2LMHeadModel'.*LlamaForCausalLM.*Qwen3"),
        ({"hidden_act": "gelu"}, "hidden_act 'gelu'.*silu"),
        ({"quantization_config": {"quant_method": "gptq"}}, "does not say bits; .* 4, 8"),
        ({"torch_dtype": "float64"}, "float64.*bfloat16"),
        ({"rope_scaling": {"type": "dynamic", "factor": 2.0}}, "'dynamic'.*default.*yarn"),
        ({"rope_scaling": {"rope_type": "dynamic"}}, "'dynamic'.*llama3"),
        ({"rope_scaling": {"type": "linear"}}, "does not say factor"),
        ({"rope_scaling": {"type": "linear", "factor": 2, "fator": 3}}, "unknown keys fator"),
        ({"rope_parameters": {"full_attention": {"rope_theta": 1.0}}}, "by layer type"),
        ({"rope_scaling": {"rope_type": "llama3", "factor": 8.0}}, "low_freq_factor"),
        ({"partial_rotary_factor": 0.5}, "partial_rotary_factor 0.5"),
        ({"num_hidden_layers": "two"}, "num_layers.*int.*'two'"),
        ({"num_hidden_layers": None}, "does not say num_hidden_layers"),
        ({"num_attention_heads": 3}, "16 is not a multiple of.*3"),
        ({"num_key_value_heads": 3}, "num_heads 4 .*num_kv_heads 3"),
        ({"eos_token_id": "</s>"}, "neither a token id nor a list"),
        ({"head_dim": 5}, "head_dim is 5"),
    ],
)
def test_refused_by_name(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        config_of(tmp_path, **changes)


def test_damaged_json(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_config(tmp_path)
    for damaged in ('{"vocab_size": ', "[" * 100_000):
        (tmp_path / "config.json").write_text(damaged)
        with pytest.raises(CheckpointError, match="cannot be read as JSON"):
            read_config(tmp_path)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(CheckpointError, match="holds a list"):
        read_config(tmp_path)
    with pytest.raises(CheckpointError, match="is not a folder"):
        read_config(tmp_path / "nowhere")


def test_config_round_trip(tmp_path: Path) -> None:
    names = {"architectures": ["Qwen2ForCausalLM"], "model_type": "qwen2"}
    config = config_of(
        tmp_path,
        **names,
        rope_scaling={"type": "yarn", "factor": 4.0},
        use_sliding_window=True,
        max_window_layers=1,
    )
    data = json.loads(json.dumps(config.to_dict()))
    assert ModelConfig.from_dict(data) == config
    with pytest.raises(ConfigError, match="vocab_sise"):
        ModelConfig.from_dict(data | {"vocab_sise": 3})
    data["layers"]["specs"][1]["mixer"]["windw"] = 3
    with pytest.raises(ConfigError, match=r"AttentionSpec: unknown option `windw`.*`window`"):
        ModelConfig.from_dict(data)
