"""PARD and P-EAGLE drafts that are right are always accepted, and wherever a row, a state, a
position or a mask is wrong they are not."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import trtspec.speculative.eagle.checkpoint
from checkpoint_converters.capture import Capture
from trtspec import SamplingParams
from trtspec.backends.packing import RowGroup
from trtspec.executor.step.request import Request
from trtspec.speculative.hidden_state_drafter import HiddenStateDrafter
from trtspec.speculative.parallel.rollout import MaskedRows, ParallelRollout
from trtspec.speculative.token_drafter import TokenDrafter

from .eagle_heads import V, cycling_target, known_text
from .helpers import open_llm, random_prompt, tokens
from .medusa_heads import forgetful_target
from .parallel_drafts import (
    STEPS,
    forgetful_pard,
    p_eagle,
    pard,
    pard2,
    right_pard,
    save_pard,
    save_right_p_eagle,
    save_right_pard2,
)

METHODS = ("pard", "p_eagle")
CHAIN: dict[str, Any] = {"num_speculative_tokens": STEPS}
TWO: dict[str, Any] = {"num_speculative_tokens": 2}
STARTS = [
    [i % 2, *(token + 2 for token in random_prompt(380 + i, n, V - 2))]
    for i, n in enumerate((20, 1, 4, 39))
]
# The states foretell the tokens that the drafts look back on.
PROMPTS = [[*start, *known_text(start, 2)] for start in STARTS]
PARAMS = SamplingParams(max_tokens=24)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    root = tmp_path_factory.mktemp("right")
    cycling_target(40.0).save_pretrained(root / "target")
    return {
        "target": root / "target",
        "pard": save_pard(right_pard(40.0), root / "pard"),
        "p_eagle": save_right_p_eagle(root / "p_eagle", 40.0),
    }


def rate(target: Path, method: str, draft: Path, **options: Any) -> float:
    made = {"pard": pard, "pard2": pard2, "p_eagle": p_eagle}[method]
    config = made(draft, **(TWO if method == "pard2" else CHAIN))
    with open_llm(target, config, **options) as llm:
        for _ in range(2):  # cold, and over cached prefixes
            outputs = llm.generate(PROMPTS, PARAMS, use_tqdm=False)
            assert tokens(outputs) == [known_text(prompt, 24) for prompt in PROMPTS]
        metrics = llm.get_metrics()
        assert metrics["num_draft_tokens"] > 100
        value: float = metrics["acceptance_rate"]
        return value


@pytest.mark.parametrize(
    "options",
    [{}, {"max_batch_size": 4, "max_num_tokens": 24}, {"cuda_graph_config": True}],
    ids=["plain", "chunked", "padded"],
)
@pytest.mark.parametrize("method", METHODS)
def test_a_right_draft_is_always_accepted(
    folders: dict[str, Path], method: str, options: dict[str, Any]
) -> None:
    assert rate(folders["target"], method, folders[method], **options) >= 0.99


def test_a_right_draft_guesses_the_noise(tmp_path: Path) -> None:
    """Sampled texts that nobody could foresee: each depth has the noise of its own place."""
    target = forgetful_target()
    target.save_pretrained(tmp_path / "target")
    save_pard(forgetful_pard(target), tmp_path / "pard")
    params = [SamplingParams(40, temperature=1.0, seed=i) for i in range(len(PROMPTS))]
    with open_llm(tmp_path / "target", pard(tmp_path / "pard", **CHAIN)) as llm:
        found = tokens(llm.generate(PROMPTS, params, use_tqdm=False))
        assert llm.get_metrics()["acceptance_rate"] >= 0.99
    with open_llm(tmp_path / "target") as llm:
        assert tokens(llm.generate(PROMPTS, params, use_tqdm=False)) == found


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"max_batch_size": 1},
        {"max_batch_size": 4, "max_num_tokens": 24},
        {"tokens_per_block": 4, "kv_cache_config": {"max_tokens": 120}},
    ],
    ids=["plain", "alone", "chunked", "preempted"],
)
def test_states_that_tell_all(
    folders: dict[str, Path], tmp_path: Path, options: dict[str, Any]
) -> None:
    """Of tokens the model knows nothing: each row has the state before its own."""
    draft = save_right_pard2(tmp_path / "right", 40.0)
    assert rate(folders["target"], "pard2", draft, **options) >= 0.98
    wrong = save_right_pard2(tmp_path / "wrong", 40.0, shifted=True)
    assert rate(folders["target"], "pard2", wrong, **options) < 0.1


# Drafts that are wrong somewhere.


@pytest.mark.parametrize("method", METHODS)
def test_shifted_masks_are_noticed(
    folders: dict[str, Path], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    make = ParallelRollout._with_masks

    def shifted(self: ParallelRollout, *args: Any) -> MaskedRows:
        made = make(self, *args)
        positions = made.rows.positions + made.is_mask
        return made._replace(rows=made.rows._replace(positions=positions))

    monkeypatch.setattr(ParallelRollout, "_with_masks", shifted)
    assert rate(folders["target"], method, folders[method]) < 0.7


@pytest.mark.parametrize("method", METHODS)
def test_masks_left_in_the_cache_are_noticed(
    folders: dict[str, Path], method: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The root alone is fed, as if the rows of accepted drafts, which were masks, were theirs."""
    drafter: Any = TokenDrafter if method == "pard" else HiddenStateDrafter
    first_pass = drafter._first_pass

    def root_alone(self: Any, requests: Sequence[Request]) -> Any:
        groups, hidden = first_pass(self, requests)
        ends = torch.tensor([len(group.tokens) for group in groups]).cumsum(0) - 1
        alone = [
            RowGroup(group.tokens[-1:], group.context + len(group.tokens) - 1, group.blocks)
            for group in groups
        ]
        return alone, None if hidden is None else hidden[ends]

    monkeypatch.setattr(drafter, "_first_pass", root_alone)
    assert rate(folders["target"], method, folders[method]) < 0.7


@pytest.mark.parametrize("method", METHODS)
def test_another_mask_token_is_noticed(
    folders: dict[str, Path], tmp_path: Path, method: str
) -> None:
    key = "pard_token" if method == "pard" else "mask_token_id"
    config = json.loads((folders[method] / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps(config | {key: 2}))
    (tmp_path / "model.safetensors").symlink_to(folders[method] / "model.safetensors")
    assert rate(folders["target"], method, tmp_path) < 0.7


def test_another_mask_state_is_noticed(folders: dict[str, Path], tmp_path: Path) -> None:
    tensors = load_file(folders["p_eagle"] / "model.safetensors")
    tensors["mask_hidden"] = tensors["mask_hidden"].roll(1)
    save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").symlink_to(folders["p_eagle"] / "config.json")
    assert rate(folders["target"], "p_eagle", tmp_path) < 0.7


def test_the_wrong_states_are_noticed(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    read = trtspec.speculative.eagle.checkpoint.read_capture

    def other(*args: Any) -> Capture:
        return replace(read(*args), layers=(0,))

    monkeypatch.setattr(trtspec.speculative.eagle.checkpoint, "read_capture", other)
    assert rate(folders["target"], "p_eagle", folders["p_eagle"]) < 0.5


def test_shifted_states_are_noticed(
    folders: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A rollout that feeds the newest row alone has the state of the one before it."""
    first_pass = HiddenStateDrafter._first_pass
    previous: dict[int, Any] = {}

    def late(self: HiddenStateDrafter, requests: Sequence[Request]) -> Any:
        groups, hidden = first_pass(self, requests)
        parts = list(hidden.split([len(group.tokens) for group in groups]))
        for i, request in enumerate(requests):
            newest = parts[i][-1:].clone()
            before = previous.get(request.id, parts[i][:1])
            parts[i] = torch.cat((before, parts[i]))[: len(parts[i])]
            previous[request.id] = newest
        return groups, torch.cat(parts)

    monkeypatch.setattr(HiddenStateDrafter, "_first_pass", late)
    assert rate(folders["target"], "p_eagle", folders["p_eagle"]) < 0.5
