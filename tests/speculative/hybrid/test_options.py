"""Configs of several methods that draft together."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from trtspec.config.tree_decoding import with_networks
from trtspec.errors import ConfigError
from trtspec.speculative.eagle.options import Eagle3DecodingConfig
from trtspec.speculative.hybrid.options import HybridDecodingConfig, over_drafts
from trtspec.speculative.mtp.options import MtpDecodingConfig
from trtspec.speculative.ngram.options import NGramDecodingConfig
from trtspec.speculative.options import parse_speculative_config, speculative_to_dict
from trtspec.speculative.suffix.options import SuffixDecodingConfig

SUFFIX = {"method": "suffix"}
NGRAM = {"method": "ngram", "num_speculative_tokens": 4}
EAGLE3 = {"method": "eagle3", "model": "e", "num_steps": 3, "topk": 2, "num_draft_tokens": 7}
DRAFT = {"method": "draft_model", "model": "d", "num_speculative_tokens": 5}
MEDUSA = {"method": "medusa", "model": "m", "num_medusa_heads": 3}


def parse(*drafters: Any, **options: Any) -> HybridDecodingConfig:
    config = parse_speculative_config({"method": "hybrid", "drafters": list(drafters), **options})
    assert isinstance(config, HybridDecodingConfig)
    assert parse_speculative_config(json.loads(json.dumps(speculative_to_dict(config)))) == config
    return config


def test_members_are_parsed_like_any_config() -> None:
    spelled = {"decoding_type": "Eagle3", "speculative_model_dir": "e", "max_draft_len": 3}
    config = parse(SUFFIX, NGramDecodingConfig(max_draft_len=4), spelled, {"model": "d", **CHAIN})
    assert [member.method for member in config.members] == [
        "suffix", "ngram", "eagle3", "draft_model",
    ]  # fmt: skip
    assert config.drafters[0] == SuffixDecodingConfig()
    assert [member.method for member in with_networks(config)] == ["eagle3", "draft_model"]
    assert with_networks(config.drafters[2]) == (config.drafters[2],)
    assert with_networks(config.drafters[0]) == with_networks(None) == ()
    assert HybridDecodingConfig(drafters=config.drafters) == config


CHAIN = {"num_speculative_tokens": 2}


def test_the_budget() -> None:
    """That of the largest, whatever it counts, unless given."""
    config = parse(NGRAM, EAGLE3)
    assert (config.num_draft_tokens, config.max_draft_len, config.num_rows) == (7, 4, 7)
    assert parse(SUFFIX, EAGLE3).num_draft_tokens == 25
    for options in (
        {"num_draft_tokens": 11},
        {"speculative_num_draft_tokens": 11},
        {"max_total_draft_tokens": 10},
        {"num_draft_tokens": 11, "max_total_draft_tokens": 10, "num_speculative_tokens": 4},
    ):
        given = parse(NGRAM, EAGLE3, **options)
        assert (given.num_rows, given.max_total_draft_tokens) == (11, 10)
    assert parse(NGRAM, EAGLE3, num_draft_tokens=None, topk=None, model=None) == config
    assert parse(NGRAM, EAGLE3, num_draft_tokens=2).num_rows == 2


def test_the_shortest_of_the_sequences() -> None:
    assert parse(NGRAM, {**EAGLE3, "max_model_len": 90}).max_model_len == 90
    assert parse(NGRAM, {**EAGLE3, "max_model_len": 90}, max_model_len=80).max_model_len == 80
    assert parse(NGRAM, EAGLE3).max_model_len is None


def test_the_drafts_of_an_engine() -> None:
    """Each network's folder in place of its checkpoint, whose head has been cut already."""
    static = {"method": "eagle", "model": "e1", "eagle_choices": [[0], [1], [0, 0]]}
    mtp = {"method": "mtp", "num_speculative_tokens": 2}
    config = parse({**EAGLE3, "token_map": "map.pt"}, SUFFIX, static, mtp, MEDUSA)
    recorded = over_drafts(config, ("draft", "draft_2", "draft_3", "draft_4"))
    assert recorded.drafters[0] == Eagle3DecodingConfig(
        speculative_model="draft", max_draft_len=3, topk=2, num_draft_tokens=7
    )
    assert recorded.drafters[1] == config.drafters[1]
    assert recorded.drafters[2:] == (
        replace(config.drafters[2], speculative_model="draft_2"),
        MtpDecodingConfig(speculative_model="draft_3", max_draft_len=2),
        replace(config.drafters[4], speculative_model="draft_4"),
    )
    text = json.dumps(speculative_to_dict(recorded))
    assert "map.pt" not in text and parse_speculative_config(json.loads(text)) == recorded


@pytest.mark.parametrize(
    ("drafters", "options", "message"),
    [
        (None, {}, r"needs `drafters`, a list of configs .* got None"),
        ({"method": "suffix"}, {}, "needs `drafters`, a list"),
        ([SUFFIX], {}, "drafters has 1 entries; .* two or more"),
        ([SUFFIX, None], {}, r"drafters\[1\] is None"),
        ([SUFFIX, "ngram"], {}, r"drafters\[1\]: .* must be None, a mapping"),
        ([SUFFIX, {"num_speculative_tokens": 3}], {}, r"drafters\[1\]: .* names no method"),
        ([SUFFIX, {**NGRAM, "top": 2}], {}, r"drafters\[1\] \(ngram\): .*unknown option `top`"),
        ([{**EAGLE3, "topk": 0}, SUFFIX], {}, r"drafters\[0\] \(eagle3\): topk=0"),
        ([SUFFIX, {"method": "telepathy"}], {}, r"drafters\[1\] \(telepathy\): unknown"),
        (
            [SUFFIX, {"method": "hybrid", "drafters": [SUFFIX, NGRAM]}], {},
            r"drafters\[1\] \(hybrid\): .*its drafters can stand here themselves",
        ),
        (
            [{"method": "extract_hidden_states", "capture_layers": [1]}, SUFFIX], {},
            r"drafters\[0\] \(extract_hidden_states\): .*drafts nothing",
        ),
        (
            [SUFFIX, {**MEDUSA, "lossy_typical_acceptance": {}}], {},
            r"drafters\[1\] \(medusa\): lossy_typical_acceptance is refused",
        ),
        (
            [SUFFIX, {**NGRAM, "simulate_acceptance": [0.5]}], {},
            r"drafters\[1\] \(ngram\): simulate_acceptance .* beside `drafters`",
        ),
        (
            [SUFFIX, NGRAM, {**NGRAM, "max_draft_len": 4}], {},
            r"drafters\[2\] \(ngram\) is the same as drafters\[1\] \(ngram\)",
        ),
        ([NGRAM, EAGLE3], {"num_draft_tokens": 12}, "num_draft_tokens=12 .* between 2 and 11"),
        ([NGRAM, EAGLE3], {"num_draft_tokens": 1}, "num_draft_tokens=1 .* between 2 and 11"),
        (
            [NGRAM, EAGLE3], {"num_draft_tokens": 9, "max_total_draft_tokens": 9},
            "max_total_draft_tokens=9 was given, .* leave it out or write 8",
        ),
        (
            [NGRAM, EAGLE3], {"num_speculative_tokens": 5},
            "max_draft_len=5 was given, but the drafters mean max_draft_len=4",
        ),
        ([NGRAM, EAGLE3], {"topk": 2}, "`topk`=2 is refused: it belongs to one method"),
        ([NGRAM, EAGLE3], {"model": "x"}, "`model`='x' is refused: it belongs to one method"),
        ([NGRAM, EAGLE3], {"lossy_typical_acceptance": {}}, "is refused"),
        ([NGRAM, EAGLE3], {"simulate_acceptance": [0.5] * 5}, "has 5 rates; give 1 to 4"),
        ([NGRAM, EAGLE3], {"draft_len": 3}, "unknown option `draft_len`"),
    ],
)  # fmt: skip
def test_refusals(drafters: Any, options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse_speculative_config({"method": "Hybrid", "drafters": drafters, **options})


def test_a_member_needs_a_method() -> None:
    with pytest.raises(ConfigError, match=r"drafters\[1\] names no method"):
        HybridDecodingConfig(drafters=[SuffixDecodingConfig(), {"max_draft_len": 3}])
