"""MtpDecodingConfig: names of the method, lengths, trees and keys of other engines."""

from __future__ import annotations

from typing import Any

import pytest

from trtspec import MtpDecodingConfig
from trtspec.errors import ConfigError
from trtspec.speculative.mtp.modules_shape import MtpModulesConfig
from trtspec.speculative.mtp.options import OWN_MODULES
from trtspec.speculative.mtp.shape import MtpConfig
from trtspec.speculative.options import parse_speculative_config, speculative_to_dict

from ...tiny_config import tiny_config

K3 = MtpDecodingConfig(max_draft_len=3)
DECODER = tiny_config("LlamaForCausalLM", 70, 16, 24, 1, 2, 1, 8, 1e-5, 64)
MODULE = MtpConfig(1, DECODER, 16, (2,), 70, norm_output=True, input_norms=True)


@pytest.mark.parametrize(
    "data",
    [
        {"method": "mtp", "num_speculative_tokens": 3},
        {"method": "deepseek_mtp", "num_speculative_tokens": 3},
        {"method": "mimo_mtp", "num_speculative_tokens": 3, "quantization": None},
        {"method": "qwen3_next_mtp", "num_speculative_tokens": 3, "model": None},
        {"method": "step3p5_mtp", "max_draft_len": 3, "index_share_for_mtp_iteration": False},
        {"decoding_type": "MTP", "num_nextn_predict_layers": 3},
        {"decoding_type": "MTP", "max_draft_len": 3, "use_mtp_vanilla": False,
         "mtp_eagle_one_model": True, "relaxed_topk": 1, "relaxed_delta": 0.0,
         "use_relaxed_acceptance_for_thinking": False, "begin_thinking_phase_token": 128798,
         "end_thinking_phase_token": 128799, "sa_config": None},
        {"decoding_type": "MTP_Eagle", "max_draft_len": 3},
        {"speculative_algorithm": "NEXTN", "speculative_num_steps": 3, "speculative_eagle_topk": 1,
         "speculative_num_draft_tokens": 4},
    ],
)  # fmt: skip
def test_spellings(data: dict[str, Any]) -> None:
    config = parse_speculative_config(data)
    assert isinstance(config, MtpDecodingConfig)
    for name in ("speculative_model", "max_draft_len", "topk", "num_draft_tokens", "eagle_choices"):
        assert getattr(config, name) == getattr(K3, name)
    assert parse_speculative_config(speculative_to_dict(config)) == config


@pytest.mark.parametrize("key", ["use_mtp_vanilla", "enable_multi_layer_eagle"])
def test_vanilla(key: str) -> None:
    config = parse_speculative_config({"method": "mtp", "num_speculative_tokens": 3, key: True})
    assert isinstance(config, MtpDecodingConfig) and config.use_mtp_vanilla is True
    assert parse_speculative_config(speculative_to_dict(config)) == config
    assert MtpDecodingConfig(max_draft_len=3).use_mtp_vanilla is None


@pytest.mark.parametrize(
    ("options", "count", "chosen", "message"),
    [
        ({"max_draft_len": 3}, 1, 0, None),
        ({"max_draft_len": 3}, 3, 3, "of 3 MTP modules each drafts at its own depth (3 of them)"),
        ({"max_draft_len": 2}, 3, 2, "as in TensorRT-LLM; with use_mtp_vanilla=False the first"),
        ({"num_nextn_predict_layers": 3}, 4, 3, "(3 of them)"),
        ({"eagle_choices": [[0], [0, 0]]}, 2, 2, "(2 of them)"),
        ({"max_draft_len": 3}, 2, 0, "the first one drafts at every depth: drafts of 3 steps are"),
        ({"max_draft_len": 3, "topk": 2}, 3, 0, "at every depth: the drafts are trees (topk=2)"),
        ({"max_draft_len": 4, "num_nextn_predict_layers": 2}, 4, 0, "deeper than 2 modules"),
        ({"max_draft_len": 3, "use_mtp_vanilla": False}, 3, 0, "use_mtp_vanilla is False"),
        ({"max_draft_len": 1, "use_mtp_vanilla": True}, 1, 1, "each of 1 MTP modules drafts"),
        ({"max_draft_len": 2, "use_mtp_vanilla": True}, 3, 2, "each of 2 MTP modules drafts"),
    ],
)
def test_which_modules_draft(
    options: dict[str, Any], count: int, chosen: int, message: str | None
) -> None:
    """``chosen`` of ``count`` modules, each at its depth; 0: the first one at every depth."""
    network, notes = MtpDecodingConfig(**options).network(MtpModulesConfig(MODULE, count))
    assert network == (MtpModulesConfig(MODULE, chosen) if chosen else MODULE)
    assert len(notes) == (message is not None)
    assert message is None or message in notes[0]


def test_too_few_modules() -> None:
    config = MtpDecodingConfig(max_draft_len=3, use_mtp_vanilla=True)
    with pytest.raises(ConfigError, match=r"3 steps take as many MTP modules.*has 2; lower.*to 2"):
        config.network(MtpModulesConfig(MODULE, 2))


@pytest.mark.parametrize("built", [MODULE, MtpModulesConfig(MODULE, 2)])
def test_the_modules_of_an_engine_are_fixed(built: Any) -> None:
    vanilla = built is not MODULE
    for same in (None, vanilla):
        MtpDecodingConfig(max_draft_len=2, use_mtp_vanilla=same).check_network(built)
    other = MtpDecodingConfig(max_draft_len=2, use_mtp_vanilla=not vanilla)
    with pytest.raises(ConfigError, match=f"use_mtp_vanilla={not vanilla} was asked for.*rebuild"):
        other.check_network(built)


def test_defaults_and_trees() -> None:
    assert (K3.speculative_model, K3.num_draft_tokens) == (OWN_MODULES, 4)
    tree = MtpDecodingConfig(num_steps=3, eagle_topk=4, num_draft_tokens=16, model="d")
    assert (tree.speculative_model, tree.topk, tree.num_rows) == ("d", 4, 16)
    static = MtpDecodingConfig(eagle_choices=[[0], [1], [0, 0]], num_nextn_predict_layers=1)
    assert (static.max_draft_len, static.num_draft_tokens) == (2, 4)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, "missing option `max_draft_len`"),
        ({"num_nextn_predict_layers": 0}, "num_nextn_predict_layers=0 must be at least 1"),
        (
            {"num_nextn_predict_layers": 2, "num_speculative_tokens": 3},
            "max_draft_len=3 is more than num_nextn_predict_layers=2 and no multiple.*at most 2",
        ),
        (
            {"num_speculative_tokens": 3, "use_mtp_vanilla": True, "topk": 2},
            r"use_mtp_vanilla=True.*trees \(topk=2\).*each path would need rows of its own.*False",
        ),
        (
            {"num_speculative_tokens": 4, "use_mtp_vanilla": True, "num_nextn_predict_layers": 2},
            "drafts of 4 steps are deeper than 2 modules",
        ),
        ({"num_speculative_tokens": 3, "use_relaxed_acceptance_for_thinking": True}, "lossless"),
        ({"num_speculative_tokens": 3, "prompt_lookup_max": 3}, "ngram"),
        ({"num_speculative_tokens": 3, "medusa_choices": [[0]]}, "eagle_choices"),
    ],
)
def test_refusals(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_speculative_config({"method": "mtp", **options})


@pytest.mark.parametrize(("layers", "depth"), [(4, 3), (2, 4), (1, 5), (3, 3)])
def test_depths_that_fit_a_number_of_modules(layers: int, depth: int) -> None:
    config = MtpDecodingConfig(num_nextn_predict_layers=layers, max_draft_len=depth)
    assert config.max_draft_len == depth
