"""Speculative configs of Medusa as users of TensorRT-LLM and vLLM write them, and its trees."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest

from trtspec.config.tree import TreeShape, check_choices
from trtspec.config.typical_acceptance import TypicalAcceptanceConfig
from trtspec.errors import ConfigError
from trtspec.speculative.medusa.choices import LEAST_CHANCE, _chance, default_choices
from trtspec.speculative.medusa.options import MedusaDecodingConfig
from trtspec.speculative.options import parse_speculative_config, speculative_to_dict

MEDUSA = {"method": "medusa", "model": "d"}
CHOICES = ((0,), (1,), (0, 0), (0, 1), (0, 0, 0))


def parse(**options: Any) -> MedusaDecodingConfig:
    config = parse_speculative_config({**MEDUSA, **options})
    assert isinstance(config, MedusaDecodingConfig)
    assert parse_speculative_config(json.loads(json.dumps(speculative_to_dict(config)))) == config
    return config


def test_the_default_tree() -> None:
    config = parse(num_medusa_heads=4)
    assert config.tree == TreeShape.static(default_choices(4))
    assert config.medusa_choices == default_choices(4)
    assert (config.max_draft_len, config.num_rows) == (4, len(default_choices(4)) + 1)
    assert parse(num_speculative_tokens=4).tree == config.tree
    assert parse(num_medusa_heads=5, num_steps=4).tree == config.tree
    assert config.typical_acceptance is None


@pytest.mark.parametrize(
    "data",
    [
        {"decoding_type": "Medusa", "max_draft_len": 63, "num_medusa_heads": 4,
         "speculative_model_dir": "d", "medusa_choices": None},
        {"method": "medusa", "model": "d", "num_medusa_heads": 4, "num_draft_tokens": 64},
        {"method": "Medusa", "model": "d", "num_speculative_tokens": 4,
         "max_total_draft_tokens": 63, "posterior_threshold": None},
    ],
)  # fmt: skip
def test_a_tree_of_a_size(data: dict[str, Any]) -> None:
    config = parse_speculative_config(data)
    assert isinstance(config, MedusaDecodingConfig)
    assert config.tree == TreeShape.static(default_choices(4, 63))
    assert config.num_rows == 64


@pytest.mark.parametrize("choices", [CHOICES, [list(p) for p in reversed(CHOICES)], "text"])
@pytest.mark.parametrize("more", [{}, {"max_draft_len": 3}, {"max_draft_len": 5}])
def test_choices(choices: Any, more: dict[str, Any]) -> None:
    """TensorRT-LLM's max_draft_len counts nodes; ours is the depth. Both are understood."""
    if choices == "text":
        choices = "[[0], [1], [0, 0], [0, 1], [0, 0, 0]]"
    config = parse(medusa_choices=choices, num_medusa_heads=5, **more)
    assert config.tree == TreeShape.static(CHOICES) and config.medusa_choices == CHOICES
    assert config.max_draft_len == 3


def test_chains_and_dynamic_trees() -> None:
    assert parse(num_medusa_heads=4, topk=1).tree == TreeShape(1, 4, 5)
    assert parse(num_medusa_heads=4, topk=1).medusa_choices is None
    assert parse(num_speculative_tokens=3, topk=4, num_draft_tokens=20).tree == TreeShape(4, 3, 20)
    assert parse(num_speculative_tokens=3, use_dynamic_tree=True, topk=4).tree == TreeShape(
        4, 3, 13
    )


def test_lossy_only_by_name() -> None:
    lossy = parse(num_medusa_heads=4, lossy_typical_acceptance={}).typical_acceptance
    assert lossy == TypicalAcceptanceConfig(0.09, 0.3)
    given = {"posterior_threshold": 0.2, "posterior_alpha": 0.5}
    lossy = parse(num_medusa_heads=4, lossy_typical_acceptance=given).typical_acceptance
    assert lossy == TypicalAcceptanceConfig(0.2, 0.5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "missing option `num_medusa_heads`.*for example 4.*medusa_choices"),
        ({"num_medusa_heads": 0}, "num_medusa_heads=0 must be at least 1"),
        ({"medusa_choices": CHOICES, "num_medusa_heads": 2}, "is 3 deep.*num_medusa_heads=2"),
        ({"medusa_choices": CHOICES, "max_draft_len": 4}, "max_draft_len=4 was given, .* of max"),
        ({"medusa_choices": []}, "medusa_choices is empty"),
        ({"medusa_choices": "mc_sim_7b_63"}, "medusa_choices='mc_sim_7b_63' is not JSON"),
        ({"medusa_choices": [[0], [1, 0]]}, r"medusa_choices path \[1, 0\] has no parent"),
        ({"medusa_choices": CHOICES, "use_dynamic_tree": True}, "medusa_choices fix one"),
        ({"eagle_choices": CHOICES}, "write the paths as medusa_choices"),
        ({"num_medusa_heads": 4, "num_draft_tokens": 4}, "4 rows cannot hold .* through 4 heads"),
        ({"num_medusa_heads": 4, "num_draft_tokens": 9, "max_total_draft_tokens": 9},
         "num_draft_tokens=9 means max_total_draft_tokens=8"),
        ({"num_medusa_heads": 4, "max_draft_len": 63, "num_draft_tokens": 63},
         "max_draft_len means num_draft_tokens=64"),
        ({"num_medusa_heads": 4, "posterior_threshold": 0.09}, "write lossy_typical_acceptance"),
        ({"num_medusa_heads": 4, "typical_acceptance_sampler_posterior_alpha": 0.3},
         "write lossy_typical_acceptance"),
        ({"num_medusa_heads": 4, "acceptance_method": "typical_acceptance_sampler"},
         "write lossy_typical_acceptance"),
        ({"num_medusa_heads": 4, "lossy_typical_acceptance": {"posterior_alpha": 0}},
         "posterior_alpha=0.0 must be above 0"),
        ({"num_medusa_heads": 4, "lossy_typical_acceptance": {"threshold": 0.1}},
         "unknown option `threshold`"),
        ({"num_medusa_heads": 4, "lossy_typical_acceptance": {}, "simulate_acceptance": [0.5]},
         "both decide which drafts"),
        ({"num_medusa_heads": 4, "token_map": "m.pt"}, "vocabulary is used whole"),
    ],
)  # fmt: skip
def test_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_speculative_config({**MEDUSA, **options})


def test_without_a_checkpoint() -> None:
    with pytest.raises(ConfigError, match="missing option `speculative_model`"):
        parse_speculative_config({"method": "medusa", "num_medusa_heads": 4})


@pytest.mark.parametrize("heads", [1, 2, 3, 5, 8])
def test_default_choices(heads: int) -> None:
    """All paths that are likely enough, and the one through all heads."""
    choices = default_choices(heads)
    assert check_choices(choices) == choices
    paths = itertools.chain(
        *(itertools.product(range(6), repeat=depth) for depth in range(1, min(heads, 4) + 1))
    )
    likely = {path for path in paths if _chance(path) >= LEAST_CHANCE}
    spine = {(0,) * depth for depth in range(1, heads + 1)}
    assert set(choices) == likely | spine


@pytest.mark.parametrize("nodes", [3, 4, 7, 20, 63])
def test_the_best_tree_of_a_size(nodes: int) -> None:
    """By exchange: no path left out is likelier than one inside, the spine apart."""
    choices = default_choices(3, nodes)
    assert check_choices(choices) == choices and len(choices) == nodes
    paths = itertools.chain(*(itertools.product(range(40), repeat=depth) for depth in (1, 2, 3)))
    left_out = max(_chance(path) for path in paths if path not in set(choices))
    spine = {(0,), (0, 0), (0, 0, 0)}
    assert all(_chance(path) >= left_out for path in set(choices) - spine)
