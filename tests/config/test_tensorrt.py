from __future__ import annotations

from typing import Any

import pytest

from trtspec.config.build import BuildConfig
from trtspec.config.llm import LLMConfig
from trtspec.config.tensorrt import TensorRTConfig
from trtspec.errors import ConfigError


@pytest.mark.parametrize("text", ["8.9", "89", "sm89", "SM_89"])
def test_spellings_of_a_compute_capability(text: str) -> None:
    assert TensorRTConfig(compute_capability=text).compute_capability == "8.9"
    assert TensorRTConfig(compute_capability="12.0").compute_capability == "12.0"


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"compute_capability": "ada"}, "'ada' is not of the form 8.9"),
        ({"builder_optimization_level": 6}, "builder_optimization_level=6 must be between 0 and 5"),
        ({"profiling_verbosity": "detail"}, "'detail' is unknown; did you mean `detailed`"),
        ({"timing": 1}, "timing"),
    ],
)
def test_bad_values(options: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        TensorRTConfig(**options)


def test_bfloat16_needs_ampere() -> None:
    with pytest.raises(ConfigError, match=r"needs compute capability 8\.0, 7\.5 was asked"):
        TensorRTConfig(compute_capability="7.5").check_dtype("bfloat16")
    TensorRTConfig(compute_capability="7.5").check_dtype("float16")
    TensorRTConfig(compute_capability="12.0").check_dtype("bfloat16")


def test_options_need_the_backend() -> None:
    with pytest.raises(ConfigError, match="with backend 'aoti'; they need backend 'tensorrt'"):
        BuildConfig(tensorrt=TensorRTConfig(compute_capability="8.9"))
    config = BuildConfig(backend="tensorrt", tensorrt=TensorRTConfig(compute_capability="8.9"))
    assert BuildConfig.from_dict(config.to_dict()) == config


def test_options_of_an_llm() -> None:
    """As an object or its options, and only with the backend."""
    asked = {"compute_capability": "sm89", "strip_plan": True}
    for given in (asked, TensorRTConfig(**asked)):
        config = LLMConfig(backend="tensorrt", tensorrt_config=given).build_config()
        assert config.tensorrt == TensorRTConfig("8.9", strip_plan=True)
        assert config.tensorrt.refits_at_load
    assert not LLMConfig(backend="tensorrt").build_config().tensorrt.refits_at_load
    with pytest.raises(ConfigError, match="they need backend 'tensorrt'"):
        LLMConfig(tensorrt_config=asked).build_config()
    with pytest.raises(ConfigError, match="strip_plans"):
        LLMConfig(backend="tensorrt", tensorrt_config={"strip_plans": True})
