"""Spellings of methods, and the drafts that they find."""

from __future__ import annotations

from typing import Any

import pytest

from trtspec.bench.runs.methods import (
    NONE,
    BenchMethod,
    fitting_methods,
    read_methods,
    usual_methods,
)
from trtspec.builder.available_drafts import FoundDraft, available_drafts
from trtspec.errors import CheckpointError, ConfigError
from trtspec.speculative.options import parse_speculative_config

SMALL, HEAD, BLOCKS = "trtspec-tiny-draft", "trtspec-tiny-eagle3", "trtspec-tiny-dflash"


@pytest.fixture(scope="module")
def drafts() -> list[FoundDraft]:
    return available_drafts("trtspec-tiny", [])


def options(method: BenchMethod) -> dict[str, Any]:
    config: Any = method.config
    names = ("speculative_model", "topk", "max_draft_len", "num_draft_tokens")
    return {name: getattr(config, name, None) for name in names}


def test_embedded_drafts_are_found(drafts: list[FoundDraft]) -> None:
    assert {(draft.name, draft.method) for draft in drafts} == {
        (SMALL, "draft_model"),
        (HEAD, "eagle3"),
        (BLOCKS, "dflash"),
    }
    assert [draft.name for draft in available_drafts("trtspec-tiny", [HEAD])] == [HEAD]
    with pytest.raises(CheckpointError, match="no-such-draft"):
        available_drafts("trtspec-tiny", ["no-such-draft"])


def test_spellings(drafts: list[FoundDraft]) -> None:
    texts = ["ngram:4", "EAGLE3:5", "eagle3:4,5,24", '{"method": "draft_model", "num_steps": 3}']
    none, ngram, chain, tree, json_chain = read_methods(texts, drafts)
    assert none == BenchMethod(NONE, None) and ngram.name == "ngram:4"
    assert ngram.config is not None and ngram.config.max_draft_len == 4
    head = {"speculative_model": HEAD, "topk": 1, "max_draft_len": 5, "num_draft_tokens": 6}
    assert options(chain) == head and chain.name == "EAGLE3:5"
    assert options(tree) == {**head, "topk": 4, "num_draft_tokens": 24}
    assert options(json_chain)["speculative_model"] == SMALL and json_chain.name == "draft_model"
    # What one name would stand for twice is named in full.
    two = [f'{{"method": "ngram", "num_speculative_tokens": {n}}}' for n in (2, 3)]
    assert [method.name for method in read_methods(two, drafts)[1:]] == two
    # No speculation is always there, once.
    assert [m.name for m in read_methods([NONE, "ngram:1", NONE], drafts)] == [NONE, "ngram:1"]


def test_what_adapts(drafts: list[FoundDraft]) -> None:
    texts = ["eagle3:5+adaptive", "ngram:4+adaptive", "auto", "auto:eagle3", "auto:draft_model"]
    _, eagle, ngram, *autos = read_methods(texts, drafts)
    assert eagle.config is not None and eagle.config.adaptive and options(eagle)["topk"] == 1
    assert ngram.config is not None and ngram.config.adaptive
    assert [options(auto)["speculative_model"] for auto in autos] == [None, HEAD, SMALL]
    assert [method.name for method in (eagle, ngram, *autos)] == texts


def test_a_draft_of_its_own(drafts: list[FoundDraft]) -> None:
    text = '{"method": "eagle3", "model": "elsewhere", "num_steps": 2}'
    assert options(read_methods([text], drafts)[1])["speculative_model"] == "elsewhere"


def test_one_contender_for_each_draft_that_fits(drafts: list[FoundDraft]) -> None:
    (small,) = (draft for draft in drafts if draft.name == SMALL)
    two = [small, FoundDraft("/models/other", small.method, small.config)]
    found = read_methods(["draft_model:2"], two)[1:]
    assert [m.name for m in found] == [
        "draft_model:2 (trtspec-tiny-draft)",
        "draft_model:2 (other)",
    ]
    assert [options(m)["speculative_model"] for m in found] == [SMALL, "/models/other"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("telepathy:3", "unknown speculative method 'telepathy'"),
        ("eagle3", "is not method:K or method:k,D,N"),
        ("eagle3:4,5", "is not method:K or method:k,D,N"),
        ("eagle3:four", "is not method:K or method:k,D,N"),
        ("eagle3:0", "max_draft_len=0"),
        ("ngram:2,3,4", "topk"),
        ("eagle3:5+adaptiv", "is not method:K or method:k,D,N"),
        ("auto:medusa", "auto:medusa needs a draft for it"),
        ("auto:ngram", "ngram has no draft; write auto alone"),
        ("auto:telepathy", "unknown speculative method 'telepathy'"),
        ("{", "is not JSON"),
        ("medusa:3", "medusa:3 needs a draft for it; give it in --drafts (found: trtspec-tiny-"),
        ("mtp:2", "needs modules in the target's own checkpoint"),
    ],
)
def test_refusals(drafts: list[FoundDraft], text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_methods([text], drafts)
    assert message in str(caught.value)


def test_twice(drafts: list[FoundDraft]) -> None:
    with pytest.raises(ConfigError, match="ngram:4 is asked for twice"):
        read_methods(["ngram:4", "ngram:4"], drafts)


def test_what_fits(drafts: list[FoundDraft]) -> None:
    names = [method.name for method in fitting_methods(drafts)]
    assert names[:3] == [NONE, "ngram:4", "suffix:8"]
    trees = {"eagle3:4,5,24", "ddtree:8,4,24"}
    assert set(names[3:]) == {"draft_model:4", "eagle3:5", "dflash:4", *trees}
    assert {m.name for m in usual_methods(drafts)} == {"draft_model:4", "eagle3:5", "dflash:4"}
    assert len(fitting_methods([])) == 3 and usual_methods([]) == []


def test_only_lossless_methods_promise_their_text() -> None:
    config = {"method": "ngram", "num_speculative_tokens": 2}
    assert BenchMethod("", parse_speculative_config(config)).is_lossless
    forced = {**config, "simulate_acceptance": [0.5]}
    assert not BenchMethod("", parse_speculative_config(forced)).is_lossless
