"""Drafts of other kinds, and drafts that do not fit their target: refused by name and numbers."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.builder.checkpoints import describe_draft, read_draft
from trtspec.commands.inspect_checkpoint import main
from trtspec.errors import CheckpointError

from .draft_folder import (
    EAGLE_CONFIG,
    LLAMA,
    TARGET,
    DraftFolder,
    H,
    eagle1,
    eagle3,
    layer,
    modelopt,
    specforge,
    speculators,
    yuhuili1,
    yuhuili3,
)
from .tiny_folder import TinyFolder

Maker = Callable[[Path], DraftFolder]


def refused(folder: DraftFolder, message: str, **changes: Any) -> None:
    with pytest.raises(CheckpointError, match=message):
        read_draft(folder.write(**changes), TARGET)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"speculators_model_type": "domino"}, "type 'domino': this version does not run it yet"),
        ({"architectures": ["DominoDraftModel"]}, "a Domino draft"),
    ],
)
def test_kinds_by_config(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    path = TinyFolder(tmp_path).write(**config)
    with pytest.raises(CheckpointError, match=message):
        read_draft(path, TARGET)
    with pytest.raises(CheckpointError, match=message):
        describe_draft(path)
    assert main([str(path)]) == 1


def test_modelopt_without_auxiliary_states(tmp_path: Path) -> None:
    folder = modelopt(tmp_path)
    tensors = {n: t for n, t in eagle3("layers.0.").items() if n != "fc.weight"}
    folder.tensors = {**tensors, **layer("layers.0.", H), "d2t": folder.tensors["d2t"]}
    del folder.tensors["layers.0.input_layernorm.weight"]
    refused(
        folder,
        "export without auxiliary hidden states .*no EAGLE-1 model.*use_aux_hidden_state true",
        eagle_config=EAGLE_CONFIG | {"use_aux_hidden_state": False},
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"parallel_draft_step": 4}, "parallel heads"),
        ({"use_mtp_layernorm": True}, r"eagle_config\.use_mtp_layernorm"),
    ],
)
def test_modelopt_variants(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    refused(modelopt(tmp_path), message, eagle_config=EAGLE_CONFIG | change)


@pytest.mark.parametrize("make", [yuhuili1, yuhuili3, specforge, modelopt, speculators])
def test_other_target(tmp_path: Path, make: Maker) -> None:
    path = make(tmp_path).write()
    with pytest.raises(
        CheckpointError, match=r"\b16\b.*\b32\b|\b32\b.*\b16\b|\b48\b.*\b96\b|96.*48"
    ):
        read_draft(path, replace(TARGET, hidden_size=32))
    with pytest.raises(CheckpointError, match="20 tokens, the target has 30"):
        read_draft(path, replace(TARGET, vocab_size=30))


def test_target_hidden_size(tmp_path: Path) -> None:
    message = r"hidden size 64 \(target_hidden_size\), the target's is 16"
    refused(speculators(tmp_path), message, target_hidden_size=64)


def test_a_draft_of_another_width_must_bring_its_own(tmp_path: Path) -> None:
    folder = specforge(tmp_path)
    folder.tensors["fc.weight"] = torch.randn(H, 3 * 32)
    path = folder.write(target_hidden_size=32)
    with pytest.raises(CheckpointError, match=r"hidden size 16 cannot borrow .* size 32"):
        read_draft(path, replace(TARGET, hidden_size=32))
    folder.tensors["embed_tokens.weight"] = torch.randn(20, H)
    draft = read_draft(folder.write(target_hidden_size=32), replace(TARGET, hidden_size=32))
    assert draft.tensors["fc.weight"].shape == (H, 96)


@pytest.mark.parametrize(
    ("make", "changes", "message"),
    [
        (specforge, {"num_attention_heads": 2}, r"k_proj.weight has shape \[8, 32\].*\[16, 32\]"),
        (modelopt, {"num_attention_heads": 8}, r"q_proj.weight has shape \[16, 32\].*\[32, 32\]"),
        (modelopt, {"num_key_value_heads": 4}, r"k_proj.weight has shape \[8, 32\].*\[16, 32\]"),
        (yuhuili1, {"num_key_value_heads": 4}, r"k_proj.weight has shape \[8, 16\].*\[16, 16\]"),
        (
            specforge,
            {"num_hidden_layers": 2},
            "num_hidden_layers is 2, the tensors are of 1 layers",
        ),
        (specforge, {"hidden_size": 32}, "hidden size 32 cannot borrow .* hidden size 16"),
        (specforge, {"num_attention_heads": None}, "does not say num_attention_heads"),
        (specforge, {"hidden_act": "gelu"}, "hidden_act 'gelu'"),
        (specforge, {"norm_before_fc": True}, r"1 tensors are missing: input_norm\.weight"),
        (specforge, {"fc_norm": True}, r"3 tensors are missing: fc_norm\.0\.weight"),
        (specforge, {"fc_norm": True, "norm_before_fc": True}, "exclude each other"),
        (specforge, {"norm_before_residual": "yes"}, "norm_before_residual"),
        (
            modelopt,
            {"quantization_config": {"quant_method": "modelopt"}},
            "not say quant_algo",
        ),
        (speculators, {"quantization_config": {"quant_method": "exl2"}}, "exl2 is not supported"),
        (speculators, {"transformer_layer_config": None}, "does not say transformer_layer_config"),
        (speculators, {"transformer_layer_config": {"model_type": "gemma"}}, "'gemma'.*'qwen3'"),
    ],
)
def test_config_that_does_not_fit(
    tmp_path: Path, make: Maker, changes: dict[str, Any], message: str
) -> None:
    refused(make(tmp_path), message, **changes)


def test_missing_and_left_over(tmp_path: Path) -> None:
    folder = specforge(tmp_path)
    del folder.tensors["norm.weight"], folder.tensors["midlayer.hidden_norm.weight"]
    folder.tensors |= {"extra.weight": torch.ones(2), "midlayer.mlp.up_proj.bias": torch.ones(24)}
    message = (
        r"does not fit EAGLE-3 \(SpecForge export\): 2 tensors are missing: "
        r"layers\.0\.hidden_norm\.weight, norm\.weight; 2 tensors have no use: extra\.weight, "
        r"layers\.0\.mlp\.up_proj\.bias"
    )
    refused(folder, message)
    del folder.tensors["fc.weight"]
    refused(folder, r"no matrix fc\.weight")
    one = yuhuili1(tmp_path / "1")
    del one.tensors["fc.bias"]
    refused(one, r"1 tensors are missing: fc\.bias")


def test_quantized_tensors(tmp_path: Path) -> None:
    folder = modelopt(tmp_path)
    name = "layers.0.mlp.up_proj.weight"
    folder.tensors[name] = folder.tensors[name].to(torch.float8_e4m3fn)
    refused(folder, f"{name} has dtype F8_E4M3; supported")
    folder = modelopt(tmp_path / "file")
    folder.path.mkdir()
    (folder.path / "hf_quant_config.json").write_text(
        '{"quantization": {"quant_algo": "W4A8_AWQ"}}'
    )
    refused(folder, "quantization quant_algo 'W4A8_AWQ' is not supported")


def test_config_and_tensors_disagree(tmp_path: Path) -> None:
    folder = DraftFolder(tmp_path, dict(LLAMA), eagle1())
    refused(
        folder, "draft_vocab_size says EAGLE-3, but .* 16 inputs.* 2 x 16 = 32", draft_vocab_size=6
    )
    folder.tensors["d2t"] = torch.zeros(20).long()
    refused(folder, "tensor d2t says EAGLE-3")
    del folder.tensors["d2t"], folder.tensors["layers.0.self_attn.q_proj.weight"]
    refused(folder, r"fc\.weight says EAGLE, but there are no matrices")
    odd = DraftFolder(tmp_path / "odd", dict(LLAMA), eagle1())
    odd.tensors["fc.weight"] = torch.ones(H, 5 * H)
    refused(odd, r"fc\.weight is \[16, 80\]: EAGLE-1 has \[16, 32\]")


class Harmful:
    """Unpickling this with full trust would make a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self.path),)


def test_pickles_run_no_code(tmp_path: Path) -> None:
    folder = yuhuili3(tmp_path / "draft")
    path = folder.write(pickled=True)
    torch.save({**folder.tensors, "x": Harmful(tmp_path / "made")}, path / "pytorch_model.bin")
    with pytest.raises(CheckpointError, match=r"posix\.mkdir.*run code.*safetensors"):
        read_draft(path, TARGET)
    assert not (tmp_path / "made").exists()


def test_damaged_pickles(tmp_path: Path) -> None:
    path = yuhuili3(tmp_path).write(pickled=True)
    file = path / "pytorch_model.bin"
    whole = file.read_bytes()
    for content in (b"", whole[: len(whole) // 2], b"nonsense"):
        file.write_bytes(content)
        with pytest.raises(CheckpointError, match=r"pytorch_model\.bin"):
            read_draft(path, TARGET)
    torch.save([1, 2], file)
    with pytest.raises(CheckpointError, match="holds a list, not named tensors"):
        read_draft(path, TARGET)
    torch.save({"state_dict": {}}, file)
    with pytest.raises(CheckpointError, match="'state_dict' is a dict, not a tensor"):
        read_draft(path, TARGET)


def test_old_and_split_pickles(tmp_path: Path) -> None:
    folder = yuhuili3(tmp_path)
    path = folder.write(pickled=True)
    whole = dict(read_draft(path, TARGET).tensors)  # read now: the file is about to change
    file = path / "pytorch_model.bin"
    torch.save(folder.tensors, file, _use_new_zipfile_serialization=False)
    assert set(read_draft(path, TARGET).tensors) == set(whole)
    file.unlink()
    names = sorted(folder.tensors)
    parts = {"a.bin": names[:5], "b.bin": names[5:]}
    for part, members in parts.items():
        torch.save({name: folder.tensors[name] for name in members}, path / part)
    index = {name: part for part, members in parts.items() for name in members}
    (path / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": index}))
    split = read_draft(path, TARGET)
    assert all(torch.equal(split.tensors[name], whole[name]) for name in whole)
    assert len(split.files) == 2
    (path / "b.bin").unlink()
    with pytest.raises(CheckpointError, match=r"b\.bin does not exist"):
        read_draft(path, TARGET)


def test_a_tensor_read_twice_is_no_alias(tmp_path: Path) -> None:
    tensors = read_draft(yuhuili3(tmp_path).write(pickled=True), TARGET).tensors
    tensors["norm.weight"].zero_()
    assert tensors["norm.weight"].abs().sum() > 0


def test_not_a_folder(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="is not a folder"):
        read_draft(tmp_path / "nowhere", TARGET)
    with pytest.raises(CheckpointError, match=r"no config\.json"):
        read_draft(tmp_path, TARGET)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(CheckpointError, match=r"neither model\.safetensors"):
        read_draft(tmp_path, TARGET)


JUNK = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-3, 40),
    st.floats(allow_nan=False),
    st.sampled_from(["", "llama", "6"]),
    st.lists(st.integers(-3, 40), max_size=3),
    st.dictionaries(st.sampled_from(["a", "model_type", "verifier"]), st.integers(), max_size=2),
)


@settings(max_examples=150, deadline=None)
@given(data=st.data(), make=st.sampled_from([yuhuili1, yuhuili3, modelopt, speculators]))
def test_any_value_is_read_or_refused(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, make: Maker
) -> None:
    folder = make(tmp_path_factory.mktemp("junk"))
    nested = [v for k, v in folder.config.items() if isinstance(v, dict) and k != "rope_scaling"]
    place = data.draw(st.sampled_from([folder.config, *nested]))
    place[data.draw(st.sampled_from(sorted(place)))] = data.draw(JUNK)
    with contextlib.suppress(CheckpointError):
        read_draft(folder.write(), TARGET)
