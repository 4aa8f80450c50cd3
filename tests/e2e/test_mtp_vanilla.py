"""MTP modules that each draft at a depth of their own: no token changes, every right guess is
accepted, and what is kept of a module's cache is what the text alone decides."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec import LLM, SamplingParams
from trtspec.backends.packing import RowGroup
from trtspec.builder.build_engine import cached_engine
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.errors import ConfigError
from trtspec.executor.schedule.resources import DraftCache
from trtspec.executor.step.request import Request
from trtspec.speculative.eagle.network import EagleDraft
from trtspec.speculative.hidden_state_drafter import HiddenStateDrafter
from trtspec.speculative.mtp.modules_shape import MtpModulesConfig
from trtspec.speculative.mtp.shape import MtpConfig
from trtspec.speculative.options import parse_speculative_config

from .. import inside
from .eagle_heads import V, known_text
from .helpers import (
    GREEDY_24,
    PARAMS_40,
    SAMPLED_24,
    TinyModels,
    assert_no_leak,
    eight_prompts,
    ngram,
    open_llm,
    random_prompt,
    tokens,
    watch,
)
from .hybrid_drafts import hybrid
from .mtp_from_scratch import FromScratch, kept_rows
from .mtp_modules import DEPTHS, FORMATS, add_modules, deep_counts, mtp, random_module, save_deep

pytestmark = pytest.mark.slow

PROMPTS = eight_prompts(460)
CHAIN: dict[str, Any] = {"num_speculative_tokens": DEPTHS}
RIGHT_PROMPTS = [
    [i % 2, *(token + 2 for token in random_prompt(480 + i, n, V - 2))]
    for i, n in enumerate((20, 1, 4, 39, 11, 6))
]
OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "alone": {"max_batch_size": 1},
    "chunked": {"max_num_tokens": 24, "max_batch_size": 4},
    "preempted": {"tokens_per_block": 4, "kv_cache_config": {"max_tokens": 150}},
}


@pytest.fixture(scope="module")
def checkpoint(
    models: TinyModels, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[str, str], Path]:
    root = tmp_path_factory.mktemp("mtp")

    @cache
    def made(case: str, family: str) -> Path:
        modules = [random_module(models.hf(case), seed) for seed in range(DEPTHS)]
        return add_modules(models.folder(case), root / f"{case}-{family}", modules, family)

    return made


@pytest.fixture(
    scope="module", params=[FORMATS[0], pytest.param(FORMATS[1], marks=pytest.mark.matrix)]
)
def deep(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_deep(tmp_path_factory.mktemp(request.param), request.param)


@pytest.mark.parametrize(
    ("case", "family", "length"), [("llama", "mimo", 3), ("qwen3", "qwen3_next", 2)]
)
def test_same_tokens(
    models: TinyModels, checkpoint: Callable[[str, str], Path], case: str, family: str, length: int
) -> None:
    """transformers' greedy text and the sampled text without speculation, eight at once in chunks,
    then over cached prefixes, with too few blocks for all, and each alone."""
    folder, config = checkpoint(case, family), mtp(num_speculative_tokens=length)
    greedy = [models.greedy(case, prompt, 24) for prompt in PROMPTS]
    with open_llm(models.folder(case), max_batch_size=1) as llm:
        pairs = zip(PROMPTS, SAMPLED_24, strict=True)
        sampled = tokens([llm.generate(prompt, params) for prompt, params in pairs])
    few = {"kv_cache_config": {"max_tokens": 112}}
    for options in ({"max_num_tokens": 60}, few):
        with open_llm(folder, config, max_batch_size=8, **options) as llm:
            steps = watch(llm)
            for _ in range(2):
                assert tokens(llm.generate(PROMPTS, GREEDY_24, use_tqdm=False)) == greedy
                assert tokens(llm.generate(PROMPTS, SAMPLED_24, use_tqdm=False)) == sampled
            network = llm.config.drafts[0].network
            assert isinstance(network, MtpModulesConfig) and network.num_modules == length
            assert (sum(step.num_preempted for step in steps) > 0) == (options is few)
            assert llm.get_metrics()["num_draft_tokens"] > 0
            assert_no_leak(llm)
    with open_llm(folder, config, max_batch_size=1) as llm:
        assert tokens([llm.generate(prompt, GREEDY_24) for prompt in PROMPTS]) == greedy


def test_two_engine_calls(checkpoint: Callable[[str, str], Path]) -> None:
    """All modules draft in one call, in every step."""
    with open_llm(checkpoint("llama", "mimo"), mtp(**CHAIN)) as llm:
        steps = watch(llm)
        llm.generate(PROMPTS, PARAMS_40, use_tqdm=False)
        pure = [step for step in steps if step.only_generates]
        assert len(pure) > 5
        for step in pure:
            drafts = any(item.max_nodes for item in step.items)
            assert (step.target_calls, step.draft_calls) == (1, int(drafts))


# Modules whose right and wrong guesses are known.


def counts(folder: Path, rounds: int = 1, **options: Any) -> tuple[int, int]:
    """Draft tokens and accepted ones of all RIGHT_PROMPTS, whose texts are checked."""
    with open_llm(folder, mtp(**CHAIN), **options) as llm:
        for _ in range(rounds):
            outputs = llm.generate(RIGHT_PROMPTS, PARAMS_40, use_tqdm=False)
            assert tokens(outputs) == [known_text(prompt, 40) for prompt in RIGHT_PROMPTS]
        metrics = llm.get_metrics()
        assert_no_leak(llm)
        return metrics["num_draft_tokens"], metrics["num_accepted_tokens"]


def expected_counts() -> tuple[int, int]:
    drafted, accepted = zip(*(deep_counts(prompt, 40) for prompt in RIGHT_PROMPTS), strict=True)
    return sum(drafted), sum(accepted)


@pytest.mark.parametrize("options", OPTIONS)
def test_every_right_guess_is_accepted(deep: Path, options: str) -> None:
    """The second time over cached prefixes."""
    drafted, accepted = counts(deep, 2, **OPTIONS[options])
    best = [2 * count for count in expected_counts()]
    if options in ("plain", "alone"):
        assert [drafted, accepted] == best
    # Where a prompt's last token is a step of its own, that drafts behind a token which no module
    # foresees; after a preemption the first token comes without drafts.
    assert abs(accepted / drafted - best[1] / best[0]) < 0.03
    assert best[1] / best[0] > 0.6


def test_fewer_steps_than_modules(deep: Path) -> None:
    """Of an engine that runs all its modules, drafts may be cut."""
    speculation = parse_speculative_config(mtp(**CHAIN))
    build = BuildConfig("float32", backend="eager")
    engine = cached_engine(plan_build(deep, build, speculation))
    with LLM(engine, mtp(num_speculative_tokens=2), skip_tokenizer_init=True) as llm:
        outputs = llm.generate(RIGHT_PROMPTS, PARAMS_40, use_tqdm=False)
        assert tokens(outputs) == [known_text(prompt, 40) for prompt in RIGHT_PROMPTS]
        for prompt, output in zip(RIGHT_PROMPTS, outputs, strict=True):
            found = output.metrics.to_dict()
            both = found["num_draft_tokens"], found["num_accepted_tokens"]
            assert both == deep_counts(prompt, 40, steps=2)
    with pytest.raises(ConfigError, match=r"use_mtp_vanilla=False was asked for.*at each depth"):
        LLM(engine, mtp(use_mtp_vanilla=False, **CHAIN), skip_tokenizer_init=True)


def test_beside_another_drafter(deep: Path) -> None:
    """What n-grams guess beyond the modules' depth costs no row of theirs."""
    config = hybrid(mtp(**CHAIN), ngram(5))
    with open_llm(deep, config, max_batch_size=3) as llm:
        for _ in range(2):
            outputs = llm.generate(RIGHT_PROMPTS, PARAMS_40, use_tqdm=False)
            assert tokens(outputs) == [known_text(prompt, 40) for prompt in RIGHT_PROMPTS]
        metrics = llm.get_metrics()
        assert metrics["histogram"][4:] and sum(metrics["histogram"][4:]) > 5
        assert metrics["num_accepted_tokens"] >= 2 * expected_counts()[1]
        assert_no_leak(llm)


def shared_prefix_counts(folder: Path) -> list[tuple[int, int]]:
    """Accepted drafts of texts that leave a cached one at every place, and how many could be."""
    first = RIGHT_PROMPTS[0]
    prompts = [
        [*first[:shared], *(token + 2 for token in random_prompt(shared, tail, V - 2))]
        for shared in range(4, len(first))
        for tail in (0, 2, 3, 5)
    ]
    found = []
    with open_llm(folder, mtp(**CHAIN), tokens_per_block=4) as llm:
        llm.generate([first], PARAMS_40, use_tqdm=False)
        for prompt in prompts:
            output = llm.generate(prompt, GREEDY_24)
            assert tokens([output]) == [known_text(prompt, 24)]
            accepted = output.metrics.to_dict()["num_accepted_tokens"]
            found.append((accepted, deep_counts(prompt, 24)[1]))
    return found


def test_a_shared_prefix_keeps_the_acceptance(deep: Path) -> None:
    """All but the first drafts of a few, which read rows that the draft's cache lacks."""
    found = shared_prefix_counts(deep)
    assert all(right - DEPTHS <= accepted <= right for accepted, right in found)
    assert sum(accepted < right for accepted, right in found) <= len(found) // 20


def keeps_drafted_rows(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DraftCache, "lookahead", 1)


def shifts_tokens(patch: pytest.MonkeyPatch) -> None:
    def group(self: HiddenStateDrafter, request: Request, start: int, count: int) -> RowGroup:
        return self._cache.rows(request, start, request.tokens[start : start + count])

    patch.setattr(HiddenStateDrafter, "_group", group)


def shifts_states(patch: pytest.MonkeyPatch) -> None:
    first_pass = HiddenStateDrafter._first_pass

    def rolled(self: HiddenStateDrafter, requests: Any) -> tuple[list[RowGroup], Tensor]:
        groups, hidden = first_pass(self, requests)
        return groups, hidden.roll(1, 0)

    patch.setattr(HiddenStateDrafter, "_first_pass", rolled)


def hands_nothing_on(patch: pytest.MonkeyPatch) -> None:
    draft = EagleDraft.draft

    def same_features(self: EagleDraft, ids: Tensor, features: Any, *rest: Any) -> Any:
        return features, draft(self, ids, features, *rest)[1]

    patch.setattr(EagleDraft, "draft", same_features)


def keeps_a_chunks_last_rows(patch: pytest.MonkeyPatch) -> None:
    """Of which some modules have read tokens that are not theirs."""
    accepted = HiddenStateDrafter.on_accepted

    def final(self: HiddenStateDrafter, batch: Any, result: Any) -> Any:
        lengths = accepted(self, batch, result)
        for i, item in enumerate(batch.items):
            states = self._pending[item.request.id].joined()
            if not item.is_generation and len(states) > 1:
                self._pending[item.request.id].replace(states[1:])
                lengths[i] = (lengths[i][0] + 1,)
        return lengths

    patch.setattr(HiddenStateDrafter, "on_accepted", final)


@pytest.mark.parametrize(
    ("flaw", "most"),
    [
        (keeps_drafted_rows, 0.95),
        (shifts_tokens, 0.1),
        (shifts_states, 0.5),
        (hands_nothing_on, 0.75),
        (keeps_a_chunks_last_rows, 0.999),
    ],
)
def test_flaws_are_noticed(
    deep: Path,
    monkeypatch: pytest.MonkeyPatch,
    flaw: Callable[[pytest.MonkeyPatch], None],
    most: float,
) -> None:
    """``most`` of the guesses that would be right are accepted."""
    flaw(monkeypatch)
    assert counts(deep)[1] <= most * expected_counts()[1]


# What the caches hold.


@pytest.mark.parametrize(
    "options",
    [
        {"max_batch_size": 3, "max_num_tokens": 16, "tokens_per_block": 4},
        {"tokens_per_block": 8, "kv_cache_config": {"max_tokens": 96}},
    ],
    ids=["chunked", "preempted"],
)
@pytest.mark.parametrize("family", FORMATS)
def test_kept_rows_are_those_of_the_text(
    checkpoint: Callable[[str, str], Path], family: str, options: dict[str, Any]
) -> None:
    """Of every module, after every few steps; also of prefixes that another request left."""
    prompts = [*PROMPTS[:5], *([*PROMPTS[0][:cut], 3, 4, 5] for cut in (8, 13, 21, 27))]
    seen = 0
    with open_llm(checkpoint("llama", family), mtp(**CHAIN), **options) as llm:
        steps, scratch, step = watch(llm), FromScratch(llm), inside.executor(llm).step

        def checked_step() -> Any:
            nonlocal seen
            outputs = step()
            for text, count, k, v in kept_rows(llm) if len(steps) % 3 == 0 else ():
                wanted = scratch.rows(list(text))
                assert count <= len(text) - DEPTHS or count == 0
                for found, right in zip((k, v), wanted, strict=True):
                    torch.testing.assert_close(found, right[:, :count], atol=1e-4, rtol=1e-4)
                seen += count
            return outputs

        inside.executor(llm).step = checked_step
        params = [
            SamplingParams(max_tokens=20, temperature=i % 2, seed=i) for i in range(len(prompts))
        ]
        for _ in range(2):
            llm.generate(prompts, params, use_tqdm=False)
        assert seen > 300
        metrics = llm.get_metrics()
        assert metrics["num_draft_tokens"] > metrics["num_accepted_tokens"] > 0
        assert (sum(s.num_preempted for s in steps) > 0) == ("kv_cache_config" in options)


# Builds.


def test_the_choice_is_told(checkpoint: Callable[[str, str], Path]) -> None:
    folder, build = checkpoint("llama", "mimo"), BuildConfig("float32", backend="eager")
    cases: list[tuple[dict[str, Any], type, str]] = [
        (CHAIN, MtpModulesConfig, "of 3 MTP modules each drafts at its own depth (3 of them)"),
        ({"num_speculative_tokens": 4}, MtpConfig, "drafts of 4 steps are deeper than 3 modules"),
        ({**CHAIN, "topk": 2}, MtpConfig, "the drafts are trees (topk=2)"),
        ({**CHAIN, "use_mtp_vanilla": False}, MtpConfig, "use_mtp_vanilla is False"),
        ({**CHAIN, "enable_multi_layer_eagle": True}, MtpModulesConfig, "each of 3 MTP modules"),
    ]
    plans = []
    for options, kind, reason in cases:
        plan = plan_build(folder, build, parse_speculative_config(mtp(**options)))
        assert type(plan.engine.drafts[0].network) is kind
        assert sum(reason in line for line in plan.reasons) == 1
        plans.append(plan.fingerprint)
    assert plans[0] == plans[4] and len(set(plans)) == 4
    wanted = mtp(num_speculative_tokens=4, use_mtp_vanilla=True)
    with pytest.raises(ConfigError, match="4 steps take as many MTP modules, the checkpoint has 3"):
        plan_build(folder, build, parse_speculative_config(wanted))


def test_a_token_map_cuts_the_head_of_every_module(
    models: TinyModels, checkpoint: Callable[[str, str], Path], tmp_path: Path
) -> None:
    torch.save(torch.arange(5, 60), tmp_path / "map.pt")
    config = mtp(speculative_token_map=str(tmp_path / "map.pt"), **CHAIN)
    with open_llm(checkpoint("llama", "mimo"), config) as llm:
        network: Any = llm.config.drafts[0].network
        assert network.module.draft_vocab_size == 55
        expected = [models.greedy("llama", prompt, 24) for prompt in PROMPTS]
        assert tokens(llm.generate(PROMPTS, GREEDY_24, use_tqdm=False)) == expected
