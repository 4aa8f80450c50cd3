"""MtpDecodingConfig: names of the method, lengths, trees and keys of other engines."""

from __future__ import annotations

from typing import Any

import pytest

from trtspec import MtpDecodingConfig
from trtspec.config.mtp_decoding import OWN_MODULES
from trtspec.config.speculative import parse_speculative_config, speculative_to_dict
from trtspec.errors import ConfigError

K3 = MtpDecodingConfig(max_draft_len=3)


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
        ({"num_speculative_tokens": 3, "use_mtp_vanilla": True}, "use_mtp_vanilla.*MTP-Eagle"),
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
