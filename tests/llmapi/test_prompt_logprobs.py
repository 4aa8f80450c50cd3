"""Log probabilities of prompts: those of the model, however the prompt is fed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from trtspec import SamplingParams
from trtspec.errors import RequestError

from ..e2e.helpers import assert_no_leak
from .conftest import TextModel

PROMPT = "the cat sat on the mat and that is that: a rat ate the hat"


def of_model(text_model: TextModel, ids: list[int]) -> torch.Tensor:
    with torch.no_grad():
        return torch.log_softmax(text_model.hf(torch.tensor([ids])).logits[0].float(), dim=-1)


@pytest.mark.parametrize(
    ("method", "options"),
    [
        ("none", {}),
        ("ngram", {"max_num_tokens": 16}),
        ("tree", {"tokens_per_block": 4}),
        ("chain", {"max_num_tokens": 24, "max_batch_size": 2}),
    ],
)
def test_they_are_the_models(text_model: TextModel, method: str, options: Any) -> None:
    """In chunks, behind a prefix that is cached, beside other requests; the text stays."""
    plain = SamplingParams(max_tokens=12, temperature=0.8, seed=3)
    asked = SamplingParams(max_tokens=12, temperature=0.8, seed=3, prompt_logprobs=3, n=2)
    with text_model.open(method, **options) as llm:
        expected = llm.generate([PROMPT] * 2, [plain, plain], use_tqdm=False)
        outputs = llm.generate([PROMPT, "a cat", PROMPT], [asked, plain, asked], use_tqdm=False)
        assert_no_leak(llm)
        hits = [output.num_cached_tokens for output in outputs]
    table = of_model(text_model, outputs[0].prompt_token_ids)
    assert hits[0] == hits[2] == 0
    for output in (outputs[0], outputs[2]):
        first, *entries = output.prompt_logprobs
        ids = output.prompt_token_ids
        assert first is None and [entry.token for entry in entries] == ids[1:]
        for row, entry in zip(table, entries, strict=False):
            assert entry.logprob == pytest.approx(float(row[entry.token]), abs=2e-4)
            best = row.topk(3)
            assert list(entry.top) == best.indices.tolist()
            assert list(entry.top.values()) == pytest.approx(best.values.tolist(), abs=2e-4)
        assert output.outputs[0].text == expected[0].outputs[0].text
    assert outputs[1].prompt_logprobs is None


def test_of_a_prompt_of_one_token(text_model: TextModel) -> None:
    with text_model.open() as llm:
        output = llm.generate([5], SamplingParams(max_tokens=1, prompt_logprobs=0))
    assert output.prompt_logprobs == [None]


@pytest.mark.parametrize("value", [-1, 21])
def test_refusals(value: int) -> None:
    with pytest.raises(RequestError, match=f"prompt_logprobs={value} must be between 0 and 20"):
        SamplingParams(prompt_logprobs=value)
