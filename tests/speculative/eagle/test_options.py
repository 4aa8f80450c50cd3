"""Speculative configs of EAGLE as users of TensorRT-LLM, vLLM and SGLang write them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from trtspec.config.tree import TreeShape
from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.errors import ConfigError
from trtspec.speculative.draft_model.options import DraftTargetDecodingConfig
from trtspec.speculative.eagle.options import Eagle3DecodingConfig, EagleDecodingConfig
from trtspec.speculative.options import parse_speculative_config, speculative_to_dict

CHOICES = ((0,), (1,), (2,), (0, 0), (0, 1), (1, 0), (0, 0, 0))
EAGLE = {"method": "eagle", "model": "d"}


def parse(data: dict[str, Any]) -> TreeDecodingConfig:
    config = parse_speculative_config(data)
    assert isinstance(config, TreeDecodingConfig)
    assert parse_speculative_config(json.loads(json.dumps(speculative_to_dict(config)))) == config
    return config


@pytest.mark.parametrize(
    "data",
    [
        {"method": "eagle3", "model": "d", "num_speculative_tokens": 3},
        {
            "decoding_type": "Eagle3",
            "max_draft_len": 3,
            "speculative_model_dir": "d",
            "max_total_draft_tokens": 3,
            "use_dynamic_tree": False,
            "dynamic_tree_max_topK": None,
            "eagle_choices": None,
            "greedy_sampling": True,
            "posterior_threshold": None,
            "num_eagle_layers": None,
            "max_non_leaves_per_layer": None,
            "eagle3_one_model": True,
            "eagle3_layers_to_capture": None,
            "eagle3_model_arch": "llama3",
            "sa_config": None,
        },
        {
            "speculative_algorithm": "EAGLE3",
            "speculative_draft_model_path": "d",
            "speculative_num_steps": 3,
            "speculative_eagle_topk": 1,
            "speculative_num_draft_tokens": 4,
        },
    ],
)
def test_a_chain_of_the_three_worlds(data: dict[str, Any]) -> None:
    config = parse(data)
    assert config == Eagle3DecodingConfig(max_draft_len=3, speculative_model="d")
    assert config.tree == TreeShape(1, 3, 4)
    assert config.max_total_draft_tokens == 3 and not config.use_dynamic_tree


@pytest.mark.parametrize(
    "shape",
    [
        {"num_steps": 5, "eagle_topk": 4, "num_draft_tokens": 24},
        {
            "max_draft_len": 5,
            "use_dynamic_tree": True,
            "dynamic_tree_max_topK": 4,
            "max_total_draft_tokens": 23,
        },
        {"num_speculative_tokens": 5, "topk": 4, "num_draft_tokens": 24, "use_dynamic_tree": None},
        {"num_steps": 5, "topk": 4, "num_draft_tokens": 24, "max_total_draft_tokens": 23},
    ],
)
def test_a_dynamic_tree(shape: dict[str, Any]) -> None:
    config = parse({**EAGLE, **shape})
    assert isinstance(config, EagleDecodingConfig)
    assert config.tree == TreeShape(4, 5, 24)
    assert (config.num_steps, config.topk, config.num_rows) == (5, 4, 24)
    assert config.max_total_draft_tokens == 23 and config.use_dynamic_tree
    assert parse({**config_shape(config), "method": "draft_model"}).tree == config.tree


def config_shape(config: TreeDecodingConfig) -> dict[str, Any]:
    names = ("speculative_model", "num_steps", "topk", "num_draft_tokens")
    return {name: getattr(config, name) for name in names}


def test_rows_left_out() -> None:
    def rows(**shape: int) -> int:
        return parse({**EAGLE, **shape}).num_draft_tokens

    assert rows(num_steps=7) == 8
    assert rows(num_steps=7, topk=3) == 22
    assert rows(num_steps=60, topk=64) == 1024  # no more than a step can verify


@pytest.mark.parametrize("choices", [CHOICES, [list(p) for p in reversed(CHOICES)], "text"])
def test_a_static_tree(choices: Any) -> None:
    if choices == "text":
        choices = " [[0], [1],[2],[0,0],[0, 1],[1,0],[0,0,0]]"
    config = parse({**EAGLE, "eagle_choices": choices})
    assert config.tree == TreeShape.static(CHOICES)
    assert isinstance(config, EagleDecodingConfig) and config.eagle_choices == CHOICES
    assert (config.topk, config.max_draft_len, config.num_draft_tokens) == (3, 3, 8)
    assert (config.num_rows, config.max_total_draft_tokens) == (8, 7)
    assert not config.use_dynamic_tree
    shape = {"max_draft_len": 3, "topk": 3, "num_draft_tokens": 8, "max_total_draft_tokens": 7}
    assert parse({**EAGLE, "eagle_choices": choices, **shape}) == config


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"max_draft_len": 4}, "max_draft_len=4 was given, .* a tree of max_draft_len=3; leave it"),
        ({"topk": 2}, "topk=2 was given, .* of topk=3"),
        ({"topk": 1}, "topk=1 was given, .* of topk=3"),
        ({"num_draft_tokens": 7}, "num_draft_tokens=7 was given, .* of num_draft_tokens=8"),
        ({"max_total_draft_tokens": 8}, "max_total_draft_tokens=8 was given"),
        ({"use_dynamic_tree": True, "topk": 3}, "eagle_choices fix one"),
        ({"eagle_choices": [[0], [1, 0]]}, r"path \[1, 0\] has no parent: add \[1\]"),
        ({"eagle_choices": []}, "eagle_choices is empty"),
        ({"eagle_choices": [[0], "1"]}, r"`eagle_choices`\[1\] must be tuple"),
        ({"eagle_choices": [[0], [True]]}, r"`eagle_choices`\[1\]\[0\] must be int, got bool"),
        ({"eagle_choices": "[[0], [1,]]"}, "is not JSON"),
        ({"eagle_choices": "mc_sim_7b_63"}, "is not JSON"),
        ({"eagle_choices": "[0, 1]"}, "is not a list of lists of ranks"),
        ({"eagle_choices": "[[0.0]]"}, "is not a list of lists of ranks"),
        ({"eagle_choices": "[[0],[0]]"}, r"has the path \[0\] twice"),
        ({"eagle_choices": [[64]]}, "topk=65 must be between 1 and 64"),
        ({"simulate_acceptance": [0.5] * 4}, "has 4 rates; give 1 to 3"),
    ],
)
def test_choices_that_contradict(more: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_speculative_config({**EAGLE, "eagle_choices": CHOICES, **more})


TREE = {**EAGLE, "num_steps": 3, "topk": 4}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (EAGLE, "missing option `max_draft_len`.*write num_speculative_tokens.*example 5"),
        ({"method": "eagle3", "num_steps": 3}, "missing option `speculative_model`.*model"),
        ({**EAGLE, "num_steps": 0}, "max_draft_len=0 must be at least 1"),
        ({**EAGLE, "num_steps": 3, "topk": 0}, "topk=0 must be between 1 and 64"),
        ({**EAGLE, "num_steps": 3, "use_dynamic_tree": True}, "set dynamic_tree_max_topK"),
        ({**TREE, "num_draft_tokens": 0}, "num_draft_tokens=0 counts the root"),
        ({**TREE, "num_draft_tokens": 38}, r"38 - 1 = 37 > 4 \+ \(3 - 1\) \* 4\^2 = 36"),
        ({**TREE, "max_total_draft_tokens": 37}, r"38 - 1 = 37 > 4 \+ \(3 - 1\) \* 4\^2 = 36"),
        (
            {**TREE, "num_draft_tokens": 16, "max_total_draft_tokens": 16},
            "max_total_draft_tokens=16 was given, but num_draft_tokens=16 means "
            "max_total_draft_tokens=15",
        ),
        ({**EAGLE, "num_steps": 3, "num_draft_tokens": 6}, r"1 \+ \(3 - 1\) \* 1\^2 = 3"),
        ({**TREE, "model": "ngram"}, "is not a checkpoint"),
        ({**TREE, "num_eagle_layers": 4}, "config.json says how many layers"),
        ({**TREE, "max_non_leaves_per_layer": 10}, "topk bounds the nodes"),
        ({**TREE, "eagle3_layers_to_capture": [1, 5]}, "which of the target's layers"),
        ({**TREE, "eagle3_model_arch": "mistral_large3"}, "what network it is"),
        ({**TREE, "eagle3_one_model": 2}, "must be bool or None"),
        ({**TREE, "sa_config": {"threshold": 4}}, "suffix automaton"),
        ({**TREE, "disable_eagle_block_drop": True}, "its tokens and the next one"),
        ({**TREE, "posterior_threshold": 0.1}, "change the text"),
        ({**TREE, "medusa_choices": [[0]]}, "write the paths as eagle_choices"),
        ({**TREE, "speculative_token_map": ""}, "vocabulary is an empty path"),
        ({**TREE, "token_map": "a", "speculative_token_map": "b"}, "mean the same option"),
        ({**TREE, "eagle_top_k": 4}, "did you mean `eagle_topk`"),
    ],
)
def test_refused(data: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_speculative_config(data)


def test_token_map() -> None:
    for method, cls in (("eagle", EagleDecodingConfig), ("eagle3", Eagle3DecodingConfig)):
        config = parse({**TREE, "method": method, "token_map": "freq_32768.pt"})
        assert isinstance(config, cls) and config.vocabulary == "freq_32768.pt"
    path = Path("maps") / "freq.pt"
    named = EagleDecodingConfig(
        speculative_model=Path("d"), max_draft_len=1, speculative_token_map=path
    )
    assert (named.speculative_model, named.vocabulary) == ("d", str(path))


def test_methods_do_not_mix() -> None:
    """Equal shapes of different methods are different configs, and none is another's subclass."""
    made = [
        cls(speculative_model="d", max_draft_len=2)
        for cls in (EagleDecodingConfig, Eagle3DecodingConfig, DraftTargetDecodingConfig)
    ]
    for config in made:
        assert [isinstance(config, type(other)) for other in made].count(True) == 1
        assert [config == other for other in made].count(True) == 1
