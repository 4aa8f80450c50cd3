"""What an engine folder refuses of a speculative config that it was not built for."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from trtspec import LLM
from trtspec.backends.shape import WEIGHTS_NAME
from trtspec.engine.folder import read_weights
from trtspec.errors import ConfigError
from trtspec.llmapi.engines import build
from trtspec.speculative.eagle.shape import EagleConfig

from .eagle_heads import eagle, random_eagle3
from .helpers import TinyModels, chain, tree
from .parallel_drafts import p_eagle, pard, random_p_eagle, save_pard

CASE = "llama"
IDS = range(10, 34)
TREE: dict[str, Any] = {"num_speculative_tokens": 3, "topk": 2, "num_draft_tokens": 6}
OPTIONS: dict[str, Any] = {"backend": "eager", "dtype": "float32"}


@pytest.fixture(scope="module")
def drafts(models: TinyModels, tmp_path_factory: pytest.TempPathFactory) -> Mapping[str, Any]:
    root = tmp_path_factory.mktemp("drafts")
    hf = models.hf(CASE)
    return {
        "eagle3": eagle(random_eagle3(hf, root / "eagle3", IDS), "eagle3", **TREE),
        "draft_model": tree(models.draft(CASE), 2, 3, 6),
        "pard": pard(save_pard(hf, root / "pard", 7), **TREE),
        "p_eagle": p_eagle(random_p_eagle(hf, root / "p_eagle", list(IDS), layers=2), **TREE),
    }


@pytest.fixture(scope="module")
def folders(
    models: TinyModels, drafts: Mapping[str, Any], tmp_path_factory: pytest.TempPathFactory
) -> Mapping[str, Path]:
    root = tmp_path_factory.mktemp("engines")
    return {
        name: build(models.folder(CASE), config, root / name, **OPTIONS)
        for name, config in drafts.items()
    }


def test_what_a_head_borrows_is_not_stored(folders: Mapping[str, Path]) -> None:
    with LLM(folders["eagle3"], skip_tokenizer_init=True) as llm:
        draft = llm.config.drafts[0].network
        assert isinstance(draft, EagleConfig) and draft.capture_layers == (0, 1)
        assert llm.config.drafts[0].speculation.method == "eagle3"
    stored = read_weights(folders["eagle3"] / "draft" / WEIGHTS_NAME)
    assert stored["token_map"].tolist() == list(IDS)
    assert not any(name.startswith("target.") or "embed" in name for name in stored)
    masked = read_weights(folders["p_eagle"] / "draft" / WEIGHTS_NAME)
    assert "mask_hidden" in masked and "mask_hidden" not in stored


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"method": "eagle"}, "method 'eagle' was asked for, the engine's .* built for 'eagle3'"),
        ({"method": "draft_model"}, "method 'draft_model' .* built for 'eagle3'"),
        ({"topk": 3}, "topk=3 was asked for, the engine's rollout has 2"),
        ({"topk": 1, "num_draft_tokens": 4}, "topk=1 was asked for, .* has 2"),
        ({"num_speculative_tokens": 4}, "num_steps=4 was asked for, .* at most 3"),
        ({"num_draft_tokens": 7}, "num_draft_tokens=7 was asked for, .* at most 6"),
    ],
)
def test_another_contract(
    drafts: Mapping[str, Any], folders: Mapping[str, Path], change: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        LLM(folders["eagle3"], {**drafts["eagle3"], **change}, skip_tokenizer_init=True)


def test_a_static_tree(drafts: Mapping[str, Any], folders: Mapping[str, Path]) -> None:
    static = eagle(Path(drafts["eagle3"]["model"]), "eagle3", eagle_choices=[[0], [1], [0, 0]])
    with pytest.raises(ConfigError, match=r"choices \[\[0\], \[1\], \[0, 0\]\].*\(dynamic\)"):
        LLM(folders["eagle3"], static, skip_tokenizer_init=True)


def test_another_head(models: TinyModels, folders: Mapping[str, Path], tmp_path: Path) -> None:
    other = eagle(random_eagle3(models.hf(CASE), tmp_path, IDS, seed=8), "eagle3", **TREE)
    with pytest.raises(ConfigError, match=r"fingerprint .* is not the one in the engine"):
        LLM(folders["eagle3"], other, skip_tokenizer_init=True)


def test_the_chain_of_a_tree(models: TinyModels, folders: Mapping[str, Path]) -> None:
    with pytest.raises(ValueError, match="topk=1 was asked for, the engine's rollout has 2"):
        LLM(folders["draft_model"], chain(models.draft(CASE), 2), skip_tokenizer_init=True)


@pytest.mark.parametrize("method", ["pard", "p_eagle"])
def test_another_mask_token(
    drafts: Mapping[str, Any], folders: Mapping[str, Path], method: str
) -> None:
    with pytest.raises(ConfigError, match=r"mask_token_id=9 was asked for, .* trained with [57]"):
        LLM(folders[method], {**drafts[method], "mask_token_id": 9}, skip_tokenizer_init=True)
