"""With drafts the text is that without, and has the form that was asked for."""

from __future__ import annotations

import pytest

from trtspec import LLM, RequestOutput, SamplingParams

from ..e2e.helpers import assert_no_leak
from ..llmapi.conftest import METHODS, TextModel, text_model
from .grammars import random_case

__all__ = ["text_model"]

SEEDS = 500
AT_ONCE = 50


def params(seed: int, **options: object) -> SamplingParams:
    temperature = (0.0, 0.8, 1.5)[seed % 3]
    form = random_case(seed).guided
    return SamplingParams(
        max_tokens=80, temperature=temperature, seed=seed, guided_decoding=form, **options
    )


def run(llm: LLM, seeds: range) -> list[RequestOutput]:
    prompts = ["the cat sat on "[: 1 + seed % 15] for seed in seeds]
    return llm.generate(prompts, [params(seed) for seed in seeds], use_tqdm=False)


def assert_in_form(seed: int, output: RequestOutput) -> None:
    assert output.error is None, (seed, output.error)
    (one,) = output.outputs
    if one.finish_reason == "stop":
        assert random_case(seed).holds(one.text), (seed, random_case(seed).guided, one.text)


@pytest.fixture(scope="module")
def plain(text_model: TextModel) -> list[RequestOutput]:
    with text_model.open(max_batch_size=16) as llm:
        outputs = [
            output
            for first in range(0, SEEDS, AT_ONCE)
            for output in run(llm, range(first, first + AT_ONCE))
        ]
        assert_no_leak(llm)
    return outputs


def test_every_text_has_its_form(plain: list[RequestOutput]) -> None:
    for seed, output in enumerate(plain):
        assert_in_form(seed, output)
    ended = [output.outputs[0].finish_reason == "stop" for output in plain]
    assert sum(ended) > 0.8 * SEEDS, f"only {sum(ended)} texts came to their end"


@pytest.mark.parametrize("method", METHODS[1:])
def test_drafts_change_no_text(
    text_model: TextModel, plain: list[RequestOutput], method: str
) -> None:
    share = METHODS[1:].index(method)
    with text_model.open(method, max_batch_size=16) as llm:
        for first in range(share * AT_ONCE, SEEDS, 3 * AT_ONCE):
            seeds = range(first, first + AT_ONCE)
            for seed, output in zip(seeds, run(llm, seeds), strict=True):
                own, expected = output.outputs[0], plain[seed].outputs[0]
                assert own.token_ids == expected.token_ids, (seed, random_case(seed).guided)
                assert own.finish_reason == expected.finish_reason
        metrics = llm.get_metrics()
        assert metrics["num_accepted_tokens"] > 0
        assert_no_leak(llm)
