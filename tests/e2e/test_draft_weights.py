"""Drafts with weights and a vocabulary of their own: the text stays that of the target alone, and
only tokens of the vocabulary are drafted."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from trtspec import LLM, SamplingParams, build
from trtspec.builder.checkpoints import load_target
from trtspec.builder.locate import CACHE_VARIABLE, find_model
from trtspec.builder.plan import BuildPlan, plan_build
from trtspec.builder.token_lists import keep_written, written_path
from trtspec.config.build_config import BuildConfig
from trtspec.config.strict import to_dict
from trtspec.errors import ConfigError
from trtspec.formats import drafts
from trtspec.speculative.options import parse_speculative_config

from ..checkpoints.tiny_gguf import random_tensor, tiny
from .helpers import TinyModels, assert_no_leak, chain, open_llm, random_prompt, tokens

EMBEDDED = "trtspec-tiny"
LISTED = [2, 3, 5, 7, 11, 13, 17, 19, 23, 29]
"""Of the 40 tokens of `tiny`."""
PARAMS = [SamplingParams(16), SamplingParams(16, temperature=0.8, seed=3)]
PREFIX = random_prompt(70, 21, 40)
PROMPTS = [[*PREFIX, *random_prompt(80 + i, 2 + 5 * i, 40)] for i in range(4)]


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    return tmp_path / "cache"


def texts(model: Path, speculation: Any, **options: Any) -> list[list[list[int]]]:
    """Of one prompt at a time and of four, greedy and sampled; the later ones hit prefixes."""
    limits = {"max_batch_size": 4, "max_seq_len": 96, "max_num_tokens": 24}
    with open_llm(model, speculation, **limits, **options) as llm:
        found = [tokens(llm.generate(PROMPTS[:1], p, use_tqdm=False)) for p in PARAMS]
        found += [tokens(llm.generate(PROMPTS, p, use_tqdm=False)) for p in PARAMS]
        assert_no_leak(llm)
        if speculation is not None:
            assert llm.get_metrics()["num_accepted_tokens"] > 0
    return found


WAYS: dict[str, dict[str, Any]] = {
    "weights": {"weight_dtype": "int4", "activation_dtype": "float32"},
    "head": {"head_weight_dtype": "int4"},
    "vocabulary": {"vocabulary": "list.json"},
    "both, as a tree": {
        "weight_dtype": "int4",
        "vocabulary": "list.json",
        "topk": 2,
        "num_draft_tokens": 6,
    },
}


@pytest.mark.parametrize("way", WAYS)
def test_text_is_unchanged(tmp_path: Path, proposed: set[int], way: str) -> None:
    """The draft is the target's own file, with 8 bits and a head that is its embedding."""
    model = tiny("Q8_0")
    del model.tensors["output.weight"]
    file = model.write(tmp_path / "model.gguf")
    (tmp_path / "list.json").write_text(json.dumps(LISTED))
    asked = dict(WAYS[way])
    if "vocabulary" in asked:
        asked["vocabulary"] = str(tmp_path / "list.json")
    assert texts(file, {**chain(file, 3), **asked}) == texts(file, None)
    if "vocabulary" in asked:
        assert proposed <= set(LISTED)
    else:
        assert not proposed <= set(LISTED)


def planned(model: Path, speculation: Any, **options: Any) -> BuildPlan:
    build = BuildConfig("float32", **{"backend": "eager", **options})
    return plan_build(model, build, parse_speculative_config(speculation), True)


def test_what_is_rounded_of_a_file(tmp_path: Path) -> None:
    """The layers and the head, or the head alone; the embedding keeps its 8 bits either way."""
    model = tiny("Q8_0")
    del model.tensors["output.weight"]
    file = model.write(tmp_path / "model.gguf")
    for option, layers in (("weight_dtype", "int4"), ("head_weight_dtype", "int8")):
        plan = planned(file, {**chain(file, 3), option: "int4"})
        (draft,) = plan.engine.drafts
        formats = plan.engine.formats_of(draft)
        table = formats.of_embedding("embed")
        assert formats.of({"layers.0.mlp.down": 8}).name == layers
        assert formats.of_head("head").name == "int4" and not draft.network.head.tied
        assert table is not None and table.name == "int8"
        assert "quantised again" in plan.describe()
    exact = load_target(file).tensors.headers["layers.0.attn.o.weight"].read()
    found = planned(file, {**chain(file, 3), "weight_dtype": "int4"}).drafts[0].tensors
    weight = found["layers.0.attn.o.weight"]
    assert isinstance(weight, torch.Tensor) and torch.equal(weight, exact)


def test_blocks_of_few_bits_stay(tmp_path: Path) -> None:
    """They gain nothing by being rounded again, unless groups of another size are asked for."""
    model = tiny("Q4_0")
    head = model.tensors["output.weight"]
    model.tensors["output.weight"] = random_tensor(
        "Q8_0", head.values.shape, np.random.default_rng(4)
    )
    file = model.write(tmp_path / "model.gguf")
    asked = {**chain(file, 3), "weight_dtype": "int4"}
    for more, kept in (({}, True), ({"weight_group_size": 16}, False)):
        found = planned(file, {**asked, **more}).drafts[0].tensors
        assert found.headers["head.weight"].storage is None
        assert (found.headers["layers.0.mlp.down.weight"].storage is not None) == kept


def test_large_models_are_read_in_few_bits(
    models: TinyModels, monkeypatch: pytest.MonkeyPatch
) -> None:
    target, draft = models.folder("llama"), models.draft("llama")
    small = planned(target, chain(draft, 3)).engine.drafts[0]
    assert small.weights is None
    monkeypatch.setattr(drafts, "MOST_KEPT", 1000)
    plan = planned(target, chain(draft, 3))
    weights = plan.engine.drafts[0].weights
    assert weights is not None
    assert (weights.weight_dtype, weights.head_weight_dtype) == ("int4", "int4")
    assert "draft's weight_dtype int4, head included" in plan.describe()
    assert planned(target, chain(draft, 3)).fingerprint == plan.fingerprint
    asked = {**chain(draft, 3), "weight_dtype": "int8"}
    other = planned(target, asked)
    assert to_dict(other.engine.drafts[0].weights)["head_weight_dtype"] == "int8"
    assert other.fingerprint != plan.fingerprint
    for options in ({"weight_dtype": "float32"}, {"backend": "onnx"}):
        assert planned(target, chain(draft, 3), **options).engine.drafts[0].weights is None


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"weight_dtype": "int3"}, "the draft: weight_dtype 'int3' is not supported"),
        ({"weight_group_size": 32}, "the draft: weight_group_size=32 was given without"),
        ({"weight_dtype": "int4", "backend": "onnx"}, "the draft: weight_dtype int4 is not avail"),
        ({"vocabulary": 5000}, "vocabulary 5000 must be above .* and at most the target's"),
        ({"vocabulary_text": "none.txt", "vocabulary": "auto"}, "none.txt cannot be read"),
        ({"vocabulary": "auto"}, "has not written yet: build once with trtspec-build"),
        ({"vocabulary": "none.pt"}, "none.pt"),
    ],
)
def test_refused(own_cache: Path, asked: dict[str, Any], message: str) -> None:
    target, draft = (Path(find_model(name)) for name in (EMBEDDED, f"{EMBEDDED}-draft"))
    options = {key: asked.pop(key) for key in ("backend",) if key in asked}
    with pytest.raises(Exception, match=message) as found:
        planned(target, {**chain(draft, 3), **asked}, **options)
    assert isinstance(found.value, ConfigError) or "none.pt" in str(found.value)


def test_a_borrowed_head_has_no_format_of_its_own() -> None:
    asked = {"method": "dflash", "model": f"{EMBEDDED}-dflash", "num_speculative_tokens": 3}
    with pytest.raises(ConfigError, match="head_weight_dtype int8: the draft has no head of its"):
        planned(Path(find_model(EMBEDDED)), {**asked, "head_weight_dtype": "int8"})


def ids_of(plan: BuildPlan) -> list[int]:
    found: list[int] = plan.drafts[0].tensors["token_map"].tolist()
    return found


def test_which_tokens_a_draft_proposes(own_cache: Path, tmp_path: Path) -> None:
    """Those of the lowest ids, or the most frequent of a text, with the ends of texts."""
    target, draft = (Path(find_model(name)) for name in (EMBEDDED, f"{EMBEDDED}-draft"))
    ends = set(load_target(target).config.eos_token_ids)
    first = ids_of(planned(target, {**chain(draft, 3), "vocabulary": 64}))
    assert first == sorted({*range(64 - len(ends - {*range(64)})), *ends}) and ends
    text = tmp_path / "text.txt"
    text.write_text("zebra zebra zebra\n" * 200)
    own = {**chain(draft, 3), "vocabulary_text": str(text)}
    counted = ids_of(planned(target, {**own, "vocabulary": 64}))
    assert len(counted) == 64 and ends <= set(counted) and counted != first
    best = ids_of(planned(target, {**own, "vocabulary": "auto"}))
    assert len(best) % 1024 == 0
    keep_written(target, [[900, 901] * 50, [900, 902]])
    assert own_cache in written_path(target).parents
    written = planned(target, {**chain(draft, 3), "vocabulary": "auto"})
    assert {900, 901, 902} | ends <= set(ids_of(written))
    assert "the most frequent of what the target writes" in written.describe()


def test_an_engine_that_holds_it(models: TinyModels, tmp_path: Path) -> None:
    """It is opened by what it was built with; another number is refused, and another draft."""
    target, draft = models.folder("llama"), models.draft("llama")
    cut = {**chain(draft, 3), "vocabulary": 40}
    options = {"dtype": "float32", "backend": "eager", "skip_tokenizer_init": True}
    engine = build(target, cut, **options)
    for speculation in (
        None,
        cut,
        {**cut, "model": "draft"},
        {**chain(draft, 3), "model": "draft"},
    ):
        with LLM(engine, speculation, skip_tokenizer_init=True) as llm:
            assert llm.config.drafts[0].network.head.rows == 40
    for changes, message in (
        ({"vocabulary": 41}, "vocabulary=41 was asked for, the engine's draft was built with 40"),
        ({"model": str(target)}, "is not the one in the engine folder"),
        ({"weight_dtype": "int8"}, "weight_dtype=int8 was asked for"),
    ):
        with pytest.raises(ConfigError, match=message):
            LLM(engine, {**cut, **changes}, skip_tokenizer_init=True)
