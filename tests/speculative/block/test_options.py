"""Speculative configs of DFlash and DDTree as users of TensorRT-LLM, vLLM and SGLang write them."""

from __future__ import annotations

import json
from typing import Any

import pytest

from trtspec.config.tree import TreeShape
from trtspec.errors import ConfigError
from trtspec.speculative.block.ddtree import DDTreeDecodingConfig
from trtspec.speculative.block.dflash import DFlashDecodingConfig
from trtspec.speculative.options import parse_speculative_config, speculative_to_dict


@pytest.mark.parametrize(
    "data",
    [
        {"method": "dflash", "model": "d", "num_speculative_tokens": 7, "parallel_drafting": True},
        {"decoding_type": "DFlash", "speculative_model": "d", "max_draft_len": 7,
         "mask_token_id": None, "target_layer_ids": None},
        {"speculative_algorithm": "DFLASH", "speculative_draft_model_path": "d",
         "speculative_num_draft_tokens": 8},
        {"speculative_algorithm": "DFLASH", "speculative_draft_model_path": "d",
         "speculative_dflash_block_size": 8},
    ],
)  # fmt: skip
def test_a_chain(data: dict[str, Any]) -> None:
    config = parse_speculative_config(data)
    assert isinstance(config, DFlashDecodingConfig)
    assert config.tree == TreeShape(1, 7, 8)
    assert parse_speculative_config(json.loads(json.dumps(speculative_to_dict(config)))) == config


@pytest.mark.parametrize(
    "data",
    [
        {"num_speculative_tokens": 7, "num_draft_tokens": 32},
        {"num_speculative_tokens": 7, "tree_budget": 31},
        {"block_size": 8, "max_total_draft_tokens": 31},
    ],
)
def test_a_tree(data: dict[str, Any]) -> None:
    config = parse_speculative_config({"method": "DDTree", "model": "d", **data})
    assert isinstance(config, DDTreeDecodingConfig)
    assert config.tree == TreeShape(31, 7, 32)
    assert config.draft_method == "dflash"
    assert parse_speculative_config(json.loads(json.dumps(speculative_to_dict(config)))) == config
    assert DDTreeDecodingConfig.of_tree("d", config.tree).tree == config.tree


def test_jetspec() -> None:
    """In its own words, of which the budget counts the root."""
    data = {"method": "JetSpec", "model": "d", "tree_depth": 15, "tree_width": 7, "budget": 256}
    config = parse_speculative_config(data)
    assert config is not None and config.tree == TreeShape(7, 15, 256)  # type: ignore[attr-defined]
    assert parse_speculative_config(json.loads(json.dumps(speculative_to_dict(config)))) == config


def test_other_trees() -> None:
    wide = {"method": "ddtree", "model": "d", "num_speculative_tokens": 7, "num_draft_tokens": 256}
    assert parse_speculative_config(wide).tree == TreeShape(64, 7, 256)  # type: ignore
    assert parse_speculative_config({**wide, "topk": 8}).tree == TreeShape(8, 7, 256)  # type: ignore
    static = {"method": "dflash", "model": "d", "choices": "[[0],[1],[0,0]]"}
    assert parse_speculative_config(static).tree == TreeShape.static([[0], [1], [0, 0]])  # type: ignore


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "missing option `max_draft_len`"),
        ({"num_speculative_tokens": 5, "mask_token_id": 7}, "the draft's config.json says it"),
        ({"num_speculative_tokens": 5, "eagle_choices": [[0]]}, "write the paths as choices"),
        ({"num_speculative_tokens": 9, "block_size": 8}, "do not fit a block of block_size=8"),
        ({"block_size": 1}, "block_size=1 counts the root"),
    ],
)
def test_refusals(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_speculative_config({"method": "dflash", "model": "d", **data})


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({"num_speculative_tokens": 5}, "ddtree needs the number of nodes to verify"),
        ({"num_speculative_tokens": 5, "num_draft_tokens": 1}, "must be between 1 and 1023"),
        ({"num_draft_tokens": 16}, "missing option `max_draft_len`"),
        (
            {"num_speculative_tokens": 5, "num_draft_tokens": 16, "tree_budget": 16},
            "max_total_draft_tokens=16 was given, but num_draft_tokens=16 means",
        ),
    ],
)
def test_refusals_of_trees(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_speculative_config({"method": "ddtree", "model": "d", **data})
