"""The configs of PARD and P-EAGLE, in the words of vLLM and TensorRT-LLM."""

from __future__ import annotations

from typing import Any

import pytest

from trtspec import PardDecodingConfig, PEagleDecodingConfig
from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.errors import ConfigError
from trtspec.speculative.eagle.options import Eagle3DecodingConfig
from trtspec.speculative.options import parse_speculative_config, speculative_to_dict
from trtspec.speculative.registry import method_name

PARD = {"method": "pard", "model": "d", "num_speculative_tokens": 8}
P_EAGLE = {"method": "p_eagle", "model": "d", "num_speculative_tokens": 8}


@pytest.mark.parametrize(
    "data",
    [
        PARD,
        {"method": "PARD", "speculative_model": "d", "max_draft_len": 8, "sa_config": None},
        {"decoding_type": "PARD", "speculative_model_dir": "d", "max_draft_len": 8,
         "mask_token_id": None},
        {"method": "draft_model", "model": "d", "num_speculative_tokens": 8,
         "parallel_drafting": True, "enforce_eager": True, "quantization": None},
        {"model": "d", "num_speculative_tokens": 8, "parallel_drafting": True},
        {**PARD, "parallel_drafting": True, "topk": 1, "num_draft_tokens": 9},
    ],
)  # fmt: skip
def test_spellings_of_pard(data: dict[str, Any]) -> None:
    config = parse_speculative_config(data)
    assert config == PardDecodingConfig(model="d", max_draft_len=8)
    assert isinstance(config, PardDecodingConfig)
    assert (config.topk, config.num_draft_tokens, config.num_rows) == (1, 9, 9)
    assert parse_speculative_config(speculative_to_dict(config)) == config


@pytest.mark.parametrize(
    "data",
    [
        *({**P_EAGLE, "method": name} for name in ("p_eagle", "peagle", "P-EAGLE", "PEagle")),
        {**P_EAGLE, "method": "eagle3", "parallel_drafting": True, "draft_model": "d"},
        {"speculative_algorithm": "EAGLE3", "speculative_draft_model_path": "d",
         "speculative_num_steps": 8, "parallel_drafting": True},
    ],
)  # fmt: skip
def test_spellings_of_p_eagle(data: dict[str, Any]) -> None:
    config = parse_speculative_config(data)
    assert config == PEagleDecodingConfig(model="d", max_draft_len=8)
    assert parse_speculative_config(speculative_to_dict(config)) == config


@pytest.mark.parametrize("base", [PARD, P_EAGLE])
def test_trees(base: dict[str, Any]) -> None:
    dynamic = parse_speculative_config({**base, "topk": 4, "num_draft_tokens": 20})
    assert isinstance(dynamic, TreeDecodingConfig)
    assert (dynamic.use_dynamic_tree, dynamic.topk, dynamic.num_draft_tokens) == (True, 4, 20)
    static = {k: v for k, v in base.items() if k != "num_speculative_tokens"}
    for choices in ([[0], [1], [1, 0]], "[[0],[1],[1,0]]"):
        config = parse_speculative_config({**static, "eagle_choices": choices})
        assert isinstance(config, TreeDecodingConfig)
        assert (config.topk, config.max_draft_len, config.num_draft_tokens) == (2, 2, 4)
        assert parse_speculative_config(speculative_to_dict(config)) == config
        assert type(config).of_tree("d", config.tree).tree == config.tree


def test_names() -> None:
    assert method_name("P-EAGLE") == method_name("p_eagle") == "p_eagle"
    assert method_name("Pard") == "pard"


def test_off_is_the_plain_method() -> None:
    data = {**P_EAGLE, "method": "eagle3", "parallel_drafting": False}
    assert isinstance(parse_speculative_config(data), Eagle3DecodingConfig)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({**PARD, "parallel_drafting": False}, "the method says so"),
        ({**P_EAGLE, "method": "eagle", "parallel_drafting": True}, "eagle3 into p_eagle"),
        ({"method": "ngram", "num_speculative_tokens": 3, "parallel_drafting": True}, "into pard"),
        ({"method": "pard", "model": "d"}, "missing option `max_draft_len`"),
        ({"method": "pard", "num_speculative_tokens": 3}, "missing option `speculative_model`"),
        ({**PARD, "mask_token_id": -1}, "mask_token_id=-1 must not be negative"),
        ({**PARD, "sa_config": {"threshold": 4}}, "not mixed"),
        ({**PARD, "vocabulary": ""}, "vocabulary is an empty path"),
        ({**PARD, "prompt_lookup_max": 3}, "ngram"),
        ({**PARD, "eagle_choices": [[0], [0, 0]]}, "choices make a tree of max_draft_len=2"),
        ({**PARD, "use_dynamic_tree": True}, "is a chain"),
        ({**PARD, "draft_sample_method": "greedy"}, "coupled"),
        ({**P_EAGLE, "num_eagle_layers": 4}, "how many layers it has"),
        ({**P_EAGLE, "mask_tokens": 4}, "did you mean `mask_token_id`"),
    ],
)
def test_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_speculative_config(data)


def test_class_of_a_plain_draft() -> None:
    """The class itself cannot turn into another one."""
    with pytest.raises(ConfigError, match="makes draft_model into pard and eagle3 into p_eagle"):
        Eagle3DecodingConfig(model="d", max_draft_len=3, parallel_drafting=True)  # type: ignore
