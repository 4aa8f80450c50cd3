"""Networks that are split over ranks, threads here: the logits of the whole one, in every family
and every weight format, and the same bits on all ranks."""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from checkpoint_converters import load_checkpoint
from trtspec.builder.accuracy import log_probabilities
from trtspec.builder.plan import plan_build
from trtspec.config.build_config import BuildConfig
from trtspec.engine.graphs import target_module
from trtspec.errors import CheckpointError, ConfigError
from trtspec.models.causal_lm import CausalLM
from trtspec.models.rank_weights import RankWeights
from trtspec.ops.collectives import RankGroup

from ..checkpoints import quantised_layers
from ..checkpoints.quantised_layers import CASES
from ..e2e.families import FAMILIES, family_model
from ..e2e.helpers import TinyModels, random_prompt
from ..e2e.quantised_folder import quantised

IDS = torch.tensor(random_prompt(5, 40))
FLOATS = {"activation_dtype": "float32"}


def networks(path: Path, ranks: int, **options: Any) -> list[CausalLM]:
    """What each rank has of a checkpoint, with its weights."""
    config = BuildConfig("float32", backend="eager", tensor_parallel_size=ranks, **options)
    engine = plan_build(path, config, None, True).engine
    stored = load_checkpoint(path)
    made = []
    for rank in range(ranks):
        model = target_module(engine)
        if ranks == 1:
            model.load_weights(replace(stored, config=engine.target))
        else:
            model.load_weights(RankWeights(stored, engine.target, rank))
        made.append(model)
    return made


def split_logits(path: Path, ranks: int, **options: Any) -> list[Tensor]:
    """The log probabilities that each rank gives `IDS`."""
    models = networks(path, ranks, **options)
    memory = os.memfd_create("ranks")
    os.ftruncate(memory, RankGroup.memory_bytes(ranks))
    groups = [RankGroup(memory, rank, ranks, patience=60) for rank in range(ranks)]
    os.close(memory)
    for model, group in zip(models, groups, strict=True):
        assert model.ranks is not None
        model.ranks.group.copy_(group.tensor)
    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(lambda model: log_probabilities(model, IDS), models))


def assert_split(path: Path, ranks: int, **options: Any) -> None:
    (whole,) = networks(path, 1, **options)
    first, *others = split_logits(path, ranks, **options)
    torch.testing.assert_close(first, log_probabilities(whole, IDS), rtol=0, atol=2e-4)
    assert all(torch.equal(first, other) for other in others)


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_every_family(tmp_path: Path, family: str) -> None:
    family_model(family).save_pretrained(tmp_path)
    assert_split(tmp_path, 2)


@pytest.mark.parametrize(
    ("family", "count"),
    [
        ("gpt_oss", "num_local_experts"),
        ("deepseek_v3", "n_routed_experts"),
        ("qwen2_moe", "num_experts"),
    ],
)
def test_experts_are_shared_out_whole(tmp_path: Path, family: str, count: str) -> None:
    """With biases; behind a router of groups; beside a shared one."""
    family_model(family, **{count: 8}).save_pretrained(tmp_path)
    assert_split(tmp_path, 2, enable_expert_parallel=True)
    assert_split(tmp_path, 4, enable_expert_parallel=True)


@pytest.mark.parametrize("options", [{}, {"weight_dtype": "int8"}, {"weight_dtype": "int4"}])
def test_more_ranks_than_heads_of_keys(models: TinyModels, options: dict[str, str]) -> None:
    """Rounded weights, too: their groups are those of the whole one."""
    more = {**options, **FLOATS, "weight_group_size": 16} if options else {}
    path = models.root / "wide_granite"
    if not path.exists():
        family_model("granite", intermediate_size=128).save_pretrained(path)
    assert_split(path, 4, **more)


@pytest.mark.parametrize("name", [name for name in CASES if "act" not in name])
def test_every_scheme_of_quantised_checkpoints(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """By the floats that the codes stand for; groups follow the inputs of a rank."""
    monkeypatch.setattr(quantised_layers, "GROUP", 16)
    model = family_model("smollm3", intermediate_size=128, num_hidden_layers=2)
    model.save_pretrained(tmp_path / "source")
    path, _ = quantised(tmp_path / "source", CASES[name], tmp_path)
    assert_split(path, 2, **FLOATS)


def test_groups_that_ranks_would_cut_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quantised_layers, "GROUP", 16)
    family_model("smollm3", num_hidden_layers=2).save_pretrained(tmp_path / "source")
    path, _ = quantised(tmp_path / "source", CASES["gptq"], tmp_path)
    with pytest.raises(CheckpointError, match="do not divide the 44 inputs of a rank"):
        networks(path, 2)


@pytest.mark.parametrize("family", ["olmo2", "olmo3", "granite_hybrid_moe"])
def test_norms_over_all_heads_are_those_of_all_ranks(tmp_path: Path, family: str) -> None:
    """Of one head a rank, and of keys that several ranks have."""
    heads = {"mamba_n_heads": 8, "mamba_expand": 4} if family == "granite_hybrid_moe" else {}
    family_model(family, **heads).save_pretrained(tmp_path)
    assert_split(tmp_path, 4)


def test_groups_of_heads_with_a_norm_are_not_cut(tmp_path: Path) -> None:
    family_model("granite_hybrid").save_pretrained(tmp_path)
    words = "num_groups, of heads with one norm, is 2, which tensor_parallel_size 4 does not divide"
    with pytest.raises(ConfigError, match=words):
        networks(tmp_path, 4)
