"""What the benchmarks of the controller and of hybrids let compete."""

from __future__ import annotations

import argparse

import pytest

from trtspec.bench import controller, hybrid
from trtspec.builder.available_drafts import FoundDraft, available_drafts
from trtspec.errors import ConfigError
from trtspec.speculative.options import parse_speculative_config, speculative_to_dict


def drafters(*spellings: str) -> argparse.Namespace:
    return argparse.Namespace(model="trtspec-tiny", drafts=[], drafters=list(spellings))


def test_the_drafters_of_a_hybrid() -> None:
    found = hybrid.members(drafters("suffix:16", "eagle3:5", "ngram:4"))
    assert list(found) == ["suffix:16", "eagle3:5", "ngram:4"]
    suffix, head, lookup = map(speculative_to_dict, found.values())
    # Every round asks the same: what the last one answered would be all drafts of the next.
    assert suffix["suffix_decoding_max_cached_requests"] == 0
    assert suffix["max_draft_len"] == 16
    assert (head["speculative_model"], head["max_draft_len"]) == ("trtspec-tiny-eagle3", 5)
    assert lookup["method"] == "ngram"
    assert hybrid.merged(found.values()).members == tuple(found.values())


@pytest.mark.parametrize("spellings", [["eagle3:5"], ["none", "ngram:3"]])
def test_one_is_no_hybrid(spellings: list[str]) -> None:
    with pytest.raises(ConfigError, match="a hybrid is made of two or more"):
        hybrid.members(drafters(*spellings))


@pytest.mark.parametrize("draft", available_drafts("trtspec-tiny", []), ids=lambda d: d.method)
def test_chains_of_any_draft_race_the_controller(draft: FoundDraft) -> None:
    settings = controller.settings(draft, [1, 3], 0.5)
    assert list(settings) == ["K=1", "K=3", "adaptive", "auto"]
    methods = [draft.method] * 3 + ["auto"]
    for length, method, (name, options) in zip(
        (1, 3, 3, 3), methods, settings.items(), strict=True
    ):
        config = parse_speculative_config(options)
        assert config is not None and config.method == method
        assert config.simulate_acceptance == tuple(0.5 ** (i + 1) for i in range(length))
        assert config.adaptive == (name in controller.LEARNING)


def test_shares_of_a_race() -> None:
    """A setting that was out early is not the best; shares are those of the same round."""
    rounds = {"none": [10.0, 20.0], "K=1": [30.0], "adaptive": [9.0, 19.0], "auto": [11.0, 20.0]}
    line, shares = controller.report(8, 0.5, rounds)
    assert line.split()[:4] == ["8", "0.50", "15.0", "30.0"] and "none" in line
    wanted = {"adaptive / best": 0.925, "adaptive / none": 0.925, "auto / none": 1.05}
    assert shares == pytest.approx(wanted)
