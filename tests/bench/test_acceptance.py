"""The report says what the metrics say, beside the counts, in the words that the field prints."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from trtspec.bench.data.dataset import BenchPrompt, Question
from trtspec.bench.runs.acceptance import AcceptanceReport, measure
from trtspec.config.sampling import SamplingParams
from trtspec.errors import RequestError
from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.llmapi.outputs import CompletionOutput, RequestOutput

from ..e2e.helpers import TinyModels, chain, ngram, open_llm, random_prompt, tree


def prompts(count: int, length: int = 12) -> list[BenchPrompt]:
    categories = ("code", "chat")
    return [
        BenchPrompt(Question(str(i), "", categories[i % 2]), random_prompt(i, length))
        for i in range(count)
    ]


@pytest.fixture(params=["ngram", "chain", "tree"])
def report(request: pytest.FixtureRequest, models: TinyModels) -> Iterator[AcceptanceReport]:
    draft = models.draft("llama")
    configs = {"ngram": ngram(4), "chain": chain(draft, 3), "tree": tree(draft, 2, 3, 7)}
    with open_llm(models.folder("llama"), configs[request.param], max_batch_size=2) as llm:
        yield measure(llm, prompts(5), SamplingParams(max_tokens=30, seed=1), use_tqdm=False)


def test_totals_are_those_of_the_requests(report: AcceptanceReport) -> None:
    merged = SpeculativeMetrics.merged(output.metrics for output in report.outputs).to_dict()
    assert merged == {name: report.metrics[name] for name in merged}
    # Every prompt's first token comes from its prefill, which is no verify step.
    assert report.num_output_tokens == merged["num_emitted_tokens"] + len(report.prompts)
    groups = report.by_category()
    assert list(groups) == ["code", "chat"]
    assert SpeculativeMetrics.merged(groups.values()).to_dict() == merged
    assert merged["num_accepted_tokens"] > 0


def test_json_holds_every_request(report: AcceptanceReport) -> None:
    data = report.to_dict()
    assert data["metrics"] is report.metrics and data["categories"]["code"]["num_steps"] > 0
    assert [r["question_id"] for r in data["requests"]] == list("01234")
    for entry, output in zip(data["requests"], report.outputs, strict=True):
        assert entry["num_prompt_tokens"] == 12 and entry["error"] is None
        assert entry["num_output_tokens"] == len(output.outputs[0].token_ids)
        assert entry["metrics"] == output.metrics.to_dict()


def made_up(categories: tuple[str | None, ...]) -> AcceptanceReport:
    """Three steps of four drafts that accept 3, 0 and 2, and a step without a draft, each time."""
    outputs, total = [], SpeculativeMetrics()
    for i, _ in enumerate(categories):
        metrics = SpeculativeMetrics()
        for emitted in (4, 1, 3):
            metrics.record(emitted, 4)
        metrics.record(1)
        total.merge(metrics)
        completion = CompletionOutput(0, 0, token_ids=[7] * 10, metrics=metrics)
        outputs.append(RequestOutput(i, None, [1], [completion]))
    asked = [BenchPrompt(Question(str(i), "", c), [1]) for i, c in enumerate(categories)]
    return AcceptanceReport(asked, outputs, total.to_dict())


def test_text() -> None:
    lines = made_up(("qa", "maths")).describe().splitlines()
    rule = "-" * 50
    assert lines == [
        rule,
        "total_num_output_tokens: 20",
        "num_steps: 8",
        "num_drafts: 6",
        "num_draft_tokens: 24",
        "num_accepted_tokens: 10",
        "mean acceptance length: 2.25 (18 tokens in 8 steps)",
        "draft acceptance rate: 0.42 (10 of 24 draft tokens)",
        rule,
        "acceptance at token 0: 0.67 (4 of 6 drafts)",
        "acceptance at token 1: 0.67 (4 of 6 drafts)",
        "acceptance at token 2: 0.33 (2 of 6 drafts)",
        "acceptance at token 3: 0.00 (0 of 6 drafts)",
        rule,
        "qa     acceptance length 2.25 (9 tokens in 4 steps)",
        "maths  acceptance length 2.25 (9 tokens in 4 steps)",
    ]
    for categories in (("qa", "qa"), (None, None)):
        assert "qa" not in made_up(categories).describe()


def test_a_failed_prompt_is_listed_and_the_others_count(models: TinyModels) -> None:
    asked = [*prompts(2), BenchPrompt(Question("long", ""), random_prompt(9, 64))]
    params = SamplingParams(max_tokens=5)
    with open_llm(models.folder("llama"), ngram(2), max_seq_len=64) as llm:
        report = measure(llm, asked, params, use_tqdm=False)
        ((prompt, error),) = report.failures
        assert prompt.question.id == "long" and "max_seq_len=64" in str(error)
        assert report.num_output_tokens == 10
        assert str(error) == report.to_dict()["requests"][2]["error"]
        with pytest.raises(RequestError, match="max_seq_len=64"):
            measure(llm, asked[2:], params, use_tqdm=False)


def test_each_prompt_has_noise_of_its_own(models: TinyModels) -> None:
    same = [BenchPrompt(Question(str(i), ""), random_prompt(1, 12)) for i in range(3)]
    with open_llm(models.folder("llama"), ngram(2)) as llm:
        params = SamplingParams(max_tokens=20, temperature=1.0, seed=4)
        outputs = measure(llm, same, params, use_tqdm=False).outputs
    assert [output.outputs[0].seed for output in outputs] == [4, 5, 6]
    assert len({tuple(output.outputs[0].token_ids) for output in outputs}) == 3


def test_simulated_acceptance_end_to_end(models: TinyModels) -> None:
    """Rates hold whatever the draft is worth, and a text does not depend on its batch."""
    rates = [0.9, 0.5, 0.2]
    config = {**chain(models.draft("llama"), 3), "simulate_acceptance": rates}
    asked = prompts(8)
    params = SamplingParams(max_tokens=60, temperature=0.8, seed=3, ignore_eos=True)
    texts = []
    for batch in (1, 8):
        with open_llm(models.folder("llama"), config, max_batch_size=batch) as llm:
            report = measure(llm, asked, params, use_tqdm=False)
        # Some 180 steps, the last ones of every text with shorter drafts.
        assert report.metrics["acceptance_rate_per_pos"] == pytest.approx(rates, abs=0.12)
        texts.append([output.outputs[0].token_ids for output in report.outputs])
    assert texts[0] == texts[1]
