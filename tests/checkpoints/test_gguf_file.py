"""GGUF files as checkpoints: what is read of their metadata, parts, and every kind of damage."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from checkpoint_converters import (
    content_of,
    fingerprint,
    load_checkpoint,
    read_config,
    reading_notes,
)
from checkpoint_converters.containers.gguf_file import open_gguf
from trtspec.builder.checkpoints import read_draft
from trtspec.builder.locate import find_model
from trtspec.commands.inspect_checkpoint import main
from trtspec.errors import CheckpointError, TrtspecError

from .tiny_folder import TinyFolder
from .tiny_gguf import (
    HEAD_DIM,
    HIDDEN,
    VOCAB,
    Stored,
    TinyGguf,
    random_tensor,
    tiny,
)

NO_TOKEN = 0xFFFF_FFFF


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny().write(tmp_path_factory.mktemp("gguf") / "model.gguf")


def test_what_is_read(written: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the file and by its folder; beside safetensors a GGUF file does not count."""
    config = read_config(written)
    assert config == read_config(written.parent) == load_checkpoint(written).config
    assert config.dtype == "bfloat16" and not config.head.tied
    assert (config.vocab_size, config.hidden_size, config.num_layers) == (VOCAB, HIDDEN, 1)
    assert config.norm.eps == 1e-5  # and not the float32 next to it
    assert config.max_position_embeddings == 128 and config.ropes[0].theta == 10000.0
    assert content_of(written) == content_of(written.parent) == [written]
    assert fingerprint(written) == load_checkpoint(written.parent).fingerprint
    (note,) = reading_notes(written)
    assert "bfloat16" in note and "Q4_0" in note and written.name in note
    draft = read_draft(written, config)
    assert draft.config == config and draft.fingerprint == fingerprint(written)
    assert read_draft(written.parent, config).fingerprint == fingerprint(written)
    assert main([str(written)]) == 0
    printed = capsys.readouterr().out
    assert f"{VOCAB}x{HIDDEN}" in printed and "token_embd.weight (model.gguf)" in printed


def test_safetensors_come_first(tmp_path: Path, written: Path) -> None:
    folder = TinyFolder(tmp_path / "both").write()
    shutil.copy(written, folder)
    assert read_config(folder).vocab_size == 20 and reading_notes(folder) == []
    assert written.name not in {file.name for file in content_of(folder)}


@pytest.mark.parametrize(
    ("kinds", "dtype", "noted"),
    [
        (("F32",), "float32", False),
        (("F16",), "float16", False),
        (("BF16",), "bfloat16", False),
        (("F32", "BF16"), "float32", False),
        (("F16", "BF16"), "float32", False),
        (("F32", "Q8_0"), "bfloat16", True),
    ],
)
def test_dtype(kinds: tuple[str, ...], dtype: str, noted: bool, tmp_path: Path) -> None:
    model, random = tiny(), np.random.default_rng(1)
    for i, (name, tensor) in enumerate(model.tensors.items()):
        if tensor.values.dim() == 2:
            kind = kinds[i % len(kinds)]
            model.tensors[name] = random_tensor(kind, tensor.values.shape, random)
    file = model.write(tmp_path / "model.gguf")
    assert read_config(file).dtype == dtype
    assert bool(reading_notes(file)) == noted


@pytest.mark.parametrize(
    ("ids", "ends"),
    [
        ({}, ()),
        ({"eos": 7}, (7,)),
        ({"eos": 7, "eot": 8}, (7, 8)),
        ({"eos": 7, "eot": 7, "eom": 9}, (7, 9)),
        ({"eot": 0, "bos": 3}, (0,)),
        ({"eos": 7, "eot": NO_TOKEN}, (7,)),
    ],
)
def test_ends(ids: dict[str, int], ends: tuple[int, ...], tmp_path: Path) -> None:
    model = tiny()
    model.metadata |= {f"tokenizer.ggml.{name}_token_id": token for name, token in ids.items()}
    config = read_config(model.write(tmp_path / "model.gguf"))
    assert config.eos_token_ids == ends and config.bos_token_id == ids.get("bos")


@pytest.fixture(params=[(5, False), (7, True)], ids=["even", "a small first part"])
def parts(request: pytest.FixtureRequest, tmp_path: Path) -> list[Path]:
    each, small_first = request.param
    writer_options = {"small_first_shard": small_first}
    tiny().write(tmp_path / "model.gguf", each, **writer_options)
    return sorted(tmp_path.glob("*.gguf"))


def test_parts(parts: list[Path], written: Path, tmp_path: Path) -> None:
    assert len(parts) == 3
    whole = load_checkpoint(written)
    for path in (*parts, tmp_path):
        split = load_checkpoint(path)
        assert split.config == whole.config and set(split.tensors) == set(whole.tensors)
        found, expected = (c.tensors.in_floats() for c in (split, whole))
        assert all(torch.equal(found[name], expected[name]) for name in expected)
        assert list(split.files) == content_of(path) == parts


@pytest.mark.parametrize("lost", [0, 1, 2])
@pytest.mark.parametrize("by", ["file", "folder"])
def test_a_missing_part(parts: list[Path], lost: int, by: str, tmp_path: Path) -> None:
    parts[lost].unlink()
    path = tmp_path if by == "folder" else parts[(lost + 1) % 3]
    with pytest.raises(CheckpointError, match=rf"lacks 1 of the 3 parts.*: {parts[lost].name};"):
        load_checkpoint(path)


def test_parts_by_other_names(parts: list[Path], tmp_path: Path) -> None:
    other = parts[0].rename(tmp_path / "other.gguf")
    with pytest.raises(CheckpointError, match=r"in 3 parts.*by its name of 1; .*-00001-of-00003"):
        load_checkpoint(other)


def test_parts_of_two_models(parts: list[Path]) -> None:
    shutil.copy(parts[1], parts[2])
    with pytest.raises(CheckpointError, match=r"00003\.gguf holds tensor .*, as does .*00002"):
        load_checkpoint(parts[0])


def test_several_models(written: Path, tmp_path: Path) -> None:
    for name in ("a.gguf", "b.gguf"):
        shutil.copy(written, tmp_path / name)
    with pytest.raises(CheckpointError, match=r"2 GGUF models \(a\.gguf, b\.gguf\); give the path"):
        load_checkpoint(tmp_path)
    assert load_checkpoint(tmp_path / "b.gguf").config == read_config(written)


@pytest.mark.parametrize("name", ["MODEL.GGUF", "Model.gguf"])
def test_what_lies_beside_a_model(name: str, written: Path, tmp_path: Path) -> None:
    """Projectors of images, by their type or their architecture, and importance matrices."""
    model = tmp_path / name
    shutil.copy(written, model)
    types = {"mmproj-model-f16.gguf": "mmproj", "imatrix.gguf": "imatrix", "old.gguf": "model"}
    for other, kind in types.items():
        architecture = "clip" if kind == "model" else "llama"
        TinyGguf({"general.type": kind}, tiny().tensors, architecture).write(tmp_path / other)
    assert load_checkpoint(tmp_path).files == (model,)
    with pytest.raises(CheckpointError, match=r"no model 'no/where\.GGUF': not a folder"):
        find_model("no/where.GGUF")


def test_parts_in_capitals(parts: list[Path], tmp_path: Path) -> None:
    names = [part.rename(part.with_name(part.name.upper())) for part in parts]
    assert content_of(tmp_path) == content_of(names[1]) == names


def test_a_file_that_changes(tmp_path: Path) -> None:
    """What is remembered of a file is not taken for what another one holds."""
    file = tiny().write(tmp_path / "model.gguf")
    first = read_config(file)
    os.replace(tiny(context_length=256).write(tmp_path / "other.gguf"), file)
    assert read_config(file).max_position_embeddings == 256 != first.max_position_embeddings


Bend = Callable[[TinyGguf], None]


def say(**values: Any) -> Bend:
    return lambda model: model.metadata.update(
        {f"llama.{key.replace('__', '.')}": value for key, value in values.items()}
    )


def lose(*names: str) -> Bend:
    def bend(model: TinyGguf) -> None:
        for name in names:
            found = model.metadata if name in model.metadata else model.tensors
            del found[name]

    return bend


def keep_as(kind: str, name: str) -> Bend:
    def bend(model: TinyGguf) -> None:
        shape = model.tensors[name].values.shape
        model.tensors[name] = random_tensor(kind, shape, np.random.default_rng(0))

    return bend


def factors(model: TinyGguf) -> None:
    model.tensors["rope_freqs.weight"] = Stored("F32", np.linspace(1, 7, 32, dtype=np.float32))


def another_name(model: TinyGguf) -> None:
    model.architecture = "bert"


def another_shape(model: TinyGguf) -> None:
    q, k = "blk.0.attn_q.weight", "blk.0.attn_k.weight"
    model.tensors[q], model.tensors[k] = model.tensors[k], model.tensors[q]


REFUSED: dict[str, tuple[Bend, str]] = {
    "architecture": (
        another_name, r"general\.architecture 'bert' is not supported; supported: llama, qwen2"
    ),
    "a type that is not read": (
        keep_as("IQ2_XS", "blk.0.ffn_up.weight"),
        r"1 of its 12 tensors .*blk\.0\.ffn_up\.weight with IQ2_XS; supported: F32, F16, .*Q6_K",
    ),
    "integers": (
        keep_as("I8", "output_norm.weight"), r"output_norm\.weight with I8; supported: F32"
    ),
    "experts": (say(expert_count=8), r"llama\.expert_count is 8, which is not supported"),
    "a window": (say(attention__sliding_window=4096), r"sliding_window is 4096"),
    "values of another size": (
        say(attention__value_length=32), rf"value_length is 32, heads have {HEAD_DIM}"
    ),
    "a part of a head rotated": (
        say(rope__dimension_count=32), rf"dimension_count is 32, heads have {HEAD_DIM}"
    ),
    "heads by layer": (say(attention__head_count=[8]), r"head_count is \[8\], not a whole number"),
    "a rope type": (say(rope__scaling__type="dynamic"), "rope type 'dynamic' is not supported"),
    "a rope without factor": (
        say(rope__scaling__type="yarn"), r"do not say llama\.rope\.scaling\.factor"
    ),
    "rope factors": (factors, r"rope_freqs\.weight \(1, 1\.19.*Llama 3\.1 with factor 7 \("),
    "no sizes": (lose("llama.block_count"), r"do not say llama\.block_count, a whole number"),
    "no embedding": (lose("token_embd.weight"), r"no tensor token_embd\.weight"),
    "a missing tensor": (
        lose("blk.0.ffn_up.weight"), r"1 tensors are missing: blk\.0\.ffn_up\.weight; 0 tensors"
    ),
    "one tensor more": (
        lambda model: model.tensors.update({"spam": model.tensors["output_norm.weight"]}),
        "1 tensors have no use: spam",
    ),
    "another shape": (another_shape, r"blk\.0\.attn_q\.weight has shape \[256, 256\]"),
    "no layers": (say(block_count=0), "0"),
    "layers without end": (say(block_count=10**9), "is 1000000000, more than its 12 tensors"),
    "an end that is a text": (
        lambda model: model.metadata.update({"tokenizer.ggml.eos_token_id": "<end>"}),
        r"eos_token_id is '<end>', not a whole number",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", REFUSED)
def test_refused_by_name(case: str, tmp_path: Path) -> None:
    bend, message = REFUSED[case]
    model = tiny()
    bend(model)
    file = model.write(tmp_path / "model.gguf")
    with pytest.raises(CheckpointError, match=message) as refused:
        load_checkpoint(file)
    assert str(file) in str(refused.value)


def test_a_type_without_a_name(written: Path, tmp_path: Path) -> None:
    raw = bytearray(written.read_bytes())
    at = raw.index(b"output_norm.weight") + len("output_norm.weight") + 4 + 8
    raw[at] = 99
    (tmp_path / "model.gguf").write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"output_norm\.weight with type number 99; sup"):
        load_checkpoint(tmp_path / "model.gguf")


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        (b"PK\x03\x04", r"no GGUF file: it begins with b'PK\\x03\\x04', not b'GGUF'"),
        (b"GGUF\x01\0\0\0", "is of version 1; versions 2 and 3"),
        (b"GGUF\0\0\0\x03", "is of version 50331648; .*little-endian"),
        (b"", "no GGUF file: it begins with b'', not"),
        (b"GGUF", "is truncated: its header goes on to byte 8 and further, the file has 4 bytes"),
    ],
)
def test_other_files(begin: bytes, message: str, written: Path, tmp_path: Path) -> None:
    file = tmp_path / "model.gguf"
    file.write_bytes(begin + (written.read_bytes()[len(begin) :] if len(begin) > 4 else b""))
    for read in (read_config, load_checkpoint, content_of):
        with pytest.raises(CheckpointError, match=message):
            read(file)


def test_truncated_anywhere(written: Path, tmp_path: Path) -> None:
    """Within the header, the names, or the last tensor; both numbers are named."""
    raw, file = written.read_bytes(), tmp_path / "model.gguf"
    for size in (*range(4, 2000, 41), len(raw) // 2, len(raw) - 1):
        file.write_bytes(raw[:size])
        with pytest.raises(CheckpointError, match=rf"truncated: .*the file has {size} bytes; get"):
            read_config(file)


def test_truncated_after_it_was_opened(tmp_path: Path) -> None:
    file = tiny().write(tmp_path / "model.gguf")
    tensors = load_checkpoint(file).tensors
    os.truncate(file, 4000)
    with pytest.raises(CheckpointError, match=r"blk\.0\.ffn_up\.weight: it was truncated"):
        tensors["layers.0.mlp.up.weight"]
    file.unlink()
    with pytest.raises(CheckpointError, match=r"cannot read tensor blk\.0\.ffn_up\.weight"):
        tensors["layers.0.mlp.up.weight"]


@settings(max_examples=150, deadline=None)
@given(at=st.integers(4, 1800), byte=st.integers(0, 255), count=st.integers(1, 8))
def test_damaged_anywhere(written: Path, at: int, byte: int, count: int) -> None:
    """Whatever the bytes of a header are, they are read or refused."""
    raw = bytearray(written.read_bytes())
    raw[at : at + count] = bytes([byte]) * count
    file = written.parent.parent / "damaged.gguf"
    file.write_bytes(raw)
    try:
        load_checkpoint(file)
    except TrtspecError as error:
        assert str(error)


def test_nothing_there(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a folder, nor a file"):
        read_config(tmp_path / "nowhere.gguf")
    assert open_gguf(tiny().write(tmp_path / "model.bin")).tensors  # by what it is, not its name
    assert read_config(tmp_path / "model.bin").vocab_size == VOCAB
