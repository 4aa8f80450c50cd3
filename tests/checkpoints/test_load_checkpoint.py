"""Weight files: what is read, and how each kind of damage is refused."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from checkpoint_converters import fingerprint, load_checkpoint
from trtspec.commands.inspect_checkpoint import main
from trtspec.errors import CheckpointError

from .tiny_folder import TinyFolder

Q = "model.layers.1.self_attn.q_proj.weight"


@pytest.fixture
def folder(tmp_path: Path) -> TinyFolder:
    return TinyFolder(tmp_path / "model")


def test_single_file(folder: TinyFolder) -> None:
    checkpoint = load_checkpoint(folder.write())
    assert len(checkpoint.tensors) == len(folder.tensors) and checkpoint.ignored == ()
    assert torch.equal(checkpoint.tensors["layers.1.attn.q.weight"], folder.tensors[Q])
    assert torch.equal(checkpoint.tensors["head.weight"], folder.tensors["lm_head.weight"])
    assert "layers.0.attn.q.bias" not in checkpoint.tensors


def test_shards(folder: TinyFolder) -> None:
    checkpoint = load_checkpoint(folder.write_shards())
    assert len(checkpoint.files) == 2 and len(checkpoint.tensors) == len(folder.tensors)
    assert torch.equal(checkpoint.tensors["layers.1.attn.q.weight"], folder.tensors[Q])


def test_rotary_frequencies_are_ignored_by_name(folder: TinyFolder) -> None:
    name = "model.layers.0.self_attn.rotary_emb.inv_freq"
    folder.tensors[name] = torch.ones(2)
    assert load_checkpoint(folder.write()).ignored == (name,)


def test_missing_and_unused_are_both_listed(folder: TinyFolder) -> None:
    del folder.tensors[Q], folder.tensors["model.norm.weight"]
    folder.tensors["fc.weight"] = torch.ones(2)
    with pytest.raises(CheckpointError) as caught:
        load_checkpoint(folder.write())
    message = str(caught.value)
    assert f"2 tensors are missing: {Q}, model.norm.weight" in message
    assert "1 tensors have no use: fc.weight" in message


def test_bias_that_the_config_denies(folder: TinyFolder) -> None:
    folder.tensors["model.layers.0.self_attn.q_proj.bias"] = torch.ones(16)
    with pytest.raises(CheckpointError, match=r"no use: model\.layers\.0\.self_attn\.q_proj\.bias"):
        load_checkpoint(folder.write())


def test_wrong_shape(folder: TinyFolder) -> None:
    with pytest.raises(
        CheckpointError, match=r"embed_tokens\.weight has shape \[20, 16\].*\[21, 16\]"
    ):
        load_checkpoint(folder.write(vocab_size=21))


def test_wrong_dtype(folder: TinyFolder) -> None:
    folder.tensors[Q] = folder.tensors[Q].to(torch.int8)
    with pytest.raises(CheckpointError, match=f"{Q} has dtype I8; supported: F32, BF16, F16"):
        load_checkpoint(folder.write())


def test_tied_without_a_head(folder: TinyFolder) -> None:
    del folder.tensors["lm_head.weight"]
    checkpoint = load_checkpoint(folder.write(tie_word_embeddings=True))
    assert "head.weight" not in checkpoint.tensors
    with pytest.raises(CheckpointError, match=r"missing: lm_head\.weight.*ties its head"):
        load_checkpoint(folder.write(tie_word_embeddings=False))


def test_tied_with_an_equal_head(folder: TinyFolder) -> None:
    folder.tensors["lm_head.weight"] = folder.tensors["model.embed_tokens.weight"].clone()
    checkpoint = load_checkpoint(folder.write(tie_word_embeddings=True))
    assert checkpoint.ignored == ("lm_head.weight",) and "head.weight" not in checkpoint.tensors


def test_tied_with_another_head(folder: TinyFolder) -> None:
    with pytest.raises(CheckpointError, match="says tie_word_embeddings, yet lm_head"):
        load_checkpoint(folder.write(tie_word_embeddings=True))


def test_truncated_file(folder: TinyFolder) -> None:
    file = folder.write() / "model.safetensors"
    whole = file.read_bytes()
    data = len(whole) - 8 - int.from_bytes(whole[:8], "little")
    file.write_bytes(whole[:-5])
    with pytest.raises(CheckpointError, match=f"truncated.* {data} bytes.*holds {data - 5};"):
        load_checkpoint(folder.path)
    for length in (0, 5, 100):
        file.write_bytes(whole[:length])
        with pytest.raises(CheckpointError, match=f"truncated.*{length} bytes in all"):
            load_checkpoint(folder.path)
    file.write_bytes(whole + b"x")
    with pytest.raises(CheckpointError, match="bytes behind its last tensor"):
        load_checkpoint(folder.path)


@pytest.mark.parametrize(
    "header",
    [
        b"nonsense",
        b"[]",
        b'{"a": 3}',
        b'{"a": {"dtype": "F32", "shape": [2], "data_offsets": [0, 4]}}',
        b'{"a": {"dtype": "F32", "shape": [1], "data_offsets": [4, 8]}}',
        b'{"a": {"dtype": "Q9", "shape": [1], "data_offsets": [0, 4]}}',
    ],
)
def test_damaged_header(folder: TinyFolder, header: bytes) -> None:
    file = folder.write() / "model.safetensors"
    file.write_bytes(len(header).to_bytes(8, "little") + header + bytes(4))
    with pytest.raises(CheckpointError, match=r"model\.safetensors: damaged safetensors header"):
        load_checkpoint(folder.path)


def test_missing_shard(folder: TinyFolder) -> None:
    folder.write_shards()
    (folder.path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(CheckpointError, match=r"lacks 1 of the 2 .*: model-00002-of-00002"):
        load_checkpoint(folder.path)


def test_index_that_disagrees(folder: TinyFolder) -> None:
    index = folder.write_shards() / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    shard = content["weight_map"].pop(Q)
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=f"holds tensor {Q}.*no file"):
        load_checkpoint(folder.path)
    content["weight_map"] |= {Q: shard, "extra.weight": shard}
    index.write_text(json.dumps(content))
    with pytest.raises(CheckpointError, match=r"1 tensors that its files lack: extra\.weight"):
        load_checkpoint(folder.path)


def test_pickles_only(folder: TinyFolder) -> None:
    file = folder.write() / "model.safetensors"
    file.rename(folder.path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"pytorch_model\.bin.*save_pretrained"):
        load_checkpoint(folder.path)
    (folder.path / "pytorch_model.bin").rename(folder.path / "other.safetensors")
    with pytest.raises(CheckpointError, match=r"neither .*it has other\.safetensors"):
        load_checkpoint(folder.path)


def test_fingerprint_follows_content(folder: TinyFolder) -> None:
    first = load_checkpoint(folder.write()).fingerprint
    assert first == fingerprint(folder.write())
    other = TinyFolder(folder.path.parent / "copy")
    assert first == load_checkpoint(other.write()).fingerprint  # the folder's name does not count
    other.tensors[Q][0, 0] += 1
    assert first != load_checkpoint(other.write()).fingerprint
    assert first != load_checkpoint(folder.write(rms_norm_eps=1e-6)).fingerprint


def test_command(folder: TinyFolder, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([str(folder.write())]) == 0
    printed = capsys.readouterr().out
    assert '"architecture": "LlamaForCausalLM"' in printed and f"16x16           {Q}" in printed
    assert f"{len(folder.tensors)} tensors; ignored: none" in printed
    assert main([str(folder.path / "nowhere")]) == 1
    assert "is not a folder" in capsys.readouterr().err
