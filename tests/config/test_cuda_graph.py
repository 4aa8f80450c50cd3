"""CudaGraphConfig, and how an LLM's options choose it."""

from __future__ import annotations

from typing import Any

import pytest

from trtspec.config.cuda_graph import CudaGraphConfig
from trtspec.errors import ConfigError
from trtspec.llmapi.options import LLMConfig


@pytest.mark.parametrize(
    ("options", "limit", "sizes"),
    [
        ({}, 1, (1,)),
        ({}, 8, (1, 2, 4, 8)),
        ({}, 12, (1, 2, 4, 8, 12)),
        ({"max_batch_size": 3}, 12, (1, 2, 3)),
        ({"max_batch_size": 30}, 2, (1, 2)),
        ({"batch_sizes": [5, 1, 64, 5]}, 8, (1, 5)),
        ({"cudagraph_capture_sizes": [2]}, 8, (2,)),
        ({"batch_sizes": [16]}, 8, ()),
    ],
)
def test_sizes(options: dict[str, Any], limit: int, sizes: tuple[int, ...]) -> None:
    assert CudaGraphConfig.from_dict(options).sizes(limit) == sizes


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_sizes": []}, "one or more numbers"),
        ({"batch_sizes": [2, 0]}, r"batch_sizes=\[2, 0\]"),
        ({"max_batch_size": 0}, "max_batch_size=0"),
        ({"batch_sizes": [1], "max_batch_size": 4}, "not both"),
        ({"enable_paddings": True}, "did you mean `enable_padding`"),
    ],
)
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        CudaGraphConfig.from_dict(options)


@pytest.mark.parametrize(
    ("options", "cuda", "cpu"),
    [
        ({}, True, False),
        ({"cuda_graph_config": True}, True, True),
        ({"cuda_graph_config": False}, False, False),
        ({"cuda_graph_config": {"enable_padding": True}}, True, True),
        ({"enforce_eager": True}, False, False),
        ({"enforce_eager": True, "cuda_graph_config": False}, False, False),
    ],
)
def test_options_of_an_llm(options: dict[str, Any], cuda: bool, cpu: bool) -> None:
    """On a CPU there is padding only where it is asked for."""
    config = LLMConfig(**options)
    assert config.graph_config("cuda") == (CudaGraphConfig() if cuda else None)
    assert config.graph_config("cpu") == (CudaGraphConfig() if cpu else None)


def test_contradiction() -> None:
    with pytest.raises(ConfigError, match="enforce_eager=True runs without CUDA graphs"):
        LLMConfig(enforce_eager=True, cuda_graph_config={"batch_sizes": [1]})
