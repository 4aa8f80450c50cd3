"""Spellings of a language model's tensors: with and without ``model.``, a head for two tensors."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import save_model
from torch import Tensor
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from checkpoint_converters import load_checkpoint, read_config
from trtspec.builder.checkpoints import read_draft
from trtspec.errors import CheckpointError

from .tiny_folder import TinyFolder

BASE = "model."
EMBEDDING = "model.embed_tokens.weight"
HEAD = "lm_head.weight"


@pytest.fixture
def folder(tmp_path: Path) -> TinyFolder:
    return TinyFolder(tmp_path / "model")


def as_base(folder: TinyFolder) -> TinyFolder:
    folder.tensors = {name.removeprefix(BASE): value for name, value in folder.tensors.items()}
    return folder


def read(path: Path) -> dict[str, Tensor]:
    checkpoint = load_checkpoint(path)
    return {name: checkpoint.tensors[name] for name in checkpoint.tensors}


def assert_same(first: dict[str, Tensor], second: dict[str, Tensor]) -> None:
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)


def tiny_llama(tied: bool) -> LlamaForCausalLM:
    torch.manual_seed(3)
    sizes = {"vocab_size": 20, "hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2}
    config = LlamaConfig(**sizes, num_attention_heads=4, tie_word_embeddings=tied)
    return LlamaForCausalLM(config)


@pytest.mark.parametrize("how", ["base", "save_model", "save_model of the base"])
def test_what_the_libraries_save(tmp_path: Path, how: str) -> None:
    """All load what an ordinary save loads, and what transformers makes of them."""
    model = tiny_llama(tied=True)
    model.save_pretrained(tmp_path / "whole")
    path = tmp_path / "other"
    (model if how == "save_model" else model.model).save_pretrained(path)
    if how != "base":
        file = path / "model.safetensors"
        file.unlink()
        save_model(model if how == "save_model" else model.model, str(file))
    wanted = read(tmp_path / "whole")
    assert_same(read(path), wanted)
    theirs = AutoModelForCausalLM.from_pretrained(path).get_input_embeddings().weight
    assert torch.equal(theirs, wanted["embed.weight"])


@pytest.mark.parametrize("sharded", [False, True])
def test_without_the_prefix(folder: TinyFolder, sharded: bool) -> None:
    wanted = read(folder.write())
    as_base(folder)
    if sharded:
        (folder.path / "model.safetensors").unlink()
    assert_same(read(folder.write_shards() if sharded else folder.write()), wanted)
    assert_same(read(folder.write(architectures=["LlamaModel"])), wanted)


def test_without_the_prefix_nothing_is_lost_or_made_up(folder: TinyFolder) -> None:
    as_base(folder)
    del folder.tensors["norm.weight"]
    folder.tensors |= {"layers.0.extra.weight": torch.ones(1), "other.weight": torch.ones(1)}
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder.write())
    message = str(caught.value)
    assert "'model.' is put before its names" in message
    assert "1 tensors are missing: model.norm.weight" in message
    assert "2 tensors have no use: model.layers.0.extra.weight, other.weight" in message


def test_both_spellings(folder: TinyFolder) -> None:
    """Whether they contradict each other or complete each other."""
    folder.tensors["norm.weight"] = torch.zeros(16)
    with pytest.raises(CheckpointError, match=r"first model\.embed.*without \(1, first norm"):
        load_checkpoint(folder.write())
    del folder.tensors["model.norm.weight"]
    with pytest.raises(CheckpointError, match="which of them count cannot be known"):
        load_checkpoint(folder.write())


def test_an_untied_base_lacks_its_head(folder: TinyFolder) -> None:
    """Where transformers would make one up."""
    del as_base(folder).tensors[HEAD]
    with pytest.raises(CheckpointError, match=r"1 tensors are missing: lm_head\.weight"):
        load_checkpoint(folder.write())
    assert "head.weight" not in read(folder.write(tie_word_embeddings=True))


def test_a_tied_head_stands_for_the_embedding(folder: TinyFolder) -> None:
    del folder.tensors[EMBEDDING]
    path = folder.write(tie_word_embeddings=True)
    checkpoint = load_checkpoint(path)
    assert torch.equal(checkpoint.tensors["embed.weight"], folder.tensors[HEAD])
    assert "head.weight" not in checkpoint.tensors and checkpoint.ignored == ()
    draft = read_draft(path, checkpoint.config)
    assert torch.equal(draft.tensors["embed.weight"], folder.tensors[HEAD])


def test_its_shape_and_dtype(folder: TinyFolder) -> None:
    del folder.tensors[EMBEDDING]
    folder.drop("torch_dtype").config["tie_word_embeddings"] = True
    assert read_config(folder.write()).dtype == "bfloat16"
    folder.tensors[HEAD] = folder.tensors[HEAD][:19].clone()
    with pytest.raises(CheckpointError, match=r"lm_head\.weight has shape \[19, 16\].*\[20, 16\]"):
        load_checkpoint(folder.write())


def test_an_untied_head_stands_for_nothing(folder: TinyFolder) -> None:
    del folder.tensors[EMBEDDING]
    with pytest.raises(CheckpointError, match=r"1 tensors are missing: model\.embed_tokens"):
        load_checkpoint(folder.write())


def test_neither_of_the_two(folder: TinyFolder) -> None:
    del folder.tensors[EMBEDDING], folder.tensors[HEAD]
    with pytest.raises(CheckpointError, match=r"1 tensors are missing: model\.embed_tokens"):
        load_checkpoint(folder.write(tie_word_embeddings=True))


@pytest.mark.parametrize("name", ["LlamaModels", "Model", "BertModel"])
def test_other_base_models(folder: TinyFolder, name: str) -> None:
    with pytest.raises(CheckpointError, match=f"architectures '{name}' is not supported"):
        load_checkpoint(folder.write(architectures=[name]))
