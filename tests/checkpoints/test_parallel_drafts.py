"""PARD and P-EAGLE checkpoints: told apart from what they are made of, read alike, or refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from checkpoint_converters import DraftCheckpoint, load_checkpoint
from trtspec.builder.checkpoints import describe_draft, read_draft
from trtspec.commands.inspect_checkpoint import main
from trtspec.errors import CheckpointError
from trtspec.speculative.parallel.shape import PardConfig, PEagleConfig

from .draft_folder import (
    EAGLE3_FORMATS,
    TARGET,
    DraftFolder,
    H,
    V,
    modelopt,
    specforge,
    speculators,
    yuhuili1,
)
from .tiny_folder import TinyFolder


def mask_hidden() -> Tensor:
    return torch.arange(3.0 * H)


def parallel(folder: DraftFolder, **keys: Any) -> DraftFolder:
    """The folder as P-EAGLE, with these keys instead of ptd_token_id."""
    folder.config |= keys or {"ptd_token_id": 7}
    folder.tensors["mask_hidden"] = mask_hidden().reshape(1, 1, 3 * H)
    return folder


@pytest.mark.parametrize("name", EAGLE3_FORMATS)
def test_p_eagle_is_eagle_3_and_a_mask(tmp_path: Path, name: str) -> None:
    """In every format: the tensors and flags of the EAGLE-3 draft, the state and the token."""
    eagle = read_draft(EAGLE3_FORMATS[name](tmp_path / "eagle").write(), TARGET)
    path = parallel(EAGLE3_FORMATS[name](tmp_path / "mask")).write()
    draft = read_draft(path, TARGET)
    assert isinstance(draft, DraftCheckpoint) and isinstance(draft.config, PEagleConfig)
    assert (draft.kind, draft.method, draft.config.mask_token) == ("p_eagle", "p_eagle", 7)
    fields = draft.config.to_dict()
    assert fields.pop("mask_token") == 7 and fields == eagle.config.to_dict()
    tensors = dict(draft.tensors)
    assert torch.equal(tensors.pop("mask_hidden"), mask_hidden())
    assert tensors.keys() == dict(eagle.tensors).keys()
    for key, tensor in dict(eagle.tensors).items():
        assert torch.equal(tensors[key], tensor), key
    assert draft.notes[0].startswith("draft: P-EAGLE (tensor mask_hidden, tensor fc.weight")
    text = describe_draft(path)
    assert text and draft.notes[0].startswith(text) and main([str(path)]) == 0
    assert draft.fingerprint != eagle.fingerprint


@pytest.mark.parametrize("shape", [(1, 1, 3 * H), (1, 3 * H), (3 * H,)])
@pytest.mark.parametrize("prefix", ["", "model."])
def test_spellings_of_the_state(tmp_path: Path, shape: tuple[int, ...], prefix: str) -> None:
    folder = parallel(specforge(tmp_path))
    del folder.tensors["mask_hidden"]
    folder.tensors[f"{prefix}mask_hidden"] = mask_hidden().reshape(shape)
    found = read_draft(folder.write(), TARGET)
    assert torch.equal(found.tensors["mask_hidden"], mask_hidden())


def test_speculators_type(tmp_path: Path) -> None:
    changes = {"speculators_model_type": "peagle", "mask_token_id": 3}
    draft = read_draft(parallel(speculators(tmp_path / "a"), **changes).write(), TARGET)
    assert isinstance(draft.config, PEagleConfig) and draft.config.mask_token == 3
    lacking = parallel(speculators(tmp_path / "b"), **changes)
    del lacking.tensors["mask_hidden"]
    with pytest.raises(CheckpointError, match=r"P-EAGLE .*1 tensors are missing: mask_hidden"):
        read_draft(lacking.write(), TARGET)


@pytest.mark.parametrize(
    ("keys", "message"),
    [
        ({"norm_eps": 1}, "none of pard_token, ptd_token_id, mask_token_id says which"),
        ({"ptd_token_id": "7"}, "ptd_token_id is '7', not a token id"),
        ({"ptd_token_id": True}, "ptd_token_id is True, not a token id"),
        ({"ptd_token_id": 7, "mask_token_id": 8}, "ptd_token_id 7 and mask_token_id 8 disagree"),
        ({"pard_token": V}, f"mask token {V} is outside the draft's embedding of {V} tokens"),
        ({"mask_token_id": -1}, "mask token -1 is outside"),
    ],
)
def test_mask_tokens(tmp_path: Path, keys: dict[str, Any], message: str) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_draft(parallel(modelopt(tmp_path / "eagle"), **keys).write(), TARGET)
    if "norm_eps" not in keys and set(keys) != {"mask_token_id"}:
        with pytest.raises(CheckpointError, match=message):
            read_draft(TinyFolder(tmp_path / "model").write(**keys), TARGET)


def test_a_state_of_another_width(tmp_path: Path) -> None:
    folder = parallel(specforge(tmp_path))
    folder.tensors["mask_hidden"] = torch.zeros(1, 1, H)
    with pytest.raises(CheckpointError, match=rf"mask_hidden has shape \[{H}\], .* \[{3 * H}\]"):
        read_draft(folder.write(), TARGET)


def test_a_state_beside_eagle_1(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="tensor mask_hidden says EAGLE-3, but layers"):
        read_draft(parallel(yuhuili1(tmp_path)).write(), TARGET)


@pytest.mark.parametrize("key", ["pard_token", "ptd_token_id"])
def test_pard_is_a_language_model_and_a_mask(tmp_path: Path, key: str) -> None:
    plain = load_checkpoint(TinyFolder(tmp_path / "plain").write())
    path = TinyFolder(tmp_path / "pard").write(**{key: 6})
    draft = read_draft(path, TARGET)
    assert isinstance(draft, DraftCheckpoint) and isinstance(draft.config, PardConfig)
    assert (draft.kind, draft.method, draft.config.mask_token) == ("pard", "pard", 6)
    fields = draft.config.to_dict()
    assert fields.pop("mask_token") == 6 and fields == plain.config.to_dict()
    assert dict(draft.tensors).keys() == dict(plain.tensors).keys()
    assert draft.notes == (
        "draft: PARD, causal language model with mask token 6 (LlamaForCausalLM, 2 layers of "
        "width 16)",
    )
    text = describe_draft(path)
    assert text and draft.notes[0].startswith(text) and main([str(path)]) == 0
    # As a target it is the language model that it was.
    assert load_checkpoint(path).config == plain.config


def test_a_language_model_with_another_mask(tmp_path: Path) -> None:
    """mask_token_id alone is no sign of PARD: other models have masks as well."""
    draft = read_draft(TinyFolder(tmp_path).write(mask_token_id=6), TARGET)
    assert draft.kind == "model"


def test_a_token_map_cuts_the_head_of_pard(tmp_path: Path) -> None:
    torch.save(torch.tensor([7, 2]), tmp_path / "map.pt")
    tied = TinyFolder(tmp_path / "p")
    del tied.tensors["lm_head.weight"]
    folder = tied.write(pard_token=6, tie_word_embeddings=True)
    draft = read_draft(folder, TARGET, tmp_path / "map.pt")
    assert isinstance(draft.config, PardConfig) and draft.config.draft_vocab_size == 2
    whole = read_draft(folder, TARGET).tensors["embed.weight"]
    assert torch.equal(draft.tensors["head.weight"], whole[[7, 2]])
    assert torch.equal(draft.tensors["embed.weight"], whole)


def test_a_token_map_cuts_the_head_of_p_eagle(tmp_path: Path) -> None:
    folder = parallel(modelopt(tmp_path / "draft"))
    del folder.tensors["d2t"], folder.config["draft_vocab_size"], folder.tensors["lm_head.weight"]
    torch.save(torch.tensor([3, 5, 11]), tmp_path / "map.pt")
    draft = read_draft(folder.write(), TARGET, tmp_path / "map.pt")
    assert isinstance(draft.config, PEagleConfig) and draft.config.draft_vocab_size == 3
    assert draft.tensors["token_map"].tolist() == [3, 5, 11] and not draft.config.own_head
