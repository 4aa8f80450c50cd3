"""The method `auto`, and `adaptive` on every method."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from trtspec.config.decoding import DecodingConfig
from trtspec.config.tree_decoding import TreeDecodingConfig
from trtspec.errors import ConfigError
from trtspec.speculative.draft_model.options import DraftTargetDecodingConfig
from trtspec.speculative.eagle.options import Eagle3DecodingConfig
from trtspec.speculative.hybrid.options import AutoDecodingConfig, HybridDecodingConfig
from trtspec.speculative.ngram.options import NGramDecodingConfig
from trtspec.speculative.options import parse_speculative_config, speculative_to_dict
from trtspec.speculative.registry import methods
from trtspec.speculative.suffix.options import SuffixDecodingConfig


def parse(**options: Any) -> Any:
    return parse_speculative_config(options)


@pytest.mark.parametrize(
    "key", ["adaptive", "speculative_adaptive", "enable_adaptive_verification"]
)
def test_adaptive_under_the_names_of_the_neighbours(key: str) -> None:
    assert parse(method="ngram", num_speculative_tokens=4, **{key: True}).adaptive
    assert parse(method="draft_model", model="x", num_speculative_tokens=4, **{key: True}).adaptive
    config = parse(method="suffix", **{key: False})
    assert not config.adaptive
    assert parse_speculative_config(speculative_to_dict(config)) == config


def test_it_belongs_to_the_whole_and_to_what_drafts() -> None:
    member = {"method": "ngram", "num_speculative_tokens": 4, "adaptive": True}
    with pytest.raises(ConfigError, match=r"drafters\[1\].*beside `drafters`"):
        parse(method="hybrid", drafters=[{"method": "suffix"}, member])
    with pytest.raises(ConfigError, match="drafts nothing that could be adapted"):
        parse(method="extract_hidden_states", adaptive=True)
    with pytest.raises(ConfigError, match="it measures"):
        parse(method="suffix", speculative_adaptive_config="x.json")


@dataclass
class AtHand:
    built: DecodingConfig | None = None
    method: type[TreeDecodingConfig] | None = None
    by_pass: bool = False

    def method_for(self, model: str | Path) -> type[Any]:
        assert self.method is not None and model == "d"
        return self.method

    def training_layers(self, method: str) -> tuple[int, ...]:
        raise AssertionError(method)


def test_auto_without_a_draft() -> None:
    auto = parse(decoding_type="AUTO")
    assert isinstance(auto, AutoDecodingConfig) and methods()["auto"].options is AutoDecodingConfig
    assert auto.resolve(AtHand()) == SuffixDecodingConfig(adaptive=True)
    kept = parse(method="auto", simulate_acceptance=[0.5], max_model_len=64).resolve(AtHand())
    assert kept == SuffixDecodingConfig(adaptive=True, simulate_acceptance=(0.5,), max_model_len=64)


def test_auto_with_a_draft() -> None:
    at_hand = AtHand(method=DraftTargetDecodingConfig)
    drafts = parse(method="auto", model="d", num_speculative_tokens=3).resolve(at_hand)
    assert drafts == HybridDecodingConfig(
        drafters=(
            SuffixDecodingConfig(),
            DraftTargetDecodingConfig(speculative_model="d", max_draft_len=3),
        ),
        adaptive=True,
    )
    built = HybridDecodingConfig(
        drafters=(NGramDecodingConfig(max_draft_len=3), drafts.drafters[1]), num_draft_tokens=4
    )
    assert parse(method="auto").resolve(AtHand(built)) == drafts


@pytest.mark.parametrize(
    ("method", "by_pass", "steps"),
    [
        (DraftTargetDecodingConfig, True, 12),
        (DraftTargetDecodingConfig, False, 5),
        (Eagle3DecodingConfig, True, 5),
    ],
)
def test_how_far_auto_drafts(method: Any, by_pass: bool, steps: int) -> None:
    """Further where drafts end by themselves."""
    auto = parse(method="auto", model="d").resolve(AtHand(method=method, by_pass=by_pass))
    assert auto.drafters[1].max_draft_len == steps


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"adaptive": False}, "name a method to have it fixed"),
        ({"num_speculative_tokens": 4}, "no speculative_model is given"),
        ({"topk": 4}, "it belongs to one method"),
        ({"model": "d", "num_speculative_tokens": 0}, "at least 1"),
        ({"modle": "d"}, "did you mean `model`"),
    ],
)
def test_what_auto_does_not_take(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(method="auto", **options)
