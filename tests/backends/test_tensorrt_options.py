from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from trtspec.backends.base import NoOptions
from trtspec.backends.registry import backend_named
from trtspec.backends.tensorrt.options import TensorRTConfig
from trtspec.builder.resolve import resolve_build
from trtspec.config.build_config import BuildConfig
from trtspec.config.strict import to_dict
from trtspec.errors import ConfigError
from trtspec.llmapi.options import LLMConfig

from ..config.test_build import MODEL


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
        ({"paged_attention": True, "plugins": False}, "paged_attention is a plugin, and plugins="),
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


def resolved(options: Mapping[str, Any], backend: str = "tensorrt") -> Any:
    """What a build has in the end."""
    config = BuildConfig("float16", backend=backend, backend_options=options)
    build = resolve_build(config, MODEL)[0]
    assert BuildConfig.from_dict(build.to_dict()) == build
    return backend_named(backend).parse_options(build.backend_options)


def test_options_need_the_backend() -> None:
    """Unless they ask for nothing."""
    words = "options of TensorRT were given .* with backend 'aoti'; they need backend 'tensorrt'"
    for asked in ({"compute_capability": "8.9"}, {"plugins": True}, {"plugins": False}):
        with pytest.raises(ConfigError, match=words):
            resolved(asked, "aoti")
        assert resolved(asked) == TensorRTConfig(**asked)
    assert resolved(to_dict(TensorRTConfig()), "aoti") == NoOptions()
    with pytest.raises(ConfigError, match="unknown option `speed`"):
        resolved({"speed": 3}, "aoti")
    with pytest.raises(ConfigError, match="unknown option `strip_plans`; did you mean"):
        resolved({"strip_plans": True})
    with pytest.raises(ConfigError, match=r"'bfloat16' needs compute capability 8\.0"):
        build = BuildConfig("bf16", backend="tensorrt", backend_options={"compute_capability": "7"})
        resolve_build(replace(build, backend_options={"compute_capability": "7.5"}), MODEL)


def test_options_of_an_llm() -> None:
    """As an object or its options, by either name, and only with the backend."""
    asked = {"compute_capability": "sm89", "strip_plan": True}
    for name in ("backend_options", "tensorrt_config"):
        for given in (asked, TensorRTConfig(**asked)):
            config = LLMConfig(backend="tensorrt", **{name: given}).build_config()
            options = resolved(config.backend_options)
            assert options == TensorRTConfig("8.9", strip_plan=True) and options.refits_at_load
    assert not resolved(LLMConfig(backend="tensorrt").build_config().backend_options).refits_at_load
    with pytest.raises(ConfigError, match="backend_options must be a mapping of options, got int"):
        LLMConfig(tensorrt_config=3)


def test_other_options_than_an_engine_has() -> None:
    """Defaults ask for nothing, and plugins that were not asked for are what the build chose."""
    built = TensorRTConfig("8.9", strip_plan=True, plugins=True)
    differ = backend_named("tensorrt").options_differ
    for asked in (TensorRTConfig(), built, replace(built, plugins=None)):
        assert not differ(asked, built)
    for asked in (replace(built, plugins=False), TensorRTConfig("8.9"), TensorRTConfig("8.6")):
        assert differ(asked, built)
