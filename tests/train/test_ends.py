"""A target's ends are the same to whoever trains for it, plans with it or reads it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

from trtspec.builder.checkpoints import load_target, target_config
from trtspec.builder.plan import plan_build
from trtspec.builder.token_choice import DraftCost, choose
from trtspec.config.build_config import BuildConfig
from trtspec.speculative.recipe import HeadRequest
from trtspec.speculative.registry import methods
from trtspec.train.data import mask_token
from trtspec.train.target import TrainingTarget

from ..e2e.helpers import TinyModels
from ..e2e.tiny_tokenizer import save_bytes


@pytest.fixture
def folder(models: TinyModels, tmp_path: Path) -> Path:
    """A copy whose configs name token 7 as an end, and its tokenizer token 0."""
    copy = Path(shutil.copytree(models.folder("llama"), tmp_path / "model"))
    save_bytes(copy, 300)
    config = json.loads((copy / "config.json").read_text())
    (copy / "config.json").write_text(json.dumps(config | {"eos_token_id": 7}))
    (copy / "generation_config.json").unlink(missing_ok=True)
    return copy


def test_everyone_reads_the_same_ends(folder: Path) -> None:
    planned = plan_build(folder, BuildConfig(backend="eager")).engine.target.eos_token_ids
    assert planned == (7, 0)
    assert target_config(folder).eos_token_ids == planned
    assert load_target(folder).config.eos_token_ids == planned
    assert TrainingTarget.open(folder).config.eos_token_ids == planned
    (folder / "tokenizer.json").write_text("damaged")
    assert target_config(folder).eos_token_ids == (7,)


def test_a_trained_head_can_propose_the_end_of_the_tokenizer(folder: Path) -> None:
    """Though no recorded text has it: the token that ended a text is not among its rows."""
    config = TrainingTarget.open(folder).config
    cost = DraftCost(target=10**8, body=10**6, row=1000, depth=5)
    texts = [torch.arange(20, 120).repeat(3)] * 2
    found = choose(texts, config.vocab_size, config.eos_token_ids, 10, cost)
    assert found.ids is not None and {0, 7} <= set(found.ids.tolist())


def test_a_target_with_no_other_end(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"eos_token_id": None}))
    target = TrainingTarget.open(folder)
    recipe = methods()["eagle3"].recipe
    assert recipe is not None
    request = HeadRequest(target.config, 10, recipe.depth, mask_token(target), 16)
    architecture = recipe.settings(request)["eagle_architecture_config"]
    assert architecture["eos_token_id"] == 0 == mask_token(target)
