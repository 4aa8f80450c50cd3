"""trtspec-doctor's parts: agreement against brute force, the cost model, what findings say."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from trtspec import LLM, SamplingParams
from trtspec.bench.doctor import machine_checks as machine
from trtspec.bench.doctor import pair_checks
from trtspec.bench.doctor.agreement import matched_depth, measure_agreement
from trtspec.bench.doctor.check import NOTE, OK, PROBLEM, WARNING, Check, describe, has_problem
from trtspec.bench.doctor.cost import StepCosts
from trtspec.bench.doctor.pair_checks import (
    PairFigures,
    contract_check,
    figure_checks,
    measure_pair,
)
from trtspec.bench.runs.methods import BenchMethod
from trtspec.config.build_config import BuildConfig
from trtspec.errors import CheckpointError
from trtspec.executor.metrics import SpeculativeMetrics
from trtspec.llmapi.engines import build
from trtspec.ops.tree import TokenTree
from trtspec.speculative.options import parse_speculative_config

from ..e2e.eagle_heads import eagle, random_eagle3
from ..e2e.helpers import VOCAB, TinyModels, chain, open_llm, random_prompt, tokens, tree

GREEDY = SamplingParams(max_tokens=12, ignore_eos=True)
SAMPLED = SamplingParams(max_tokens=12, ignore_eos=True, temperature=1.0)


def agreement(
    models: TinyModels, spec: dict[str, Any], params: SamplingParams, prompts: list[list[int]]
) -> SpeculativeMetrics:
    folder = build(models.folder("llama"), spec, dtype="float32", backend="eager")
    config = parse_speculative_config(spec)
    assert config is not None
    return measure_agreement(folder, config, prompts, params)


@pytest.mark.parametrize("params", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_a_draft_that_is_the_target_always_agrees(
    models: TinyModels, params: SamplingParams
) -> None:
    """Coupled by the noise at temperature 1: the same distribution makes the same choice."""
    same = chain(models.folder("llama"), 3)
    found = agreement(models, same, params, [random_prompt(1, 9), random_prompt(2, 14)])
    assert found.acceptance_rate_per_pos == [1.0, 1.0, 1.0]
    # Behind the first token and each further one, while four are still to come.
    assert found.num_steps == 2 * 8


def test_agreement_is_that_of_the_draft_asked_behind_every_token(models: TinyModels) -> None:
    """Brute force: the draft's own greedy text behind each prefix of the target's."""
    prompts = [random_prompt(i, 11) for i in range(3)]
    with open_llm(models.folder("llama")) as llm:
        texts = tokens(llm.generate(prompts, GREEDY, use_tqdm=False))
    expected = SpeculativeMetrics()
    with open_llm(models.draft("llama")) as draft:
        for prompt, text in zip(prompts, texts, strict=True):
            for i in range(1, len(text) - 3):
                output = draft.generate(prompt + text[:i], SamplingParams(3, ignore_eos=True))
                (guess,) = tokens([output])
                pairs = list(zip(guess, text[i : i + 3], strict=True))
                matched = next((j for j, (a, b) in enumerate(pairs) if a != b), 3)
                expected.record(1 + matched, 3)
    found = agreement(models, chain(models.draft("llama"), 3), GREEDY, prompts)
    assert found.to_dict() == expected.to_dict()
    assert 0 < found.acceptance_rate < 1


def test_a_tree_agrees_wherever_its_chain_does(models: TinyModels) -> None:
    prompts = [random_prompt(i, 11) for i in range(3)]
    draft = models.draft("llama")
    narrow = agreement(models, chain(draft, 3), GREEDY, prompts).acceptance_rate_per_pos
    wide = agreement(models, tree(draft, 4, 3, 16), GREEDY, prompts).acceptance_rate_per_pos
    assert wide[0] >= narrow[0] and sum(wide) > sum(narrow)


def test_matched_depth() -> None:
    branches = TokenTree([5, 6, 7, 8, 7], [-1, -1, 0, 1, 1])
    assert [matched_depth(branches, text) for text in ([5, 7, 1], [6, 7], [6, 9], [9], [5])] == [
        2, 2, 1, 0, 1,
    ]  # fmt: skip


# -- the cost model -------------------------------------------------------------------------------


def test_costs() -> None:
    costs = StepCosts(one_row_ms=10.0, verify_ms=12.0, draft_ms=8.0, rows=5, depth=4)
    assert costs.speed_up(3.0) == pytest.approx(1.5)
    rates = [0.9, 0.8, 0.1, 0.0]
    # Two steps: 2.7 tokens in 11 + 4 ms, more than 1.9 in 12.5 or 2.8 in 17.5.
    assert costs.best_length(rates) == (2, pytest.approx(1.8))
    assert costs.best_length([0.1, 0.0, 0.0, 0.0]) == (0, 1.0)
    assert costs.best_length([]) == (0, 1.0)


def figures(rates: list[int], costs: StepCosts) -> PairFigures:
    """``rates``: in a hundred steps, those that agree at each depth."""
    metrics = SpeculativeMetrics()
    for i in range(100):
        metrics.record(1 + sum(i < rate for rate in rates), costs.depth)
    spec = {"method": "ngram", "num_speculative_tokens": costs.depth}
    method = BenchMethod("draft:4", parse_speculative_config(spec))
    return PairFigures(method, {0.0: metrics.to_dict(), 1.0: metrics.to_dict()}, costs)


CHEAP = StepCosts(10.0, 11.0, 1.0, 5, 4)


@pytest.mark.parametrize(
    ("rates", "costs", "statuses", "remedy"),
    [
        ([90, 80, 70, 60], CHEAP, [OK, OK, OK], ""),
        ([3, 0, 0, 0], CHEAP, [PROBLEM, PROBLEM, WARNING], "serve without this draft"),
        ([30, 20, 10, 0], CHEAP, [WARNING, WARNING, OK], ""),
        ([90, 20, 0, 0], StepCosts(10, 12, 8, 5, 4), [OK, OK, OK], "num_speculative_tokens=1"),
        ([60, 20, 0, 0], StepCosts(10, 30, 30, 5, 4), [OK, OK, WARNING], "serve without"),
        # A tree has no length to change.
        ([90, 20, 0, 0], StepCosts(10, 12, 8, 24, 4), [OK, OK, OK], ""),
    ],
)
def test_what_figures_mean(
    rates: list[int], costs: StepCosts, statuses: list[str], remedy: str
) -> None:
    checks = figure_checks(figures(rates, costs))
    assert [check.status for check in checks] == statuses
    assert remedy in checks[-1].remedy and bool(remedy) == bool(checks[-1].remedy)
    kind = "top-1 agreement" if costs.rows == 5 else "agreement at temperature 0"
    assert checks[0].name == f"draft:4: {kind}"


def test_a_pair_as_json(models: TinyModels, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = chain(models.draft("llama"), 2)
    folder = build(models.folder("llama"), spec, dtype="float32", backend="eager")
    costs = StepCosts(10.0, 12.0, 8.0, 3, 2)
    monkeypatch.setattr("trtspec.bench.doctor.pair_checks.measure_costs", lambda *arguments: costs)
    method = BenchMethod("draft_model:2", parse_speculative_config(spec))
    found = measure_pair(folder, method, [random_prompt(1, 9)], 8).to_dict()
    assert found["speculative_config"]["method"] == "draft_model"
    assert list(found["agreement"]) == ["0", "1"] == list(found["expected_speed_up"])
    length = found["agreement"]["0"]["acceptance_length"]
    assert found["expected_speed_up"]["0"] == pytest.approx(length * 10 / 20)
    assert found["costs"]["rows"] == 3


# -- the machine ----------------------------------------------------------------------------------


def test_a_compiler(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    compiler = tmp_path / "my-c++"
    compiler.write_text("#!/bin/sh\necho my compiler 1.0\n")
    compiler.chmod(0o755)
    monkeypatch.setenv("CXX", str(compiler))
    check = machine.compiler_check()
    assert check.status == OK and "my compiler 1.0" in check.detail
    monkeypatch.setenv("CXX", "no-such-compiler")
    check = machine.compiler_check()
    assert check.status == PROBLEM and "CXX names no-such-compiler" in check.detail
    monkeypatch.delenv("CXX")
    monkeypatch.setenv("PATH", str(tmp_path))
    check = machine.compiler_check()
    assert check.status == WARNING and "eager mode" in check.detail


def test_findings_by_value(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert machine.instruction_set_check("avx2").status == OK
    assert machine.instruction_set_check("generic").status == WARNING
    assert [machine.threads_check(n, 2).status for n in (1, 2, 3)] == [NOTE, OK, WARNING]
    assert "OMP_NUM_THREADS=2" in machine.threads_check(3, 2).remedy
    assert [machine.load_check(load, 2).status for load in (0.1, 1.0)] == [OK, WARNING]
    gb = 10**9
    sizes = [machine.memory_check(10 * gb, n * gb).status for n in (0, 4, 6, 11)]
    assert sizes == [OK, OK, WARNING, PROBLEM]
    assert machine.disk_check(tmp_path / "not" / "yet", 1).status == OK
    assert machine.temporary_check().status == OK
    monkeypatch.setenv("TMPDIR", str(tmp_path / "missing"))
    assert "TMPDIR" in machine.temporary_check().detail
    full = machine.disk_check(tmp_path, 1 << 60)
    assert full.status == WARNING and "TRTSPEC_CACHE_DIR" in full.remedy


def test_extras() -> None:
    """By the names of the metadata; what developers install is not shown."""
    found = machine.extras(
        [
            "torch<2.14,>=2.11",
            'no-such-package>=1; extra == "bench"',
            'pytest>=8; extra == "bench"',
            'trtspec[test]; extra == "dev"',
        ]
    )
    assert list(found) == ["bench"] and found["bench"]["no-such-package"] is None
    check = machine.extra_check("bench", found["bench"])
    assert check.status == NOTE and "pip install 'trtspec[bench]'" in check.remedy
    assert machine.extra_check("bench", {"pytest": "8.0"}).detail == "pytest 8.0"


def test_text() -> None:
    checks = [Check("one", OK, "fine"), Check("second", PROBLEM, "bad", "do better")]
    assert has_problem(checks) and not has_problem(checks[:1])
    assert describe(checks).splitlines() == [
        "ok       one     fine",
        "problem  second  bad",
        "                 -> do better",
    ]


# -- contracts ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("method", "draft", "status"),
    [
        ("draft_model", "trtspec-tiny-draft", OK),  # 12 % a token
        ("eagle3", "trtspec-tiny-eagle3", WARNING),  # 30 %
        ("dflash", "trtspec-tiny-dflash", OK),  # 32 % for four tokens
    ],
)
def test_what_a_drafted_token_may_cost(method: str, draft: str, status: str) -> None:
    spec = {"method": method, "model": draft, "num_speculative_tokens": 4}
    config = BenchMethod(method, parse_speculative_config(spec))
    found = contract_check("trtspec-tiny", config, BuildConfig(backend="eager"))
    assert found.status == status and "a pass reads" in found.detail
    assert ("a drafted token reads more than 25%" in found.remedy) == (status == WARNING)


@pytest.mark.parametrize("flaw", ["", "zeros", "ids", "contradicts", "head", "nan"])
def test_what_a_draft_is_doubted_for(
    models: TinyModels,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
    flaw: str,
) -> None:
    """By the doctor, before anything is built; by `LLM`, which builds; and where the engine that
    was built is opened again."""
    monkeypatch.setattr(pair_checks, "HEAVY", 1.0)  # beside so small a target
    target, head = models.folder("llama"), tmp_path / "head"
    ids = [*(token for token in range(10, 50) if token % 4 > 1), 60]
    random_eagle3(models.hf("llama"), head, ids)
    file = head / "model.safetensors"
    tensors = load_file(file)
    if flaw == "zeros":
        tensors["d2t"] = torch.zeros(21, dtype=torch.int64)
    elif flaw == "ids":
        tensors["d2t"] = torch.tensor(ids)
    elif flaw == "contradicts":
        tensors["t2d"] = torch.ones(VOCAB, dtype=torch.bool)
    elif flaw == "head":
        tensors["lm_head.weight"] = torch.zeros_like(tensors["lm_head.weight"])
    elif flaw == "nan":
        tensors["fc.weight"][0, 0] = float("nan")
    save_file(tensors, file)
    spec = eagle(head, "eagle3", num_speculative_tokens=2)
    build_config = BuildConfig(backend="eager", dtype="float32")
    method = BenchMethod("eagle3:2", parse_speculative_config(spec))
    found = contract_check(str(target), method, build_config)
    status, said = {
        "": (OK, "a pass reads"),
        "zeros": (WARNING, "d2t is all zeros"),
        "ids": (WARNING, "d2t holds 21 different token ids"),
        "contradicts": (PROBLEM, f"d2t covers 21 tokens, t2d {VOCAB}"),
        "head": (PROBLEM, "lm_head.weight [21, 64] holds zeros"),
        "nan": (PROBLEM, "fc.weight [64, 128] has 1 of 8192 values"),
    }[flaw]
    assert found.status == status and said in found.detail
    caplog.clear()
    if status == PROBLEM:
        with pytest.raises(CheckpointError, match=re.escape(said)):
            open_llm(target, spec)
        return
    warned = said if status == WARNING else ""
    with open_llm(target, spec):
        assert bool(warned) == (f"{head}: {said}" in caplog.text)
    folder = build(target, spec, tmp_path / "engine", dtype="float32", backend="eager")
    caplog.clear()
    with LLM(folder, skip_tokenizer_init=True):
        assert bool(warned) == (f"{folder / 'draft'}: {said}" in caplog.text)
    inside = BenchMethod("eagle3:2", parse_speculative_config({**spec, "model": "draft"}))
    again = contract_check(str(folder), inside, build_config)
    assert again.status == status and warned in again.detail
