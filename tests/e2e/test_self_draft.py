"""A copy of the target with fewer bits drafts: the text stays, and most drafts are accepted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM, SamplingParams, build
from trtspec.bench.data.dataset import held_out_prompts
from trtspec.builder.locate import find_model
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.errors import ConfigError
from trtspec.speculative.options import parse_speculative_config

from ..checkpoints import quantised_layers
from ..checkpoints.quantised_layers import CASES
from .helpers import TinyModels, assert_no_leak, chain, ngram, open_llm, tokens
from .hybrid_drafts import hybrid
from .quantised_folder import quantised

COPY: dict[str, Any] = {"method": "self", "num_speculative_tokens": 3}
PARAMS = [
    SamplingParams(max_tokens=24, ignore_eos=True),
    SamplingParams(max_tokens=24, ignore_eos=True, temperature=0.8, seed=5),
]
WAYS: dict[str, Any] = {
    "chain": {**COPY, "weight_dtype": "int4"},
    "tree": {**COPY, "topk": 2, "num_draft_tokens": 6},
    "hybrid": hybrid(COPY, ngram(4)),
    "auto": {"method": "auto", "model": "[target]"},
}


def run(speculation: Any, **options: Any) -> tuple[list[list[list[int]]], dict[str, Any]]:
    """Texts of the embedded model, greedy and sampled, and what was counted."""
    target = Path(find_model("trtspec-tiny"))
    limits: dict[str, Any] = {"max_batch_size": 4, "max_seq_len": 96, "max_num_tokens": 40}
    with open_llm(target, speculation, skip_tokenizer_init=False, **limits, **options) as llm:
        prompts = [p.token_ids for p in held_out_prompts(llm.tokenizer, 4, 24)]
        texts = [tokens(llm.generate(prompts, p, use_tqdm=False)) for p in PARAMS]
        assert_no_leak(llm)
        return texts, llm.get_metrics()


@pytest.fixture(scope="module")
def plain() -> list[list[list[int]]]:
    return run(None)[0]


@pytest.mark.parametrize(
    "way",
    [pytest.param(way, marks=[] if way == "chain" else pytest.mark.slow) for way in WAYS],
)
def test_text_is_unchanged(plain: list[list[list[int]]], way: str) -> None:
    texts, metrics = run(WAYS[way])
    assert texts == plain
    assert metrics["num_draft_tokens"] > 0
    if way == "chain":
        assert metrics["acceptance_rate"] > 0.5


@pytest.mark.slow
def test_a_copy_of_a_rounded_target() -> None:
    options = {"weight_dtype": "int8"}
    texts, metrics = run(WAYS["chain"], **options)
    assert texts == run(None, **options)[0] and metrics["acceptance_rate"] > 0.5


def test_a_copy_of_a_quantised_checkpoint(
    models: TinyModels, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The target keeps 8 bits; the copy's 4 are rounded from what these stand for."""
    monkeypatch.setattr(quantised_layers, "GROUP", 16)
    path, _ = quantised(models.folder("llama"), CASES["gptq-8"], tmp_path)
    prompts = [[3, 1, 4, 1, 5], [9, 2, 6]]
    with open_llm(path) as llm:
        expected = [tokens(llm.generate(prompts, p, use_tqdm=False)) for p in PARAMS]
    with open_llm(path, COPY) as llm:
        assert [tokens(llm.generate(prompts, p, use_tqdm=False)) for p in PARAMS] == expected
        (draft,) = llm.config.drafts
        assert llm.config.target.storage is not None and draft.storage is None
        assert draft.weights is not None and draft.weights.weight_dtype == "int4"
        read = [llm.config.pass_bytes(each).expected(1) for each in (draft, None)]
        assert read[0] < 0.7 * read[1]
        assert llm.get_metrics()["num_accepted_tokens"] > 0


def test_an_engine_that_holds_the_copy(models: TinyModels) -> None:
    """It is found by its method, alone or by auto; other weights than the built ones are not."""
    options = {"dtype": "float32", "backend": "eager"}
    engine = build(models.folder("llama"), COPY, **options, skip_tokenizer_init=True)
    for speculation in (None, COPY, WAYS["chain"], {"method": "auto"}):
        with LLM(engine, speculation, skip_tokenizer_init=True) as llm:
            assert llm.generate([1, 2, 3], PARAMS[0]).outputs[0].token_ids
    with pytest.raises(ConfigError, match=r"weight_dtype=int8 was asked for, .* has int4; leave"):
        LLM(engine, {**COPY, "weight_dtype": "int8"}, skip_tokenizer_init=True)


@pytest.mark.parametrize(
    ("speculation", "options", "message"),
    [
        ({"weight_dtype": "int4"}, {"weight_dtype": "int4"}, "'int4' of .* are int4, .* method"),
        (
            {"weight_dtype": "int8"},
            {"weight_dtype": "int8"},
            "'int8' of .* are int8, .* int4",
        ),
        ({}, {"weight_dtype": "int4"}, "'int4' of the copy that drafts: the target's weights"),
        ({"weight_dtype": "float32"}, {}, "'float32' of .*; give int8 or int4"),
        (
            {"weight_dtype": "int5"},
            {},
            "that drafts: weight_dtype 'int5' is not",
        ),
        ({"weight_group_size": 7}, {}, "that drafts: weight_group_size=7 is not one of"),
        ({}, {"backend": "onnx"}, "that drafts: weight_dtype int4 is not available on backend"),
        ({"model": "trtspec-tiny-draft"}, {}, "no other checkpoint; leave speculative_model out"),
    ],
)
def test_what_is_refused(
    speculation: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    target = Path(find_model("trtspec-tiny"))
    build = BuildConfig("float32", **{"backend": "eager", **options})
    with pytest.raises(ConfigError, match=message):
        plan_build(target, build, parse_speculative_config({**COPY, **speculation}))


def test_beside_another_draft(models: TinyModels) -> None:
    """Each keeps its weights in its own way."""
    folder = models.folder("llama")
    speculation = parse_speculative_config(hybrid(chain(models.draft("llama"), 3), COPY))
    plan = plan_build(folder, BuildConfig("float32", backend="eager"), speculation, True)
    small, copy = plan.engine.drafts
    assert small.weights is None and copy.weights is not None
    names = [plan.engine.formats_of(draft).layers.name for draft in (small, copy)]
    assert names == ["plain", "int4"]
