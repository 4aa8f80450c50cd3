"""Networks that are right are as right in a hybrid: each reads its own states and its own cache,
however a request is fed. Texts cannot show any of it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from trtspec import SamplingParams
from trtspec.engine.folder import EngineConfig
from trtspec.ops.tree import TokenTree

from .eagle_heads import (
    LAYER_IDS,
    H,
    RightHeads,
    V,
    eagle,
    known_text,
    save_right_heads,
    write,
)
from .helpers import assert_no_leak, chain, ngram, open_llm, random_prompt, tokens, watch
from .hybrid_drafts import Drafted, hybrid, record_drafts
from .medusa_heads import medusa, right_heads, write_heads

pytestmark = pytest.mark.slow

LENGTH = 4
CHAIN = {"num_speculative_tokens": LENGTH}
# The mode, then any tokens: of several lengths, two of them equal in their first 32 tokens.
BODIES = [random_prompt(380 + i, n, V - 2) for i, n in enumerate((20, 1, 4, 39))]
PROMPTS = [[i % 2, *(token + 2 for token in body)] for i, body in enumerate(BODIES)]
PROMPTS += [[*PROMPTS[3][:32], 5, 6], [*PROMPTS[3][:32], 7]]
LONG = SamplingParams(max_tokens=60)
NAMES = ("ngram", "medusa", "eagle3", "draft_model", "eagle")


@pytest.fixture(scope="module")
def heads(tmp_path_factory: pytest.TempPathFactory) -> RightHeads:
    """The EAGLE-3 head is handed the embeddings as well, which it makes no use of; the other heads
    read the output of the final norm."""
    root = tmp_path_factory.mktemp("right")
    heads = save_right_heads(root, 40.0)
    values = json.loads((heads.eagle3 / "config.json").read_text())
    del values["eagle_config"]
    values[LAYER_IDS] = [0, 2]  # inputs
    tensors = load_file(heads.eagle3 / "model.safetensors")
    tensors["fc.weight"] = torch.cat((torch.zeros(H, H), tensors["fc.weight"]), dim=1)
    write_heads(root / "medusa", right_heads(LENGTH))
    return replace(heads, eagle3=write(root / "two_layers", values, tensors))


def members(heads: RightHeads) -> dict[str, dict[str, Any]]:
    """``eagle`` needs the first row of its own cache, ``draft_model`` all rows of its own."""
    return {
        "ngram": ngram(3),
        "medusa": medusa(heads.target.parent / "medusa", LENGTH, topk=1),
        "eagle3": eagle(heads.eagle3, "eagle3", **CHAIN),
        "draft_model": chain(heads.target, LENGTH),
        "eagle": eagle(heads.eagle1_cached, "eagle", **CHAIN),
    }


def hits(tree: TokenTree, text: Sequence[int]) -> int:
    """Tokens of ``text`` that the tree foresees."""
    paths = [tree.path_tokens(node) for node in range(len(tree))]
    return max([0, *(len(path) for path in paths if path == tuple(text[: len(path)]))])


def rates(steps: Sequence[Drafted]) -> dict[str, float]:
    """Of each member, right tokens by depth drafted, and the share of steps in which it drafted."""
    found = {}
    for i, name in enumerate(NAMES):
        right = drafted = 0
        for step in steps:
            prompt = step.request.tokens[: step.request.num_prompt_tokens]
            text = known_text(prompt, 60)[step.num_output_tokens :]
            right += hits(step.parts[i], text)
            drafted += step.parts[i].max_depth
        found[name] = right / drafted if drafted else 0.0
    return found


def run(heads: RightHeads, **options: Any) -> tuple[list[Drafted], dict[str, Any], int]:
    """Two passes, the second over cached prefixes; the drafts, the metrics and the preemptions."""
    config = hybrid(*members(heads).values())
    with open_llm(heads.target, config, **options) as llm:
        steps, taken = record_drafts(llm), watch(llm)
        for _ in range(2):
            found = tokens(llm.generate(PROMPTS, LONG, use_tqdm=False))
            assert found == [known_text(prompt, 60) for prompt in PROMPTS]
        assert_no_leak(llm)
        return steps, llm.get_metrics(), sum(step.num_preempted for step in taken)


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "alone": {"max_batch_size": 1},
    "chunked": {"max_num_tokens": 24, "max_batch_size": 4},
    "preempted": {"tokens_per_block": 4, "kv_cache_config": {"max_tokens": 200}},
}


@pytest.mark.parametrize("options", OPTIONS)
def test_every_member_is_as_right_as_alone(heads: RightHeads, options: str) -> None:
    steps, metrics, num_preempted = run(heads, **OPTIONS[options])
    assert (num_preempted > 0) == (options == "preempted")
    found = rates(steps)
    # Behind a prompt's last token, where a chunk may end, no head foresees what it has not read.
    assert found["draft_model"] == found["eagle"] == 1.0
    assert found["eagle3"] >= 0.99
    assert found["medusa"] >= (0.98 if options in ("plain", "alone") else 0.9)
    # Right chains are one path.
    assert metrics["num_accepted_tokens"] > 500
    drafting = [sum(len(step.parts[i]) > 0 for step in steps) for i in range(len(NAMES))]
    assert min(drafting[1:]) >= 0.9 * max(drafting) and drafting[0] > 0


def test_the_layout_of_the_states(heads: RightHeads) -> None:
    """What several read alike is handed out once."""
    with open_llm(heads.target, hybrid(*members(heads).values())) as llm:
        engine = llm.config
    assert [draft.speculation.method for draft in engine.drafts] == list(NAMES[1:])
    assert engine.capture_layers == (2, -1, 1)
    every = [engine.states_of(draft) for draft in engine.drafts]
    assert every == [slice(0, H), slice(H, 3 * H), None, slice(0, H)]
    pair = replace(engine, drafts=engine.drafts[:1])
    assert pair.states_of(pair.drafts[0]) is None


@pytest.mark.parametrize("wrong", ["medusa", "eagle3"])
def test_the_states_of_another_are_noticed(
    heads: RightHeads, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    """One member reads one layer further; the others are as right as ever."""
    states_of = EngineConfig.states_of

    def shifted(engine: EngineConfig, draft: Any) -> slice | None:
        right = states_of(engine, draft)
        if draft.speculation.method != wrong:
            return right
        assert right is not None
        by = -H if wrong == "eagle3" else H
        return slice(right.start + by, right.stop + by)

    monkeypatch.setattr(EngineConfig, "states_of", shifted)
    found = rates(run(heads)[0])
    for name in NAMES[1:]:
        assert (found[name] < 0.5) == (name == wrong), found
