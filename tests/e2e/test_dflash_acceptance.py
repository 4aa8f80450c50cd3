"""How many drafts of a DFlash network are accepted: all of one that is right, however a request is
fed, and few where states, positions or cached rows are wrong. Texts cannot show any of it."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec import SamplingParams
from trtspec.backends.packing import RowGroup
from trtspec.executor.step.request import Request
from trtspec.executor.step.step_plan import StepPlan
from trtspec.executor.step.step_result import StepResult
from trtspec.models.rows import PackedRows
from trtspec.speculative.block.backbone import BlockDraft, BlockRows
from trtspec.speculative.hidden_state_drafter import HiddenStateDrafter

from .dflash_heads import BLOCK, dflash, right_dflash, right_dflash2, right_dspark
from .eagle_heads import V, cycling_target, known_text
from .helpers import assert_no_leak, open_llm, random_prompt, tokens, watch

pytestmark = pytest.mark.slow

# The mode, then any tokens: of several lengths, two of them equal in their first 32 tokens.
BODIES = [random_prompt(380 + i, n, V - 2) for i, n in enumerate((20, 1, 4, 39))]
PROMPTS = [[i % 2, *(token + 2 for token in body)] for i, body in enumerate(BODIES)]
PROMPTS += [[*PROMPTS[3][:32], 5, 6], [*PROMPTS[3][:32], 7]]
LONG = SamplingParams(max_tokens=60)
NOISY = [replace(LONG, temperature=1.0, seed=i) for i in range(len(PROMPTS))]
NETWORKS = ("right", "cached", "strict", "anchor", "causal", "dspark", "dflash2")
SHAPES: dict[str, dict[str, Any]] = {
    "chain": {"method": "dflash"},
    "ddtree": {"method": "ddtree", "num_draft_tokens": 16},
    "dspark": {"method": "dspark"},
    "dspark tree": {"method": "dspark", "topk": 2, "num_draft_tokens": 9},
    "dflash2": {"method": "dflash2"},
    "dflash2 tree": {"method": "dflash2", "topk": 2, "num_draft_tokens": 8},
    "jetspec": {"method": "jetspec", "budget": 64, "tree_width": 7},
}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("right")
    cycling_target(40.0).save_pretrained(root / "sharp")
    cycling_target(3.0).save_pretrained(root / "blunt")
    right_dflash(root / "right", 40.0)
    right_dflash(root / "cached", 40.0, cached=True)
    right_dflash(root / "causal", 40.0, cached=True, causal=True)
    right_dflash(root / "strict", 40.0, strict=True)
    right_dflash(root / "anchor", 40.0, anchor=True)
    right_dflash(root / "right-blunt", 3.0)
    right_dflash(root / "anchor-blunt", 3.0, anchor=True)
    right_dspark(root / "dspark", 40.0)
    right_dspark(root / "dspark-shifted", 40.0, shifted=True)
    right_dspark(root / "dspark-blunt", 3.0)
    right_dflash2(root / "dflash2", 40.0)
    right_dflash2(root / "dflash2-shifted", 40.0, shifted=True)
    return root


def config(root: Path, network: str, shape: str = "chain", **more: Any) -> dict[str, Any]:
    if network.startswith(("dspark", "dflash2")):
        own = network.partition("-")[0]
        shape = {"chain": own, "ddtree": f"{own} tree"}[shape]
    steps = BLOCK - (not network.startswith(("anchor", "dspark")))
    return dflash(root / network, **{"num_speculative_tokens": steps, **SHAPES[shape], **more})


OPTIONS: dict[str, dict[str, Any]] = {
    "plain": {},
    "alone": {"max_batch_size": 1},
    "chunked": {"max_num_tokens": 24, "max_batch_size": 4},
    "preempted": {"tokens_per_block": 4, "kv_cache_config": {"max_tokens": 200}},
}


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("network", NETWORKS)
def test_a_right_network_is_always_accepted(root: Path, network: str, options: str) -> None:
    with open_llm(root / "sharp", config(root, network), **OPTIONS[options]) as llm:
        steps = watch(llm)
        for _ in range(2):  # the second time over cached prefixes
            found = tokens(llm.generate(PROMPTS, LONG, use_tqdm=False))
            assert found == [known_text(prompt, 60) for prompt in PROMPTS]
        metrics = llm.get_metrics()
        # Behind a prompt's last token a step may draft of a state that does not foresee that one.
        assert metrics["acceptance_rate"] >= (0.98 if network == "strict" else 1.0)
        assert metrics["num_accepted_tokens"] > 500
        assert (sum(step.num_preempted for step in steps) > 0) == (options == "preempted")
        assert_no_leak(llm)


@pytest.mark.parametrize("network", NETWORKS)
def test_a_tree_reaches_the_last_slot(root: Path, network: str) -> None:
    shape = "jetspec" if network == "causal" else "ddtree"
    with open_llm(root / "sharp", config(root, network, shape)) as llm:
        llm.generate(PROMPTS, LONG, use_tqdm=False)
        histogram = llm.get_metrics()["histogram"]
    assert sum(histogram[:-1]) <= 2 * len(PROMPTS) and histogram[-1] > 50


@pytest.mark.parametrize("network", ["right-blunt", "anchor-blunt", "dspark-blunt"])
@pytest.mark.parametrize("batch", [1, 8])
def test_the_first_slot_guesses_the_noise(root: Path, network: str, batch: int) -> None:
    """Sampled texts that nobody could foresee: the draft's noise is the target's, whichever slot
    says the first token."""
    one = config(root, network, num_speculative_tokens=1)
    with open_llm(root / "blunt", one, max_batch_size=batch) as llm:
        found = tokens(llm.generate(PROMPTS, NOISY, use_tqdm=False))
        least = 0.3 if network.startswith("right") else 0.99
        assert llm.get_metrics()["acceptance_rate"] > least
    with open_llm(root / "blunt") as llm:
        assert tokens(llm.generate(PROMPTS, NOISY, use_tqdm=False)) == found


# A network that is fed wrongly.


def rate(root: Path, network: str, **options: Any) -> float:
    """Of both a cold and a warm pass."""
    with open_llm(root / "sharp", config(root, network), **options) as llm:
        for _ in range(2):
            found = tokens(llm.generate(PROMPTS, LONG, use_tqdm=False))
            assert found == [known_text(prompt, 60) for prompt in PROMPTS]
        value: float = llm.get_metrics()["acceptance_rate"]
        return value


@pytest.mark.parametrize("network", ["dspark", "dflash2"])
def test_what_follows_other_tokens_is_noticed(root: Path, network: str) -> None:
    assert rate(root, f"{network}-shifted") < 0.1


def test_wrong_layers_are_noticed(root: Path) -> None:
    file = root / "strict" / "config.json"
    original = file.read_text()
    values = json.loads(original)
    values["dflash_config"]["target_layer_ids"] = [0]
    try:
        file.write_text(json.dumps(values))
        assert rate(root, "strict") < 0.1
    finally:
        file.write_text(original)


@pytest.mark.parametrize("network", ["right", "causal"])
def test_a_wrong_root_is_noticed(root: Path, monkeypatch: pytest.MonkeyPatch, network: str) -> None:
    def group(self: HiddenStateDrafter, request: Request, start: int, count: int) -> RowGroup:
        blocks = self._cache.block_table(request)
        return RowGroup(request.tokens[start : start + count], start, blocks)

    monkeypatch.setattr(HiddenStateDrafter, "_group", group)
    assert rate(root, network) < 0.1


def test_states_of_other_rows_are_noticed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each row's state in the place of the next one, where a step has accepted several."""
    on_accepted = HiddenStateDrafter.on_accepted

    def shifted(self: HiddenStateDrafter, batch: StepPlan, result: StepResult) -> Any:
        moved = torch.cat([hidden.roll(1, 0) for hidden in result.hidden_of(batch)])
        return on_accepted(self, batch, replace(result, hidden=moved))

    monkeypatch.setattr(HiddenStateDrafter, "on_accepted", shifted)
    assert rate(root, "strict") < 0.6


def test_a_stale_cache_is_noticed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accepted rows keep the keys and values of the block that guessed them."""
    draft = BlockDraft.draft

    def stale(self: BlockDraft, ids: Tensor, context: Tensor, block: Any, *caches: Any) -> Any:
        slots = block.rows.slot_mapping.clone()
        slots[len(ids) :] = -1
        rows = block.rows._replace(slot_mapping=slots)
        return draft(self, ids, context, block._replace(rows=rows), *caches)

    monkeypatch.setattr(BlockDraft, "draft", stale)
    assert rate(root, "right") < 0.3


@pytest.mark.parametrize("moved", ["context", "block"])
def test_wrong_positions_are_noticed(
    root: Path, monkeypatch: pytest.MonkeyPatch, moved: str
) -> None:
    joined = BlockRows.joined

    def shifted(blocks: PackedRows, context: PackedRows, size: int) -> BlockRows:
        block = joined(blocks, context, size)
        ahead = torch.arange(len(block.positions)) >= len(blocks.positions)
        by = ahead.long() if moved == "context" else -(~ahead).long()
        return block._replace(rows=block.rows._replace(positions=block.positions + by))

    monkeypatch.setattr(BlockRows, "joined", staticmethod(shifted))
    assert rate(root, "strict") < 0.2


def test_prefixes_that_were_never_fed_are_noticed(
    root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Prefill chunks that write nothing: what a prefix hit finds in the draft cache is zero."""
    monkeypatch.setattr(BlockDraft, "forward", lambda self, ids, rows, hidden, caches: (hidden,))
    assert rate(root, "cached") < 0.3
