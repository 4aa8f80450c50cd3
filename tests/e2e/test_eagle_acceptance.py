"""How many drafts are accepted: all of a head that is right, the same number however a request is
fed, and few of a head that is fed wrongly. Texts cannot show any of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

from trtspec import SamplingParams
from trtspec.backends.packing import RowGroup
from trtspec.executor.schedule.resources import DraftCache
from trtspec.executor.schedule.scheduler import Scheduler
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.speculative.hidden_state_drafter import HiddenStateDrafter

from .eagle_heads import (
    LAYER_IDS,
    RightHeads,
    V,
    eagle,
    known_text,
    random_eagle1,
    random_eagle3,
    save_right_heads,
)
from .helpers import TinyModels, assert_no_leak, open_llm, random_prompt, tokens, watch

pytestmark = pytest.mark.slow

CHAIN: dict[str, Any] = {"num_speculative_tokens": 4}
TREE: dict[str, Any] = {"num_speculative_tokens": 3, "topk": 3, "num_draft_tokens": 9}
STATIC: dict[str, Any] = {"eagle_choices": [[0], [2], [0, 0], [2, 1], [0, 0, 0], [0, 0, 0, 0]]}
# The mode, then any tokens: of several lengths, two of them equal in their first 32 tokens.
BODIES = [random_prompt(180 + i, n, V - 2) for i, n in enumerate((20, 1, 4, 39))]
RIGHT_PROMPTS = [[i % 2, *(token + 2 for token in body)] for i, body in enumerate(BODIES)]
RIGHT_PROMPTS += [[*RIGHT_PROMPTS[3][:32], 5, 6], [*RIGHT_PROMPTS[3][:32], 7]]
LONG = SamplingParams(max_tokens=60)
SHORT = replace(LONG, max_tokens=24)
NOISY = [replace(LONG, temperature=1.0, seed=i) for i in range(len(RIGHT_PROMPTS))]
HEADS = ("eagle1", "eagle1_cached", "eagle3")


@pytest.fixture(scope="module")
def sharp(tmp_path_factory: pytest.TempPathFactory) -> RightHeads:
    """The next token is certain."""
    return save_right_heads(tmp_path_factory.mktemp("sharp"), 40.0)


@pytest.fixture(scope="module")
def blunt(tmp_path_factory: pytest.TempPathFactory) -> RightHeads:
    """The next token comes with a probability of 0.42."""
    return save_right_heads(tmp_path_factory.mktemp("blunt"), 3.0)


def config(heads: RightHeads, head: str, shape: dict[str, Any]) -> dict[str, Any]:
    return eagle(getattr(heads, head), "eagle3" if head == "eagle3" else "eagle", **shape)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "alone": {"max_batch_size": 1},
    "chunked": {"max_num_tokens": 24, "max_batch_size": 4},
    "preempted": {"tokens_per_block": 4, "kv_cache_config": {"max_tokens": 200}},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("head", HEADS)
def test_a_right_head_is_always_accepted(sharp: RightHeads, head: str, options: str) -> None:
    more = {"kv_cache_config": {"enable_block_reuse": True}, **OPTIONS[options]}
    with open_llm(sharp.target, config(sharp, head, CHAIN), **more) as llm:
        steps = watch(llm)
        for _ in range(2):  # the second time over cached prefixes
            found = tokens(llm.generate(RIGHT_PROMPTS, LONG, use_tqdm=False))
            assert found == [known_text(prompt, 60) for prompt in RIGHT_PROMPTS]
        metrics = llm.get_metrics()
        # A chunk may end before a prompt's last token: then a step drafts behind that one, which no
        # head foresees that reads states only.
        assert metrics["acceptance_rate"] >= (0.99 if head == "eagle3" else 1.0)
        assert metrics["num_accepted_tokens"] > 500
        assert (sum(step.num_preempted for step in steps) > 0) == (options == "preempted")
        assert_no_leak(llm)


@pytest.mark.parametrize("shape", [TREE, STATIC], ids=["tree", "static"])
@pytest.mark.parametrize("head", HEADS)
def test_a_right_head_reaches_the_leaves(
    sharp: RightHeads, head: str, shape: dict[str, Any]
) -> None:
    with open_llm(sharp.target, config(sharp, head, shape)) as llm:
        llm.generate(RIGHT_PROMPTS, LONG, use_tqdm=False)
        histogram = llm.get_metrics()["histogram"]
    # Every step but the last one of each text is as deep as the tree.
    assert sum(histogram[:-1]) <= len(RIGHT_PROMPTS) and histogram[-1] > 60


@pytest.mark.parametrize("head", ["eagle1", "eagle1_cached"])
def test_a_right_head_guesses_the_noise(blunt: RightHeads, head: str) -> None:
    """Sampled texts that nobody could foresee: the draft's noise is the target's."""
    with open_llm(blunt.target, config(blunt, head, CHAIN)) as llm:
        found = tokens(llm.generate(RIGHT_PROMPTS, NOISY, use_tqdm=False))
        assert llm.get_metrics()["acceptance_rate"] > 0.99
    with open_llm(blunt.target) as llm:
        assert tokens(llm.generate(RIGHT_PROMPTS, NOISY, use_tqdm=False)) == found
    for prompt, text in zip(RIGHT_PROMPTS, found, strict=True):
        certain = [known_text([prompt[0], token], 1)[0] for token in [prompt[-1], *text]]
        assert sum(a == b for a, b in zip(certain, text, strict=False)) < 45


# A head that is wrong somewhere.


def rate(heads: RightHeads, head: str, shape: dict[str, Any] = CHAIN) -> float:
    """Of both a cold and a warm pass."""
    with open_llm(heads.target, config(heads, head, shape)) as llm:
        for _ in range(2):
            for prompt in RIGHT_PROMPTS:
                text = llm.generate(prompt, SHORT).outputs[0].token_ids
                assert text == known_text(prompt, 24)
        value: float = llm.get_metrics()["acceptance_rate"]
        return value


def test_wrong_layers_are_noticed(sharp: RightHeads) -> None:
    """The right layer named by its number as an input, and the embeddings."""
    file = sharp.eagle3 / "config.json"
    original = file.read_text()
    values = json.loads(original)
    assert values.pop("eagle_config")[LAYER_IDS] == [1]
    try:
        for layer, least, most in ((2, 0.9, 1.0), (0, 0.0, 0.1)):
            file.write_text(json.dumps(values | {LAYER_IDS: [layer]}))
            assert least <= rate(sharp, "eagle3") <= most
    finally:
        file.write_text(original)


@pytest.mark.parametrize("head", ["eagle1", "eagle1_cached"])
def test_shifted_tokens_are_noticed(
    sharp: RightHeads, head: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def group(self: HiddenStateDrafter, request: Request, start: int, count: int) -> RowGroup:
        return self._cache.rows(request, start, request.tokens[start : start + count])

    monkeypatch.setattr(HiddenStateDrafter, "_group", group)
    assert rate(sharp, head) < 0.1


def test_a_stale_cache_is_noticed(sharp: RightHeads, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prefix that the target holds, but not the draft."""

    schedule, block_table = Scheduler.schedule, DraftCache.block_table
    held: dict[int, int] = {}

    def noted(self: Scheduler) -> StepPlan:
        plan = schedule(self)
        held.update((item.request.id, item.start) for item in plan.admitted)
        return plan

    def stale(self: DraftCache, request: Request) -> Tensor:
        table = block_table(self, request).clone()
        table[: held[request.id] // 16] = self._manager.num_blocks - 1  # blocks that nobody wrote
        return table

    monkeypatch.setattr(Scheduler, "schedule", noted)
    monkeypatch.setattr(DraftCache, "block_table", stale)
    assert rate(sharp, "eagle1") == 1.0  # it reads nothing of its cache
    assert rate(sharp, "eagle1_cached") < 0.5


# Counts do not depend on how a request is fed. The heads are random and read their whole cache.

PROMPTS = [random_prompt(190 + i, n) for i, n in enumerate((33, 30, 48, 5, 17, 1))]
PROMPTS += [[*PROMPTS[2][:32], 8, 9, 10], [*PROMPTS[2][:32], 11, 12]]
LIKELY = range(10, 34)
SAMPLED = [
    SamplingParams(
        22, temperature=0.8, seed=i, logit_bias=dict.fromkeys(LIKELY, 3.0), ignore_eos=True
    )
    for i in range(len(PROMPTS))
]


@pytest.fixture(scope="module", params=["eagle", "eagle3"])
def counted(
    request: pytest.FixtureRequest, models: TinyModels, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Path, str, Path]]:
    root, hf = tmp_path_factory.mktemp("counted"), models.hf("llama")
    folder = (
        random_eagle1(hf, root / "1")
        if request.param == "eagle"
        else random_eagle3(hf, root / "3", LIKELY)
    )
    yield models.folder("llama"), request.param, folder


Figures = list[tuple[list[int], dict[str, Any]]]


def figures(llm: Any, prompts: Sequence[list[int]], params: Sequence[SamplingParams]) -> Figures:
    outputs = llm.generate(list(prompts), list(params), use_tqdm=False)
    texts = tokens(outputs)
    return [(text, o.metrics.to_dict()) for text, o in zip(texts, outputs, strict=True)]


def cold(counted: tuple[Path, str, Path], shape: dict[str, Any]) -> Figures:
    """Each prompt alone and without a prefix cache."""
    target, method, folder = counted
    off = {"kv_cache_config": {"enable_block_reuse": False}}
    with open_llm(target, eagle(folder, method, **shape), **off) as llm:
        found = []
        for prompt, params in zip(PROMPTS, SAMPLED, strict=True):
            found += figures(llm, [prompt], [params])
        metrics = llm.get_metrics()
        assert 8 < metrics["num_accepted_tokens"] < metrics["num_draft_tokens"] / 2
        return found


@pytest.mark.parametrize("shape", [TREE, STATIC], ids=["tree", "static"])
def test_counts_do_not_depend_on_feeding(
    counted: tuple[Path, str, Path], shape: dict[str, Any]
) -> None:
    """In a batch; in chunks."""
    target, method, folder = counted
    expected = cold(counted, shape)
    off = {"kv_cache_config": {"enable_block_reuse": False}}
    # No chunk but the last one ends at a prompt's last token but one: that would be a draft's root.
    for options in (off, {**off, "max_batch_size": 1, "max_num_tokens": 13}):
        with open_llm(target, eagle(folder, method, **shape), **options) as llm:
            assert figures(llm, PROMPTS, SAMPLED) == expected


@pytest.mark.parametrize("shape", [CHAIN, TREE], ids=["chain", "tree"])
def test_counts_over_cached_prefixes(
    counted: tuple[Path, str, Path], shape: dict[str, Any]
) -> None:
    """Each prompt after all others and again after itself. Where all but one token come out of the
    cache the prefill's token is emitted by a step without drafts, which counts as one. What leaves
    a text at a block's border lacks that block's rows in the draft's cache, the last of which is
    made of the token behind it: it has the same text, and other drafts."""
    target, method, folder = counted
    expected = cold(counted, shape)
    leave = (6, 7)  # the text of 2, at a block's border
    order = [2, *leave, 0, 1, 3, 4, 5]
    with open_llm(target, eagle(folder, method, **shape)) as llm:
        steps = watch(llm)
        starts: list[list[int]] = [[], []]
        for turn in range(2):
            for i in order:
                steps.clear()
                [(text, metrics)] = figures(llm, PROMPTS[i : i + 1], SAMPLED[i : i + 1])
                first = steps[0].items[0]
                starts[turn].append(first.start)
                wanted = dict(expected[i][1])
                if turn == 1 and first.is_generation and len(PROMPTS[i]) > 1:
                    histogram = list(wanted["histogram"])
                    histogram[0] += 1
                    wanted["histogram"] = histogram
                    wanted["num_steps"] += 1
                    wanted["num_emitted_tokens"] += 1
                    wanted["acceptance_length"] = wanted["num_emitted_tokens"] / wanted["num_steps"]
                assert text == expected[i][0], (turn, i)
                assert metrics == wanted or i in leave, (turn, i)
        assert_no_leak(llm)
    assert starts[0] == [0, 32, 32, 0, 0, 0, 0, 0]
    assert starts[1] == [32, 32, 32, 32, 16, 0, 16, 0]
