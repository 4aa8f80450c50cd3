"""The same EAGLE network out of every format: equal tensors, each format's flags and layers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from checkpoint_converters import DraftCheckpoint, fingerprint
from trtspec.builder.checkpoints import describe_draft, read_draft
from trtspec.commands.inspect_checkpoint import main
from trtspec.config.rope import RopeConfig
from trtspec.errors import CheckpointError

from ..tiny_config import attention_of, dense_of
from .draft_folder import (
    EAGLE3_FORMATS,
    EAGLE_CONFIG,
    IDS,
    KV,
    ROWS,
    TARGET,
    D,
    DraftFolder,
    H,
    V,
    eagle3,
    layer,
    modelopt,
    specforge,
    speculators,
    yuhuili1,
    yuhuili3,
)
from .tiny_folder import TinyFolder


def read(folder: DraftFolder, **changes: Any) -> DraftCheckpoint:
    draft = read_draft(folder.write(**changes), TARGET)
    assert isinstance(draft, DraftCheckpoint) and draft.kind == "eagle"
    return draft


@pytest.mark.parametrize("pickled", [False, True])
@pytest.mark.parametrize("name", EAGLE3_FORMATS)
def test_every_format_gives_the_same_tensors(tmp_path: Path, name: str, pickled: bool) -> None:
    draft = read(EAGLE3_FORMATS[name](tmp_path / "eagle-1-by-name"), pickled=pickled)
    source = eagle3("layers.0.")
    expected = {
        "fc.weight": source["fc.weight"],
        "norm.weight": source["norm.weight"],
        "head.weight": source["lm_head.weight"],
        "token_map": torch.tensor(IDS),
        "layers.0.input_norm.weight": source["layers.0.input_layernorm.weight"],
        "layers.0.hidden_norm.weight": source["layers.0.hidden_norm.weight"],
        "layers.0.post_attention_norm.weight": source["layers.0.post_attention_layernorm.weight"],
    }
    for part in "qkvo":
        expected[f"layers.0.attn.{part}.weight"] = source[f"layers.0.self_attn.{part}_proj.weight"]
    for part in ("gate", "up", "down"):
        expected[f"layers.0.mlp.{part}.weight"] = source[f"layers.0.mlp.{part}_proj.weight"]
    assert set(draft.tensors) == set(expected)
    for key, tensor in expected.items():
        assert torch.equal(draft.tensors[key], tensor), key
        assert draft.tensors.headers[key].shape == tensor.shape
    config = draft.config
    assert config.version == 3 and config.capture_layers == (1, 3, 4)
    assert config.draft_vocab_size == ROWS and config.decoder.vocab_size == V
    assert config.own_head and not config.own_embedding
    assert config.target_hidden_size == H and config.decoder.num_layers == 1
    assert config.decoder.max_position_embeddings == 32  # kept; a training length
    assert "the embedding is the target's" in draft.notes
    assert not any("the head" in note for note in draft.notes)


@pytest.mark.parametrize(
    ("name", "decision"),
    [
        ("yuhuili", "EAGLE checkpoint; reads outputs of layers 1, 3, 4 (EAGLE's usual ones"),
        ("SpecForge", "SpecForge export; reads outputs of layers 1, 3, 4 (EAGLE's usual ones"),
        ("ModelOpt", "ModelOpt export; reads outputs of layers 1, 3, 4 (eagle_config: outputs)"),
        (
            "speculators",
            "speculators export; reads outputs of layers 1, 3, 4 (config.json: inputs, less 1)",
        ),
    ],
)
def test_decision_line(tmp_path: Path, name: str, decision: str) -> None:
    first = read(EAGLE3_FORMATS[name](tmp_path)).notes[0]
    assert first.startswith("draft: EAGLE-3 (tensor fc.weight [16, 48], q_proj reads 2 x 16), ")
    assert decision in first


@pytest.mark.parametrize("pickled", [False, True])
def test_eagle_1(tmp_path: Path, pickled: bool) -> None:
    folder = yuhuili1(tmp_path)
    draft = read(folder, pickled=pickled)
    config = draft.config
    assert config.version == 1 and config.capture_layers == (8,)
    assert config.fc_bias and not config.first_input_norm and not config.final_norm
    assert not config.own_head and not config.own_embedding and not config.maps_tokens
    assert draft.notes == (
        "draft: EAGLE-1 (tensor fc.weight [16, 32], q_proj reads 16), EAGLE checkpoint; reads the "
        "output of the target's final norm",
        "the embedding is the target's",
        "the head is the target's",
    )
    assert torch.equal(draft.tensors["fc.bias"], folder.tensors["fc.bias"])
    assert "token_map" not in draft.tensors and draft.config.decoder.dtype == "float16"


def test_eagle_1_variants(tmp_path: Path) -> None:
    folder = yuhuili1(tmp_path)
    del folder.tensors["fc.bias"]
    del folder.config["bias"]
    folder.tensors |= {
        "embed_tokens.weight": torch.randn(V, H),
        "lm_head.weight": torch.randn(V, H),
        "norm.weight": torch.randn(H),
        **layer("layers.1.", H),
        "layers.0.self_attn.rotary_emb.inv_freq": torch.ones(2),
    }
    draft = read(folder, num_hidden_layers=2)
    config = draft.config
    assert not config.fc_bias and config.own_embedding and config.own_head and config.final_norm
    assert "layers.1.input_norm.weight" in draft.tensors
    assert "layers.0.input_norm.weight" not in draft.tensors
    assert torch.equal(draft.tensors["embed.weight"], folder.tensors["embed_tokens.weight"])
    assert draft.ignored == ("layers.0.self_attn.rotary_emb.inv_freq",)
    assert len(draft.notes) == 1


@pytest.mark.parametrize(
    "prefix", ["model.", "eagle_module.", "draft_model.", "draft_model.model."]
)
def test_prefixes(tmp_path: Path, prefix: str) -> None:
    folder = specforge(tmp_path)
    plain = read(specforge(tmp_path / "plain"))
    folder.tensors = {prefix + name: tensor for name, tensor in folder.tensors.items()}
    draft = read(folder)
    assert draft.config == plain.config and set(draft.tensors) == set(plain.tensors)
    assert draft.tensors.headers["fc.weight"].name == f"{prefix}fc.weight"
    assert draft.ignored == (f"{prefix}t2d",)
    folder.tensors["fc.weight"] = torch.ones(2)
    with pytest.raises(CheckpointError, match=r"both fc\.weight"):
        read(folder)


@pytest.mark.parametrize("prefix", ["midlayer.", "layers."])
def test_more_layers(tmp_path: Path, prefix: str) -> None:
    folder = specforge(tmp_path)
    wide = {n: t for n, t in folder.tensors.items() if not n.startswith("midlayer.")}
    folder.tensors = {**wide, **layer(f"{prefix}0.", 2 * H), **layer(f"{prefix}1.", H)}
    draft = read(folder, num_hidden_layers=2)
    assert draft.config.decoder.num_layers == 2
    assert draft.tensors["layers.0.attn.k.weight"].shape == (KV * D, 2 * H)
    assert draft.tensors["layers.1.attn.k.weight"].shape == (KV * D, H)
    assert "layers.1.input_norm.weight" in draft.tensors
    assert "layers.1.hidden_norm.weight" not in draft.tensors


def test_both_rope_spellings(tmp_path: Path) -> None:
    old = read(specforge(tmp_path), rope_theta=500.0, rope_scaling=None)
    parameters = {"rope_theta": 500.0, "rope_type": "default"}
    new = read(specforge(tmp_path), rope_parameters=parameters)
    assert old.config == new.config and old.config.decoder.ropes[0] == RopeConfig(theta=500.0)
    assert read(specforge(tmp_path)).config.decoder.ropes[0].theta == 10000.0


def test_modelopt_yarn_is_kept_and_noted(tmp_path: Path) -> None:
    folder = modelopt(tmp_path)
    draft = read(folder)
    rope = draft.config.decoder.ropes[0]
    assert (rope.type, rope.factor, rope.original_max_position_embeddings) == ("yarn", 32.0, 2048)
    assert any("possibly not trained" in note for note in draft.notes)
    assert not any("yarn" in note for note in read(folder, rope_scaling=None).notes)


def test_modelopt_merges_equal_layers(tmp_path: Path) -> None:
    folder = modelopt(tmp_path)
    folder.tensors |= eagle3("layers.0.", states=2)
    draft = read(folder, eagle_config=EAGLE_CONFIG | {"eagle_aux_hidden_state_layer_ids": [0, 1]})
    assert draft.config.capture_layers == (0, 1) and draft.config.hidden_in == 2 * H


def test_speculators_flags(tmp_path: Path) -> None:
    folder = speculators(tmp_path)
    del folder.config["norm_before_residual"]
    folder.tensors["embed_tokens.weight"] = torch.randn(V, H)
    folder.tensors |= {f"fc_norm.{j}.weight": torch.randn(H) for j in range(3)}
    draft = read(folder, fc_norm=True, norm_output=True)
    config = draft.config
    assert config.norm_before_residual and config.fc_norm and config.norm_output
    assert config.own_embedding and not config.norm_before_fc
    assert torch.equal(draft.tensors["fc_norm.2.weight"], folder.tensors["fc_norm.2.weight"])
    assert "made for some/Model (LlamaForCausalLM)" in draft.notes
    assert not read(speculators(tmp_path)).config.norm_before_residual


def test_speculators_verifier_is_a_note(tmp_path: Path) -> None:
    verifier = {"name_or_path": "other", "architectures": ["Qwen3ForCausalLM"]}
    draft = read(speculators(tmp_path), speculators_config={"verifier": verifier})
    assert "made for other (Qwen3ForCausalLM); the target is a LlamaForCausalLM" in draft.notes


def test_qwen3_draft(tmp_path: Path) -> None:
    folder = speculators(tmp_path)
    folder.config["transformer_layer_config"] |= {
        "model_type": "qwen3",
        "layer_types": ["sliding_attention"],
        "sliding_window": 7,
    }
    folder.tensors |= {f"layers.0.self_attn.{p}_norm.weight": torch.randn(D) for p in "qk"}
    decoder = read(folder).config.decoder
    assert attention_of(decoder).qk_norm and decoder.layers[0].window == 7
    assert "layers.0.attn.k_norm.weight" in read(folder).tensors


@pytest.mark.parametrize("place", ["top", "eagle_config", "tensor alone"])
def test_norm_before_fc(tmp_path: Path, place: str) -> None:
    folder = modelopt(tmp_path)
    folder.tensors["input_norm.weight"] = torch.randn(3 * H)
    if place == "top":
        folder.config["norm_before_fc"] = True
    elif place == "eagle_config":
        folder.config["eagle_config"]["norm_before_fc"] = True
    draft = read(folder)
    assert draft.config.norm_before_fc
    assert draft.tensors["fc_input_norm.weight"].shape == (3 * H,)


def test_biases_by_their_tensors(tmp_path: Path) -> None:
    folder = specforge(tmp_path)
    for part, rows in (("q", 16), ("k", 8), ("v", 8)):
        folder.tensors[f"midlayer.self_attn.{part}_proj.bias"] = torch.randn(rows)
    decoder = read(folder, attention_bias=False).config.decoder
    assert attention_of(decoder).bias and not attention_of(decoder).output_bias
    assert not dense_of(decoder).bias


def test_norm_output_of_specforge_is_noted(tmp_path: Path) -> None:
    draft = read(specforge(tmp_path), norm_output=True)
    assert draft.config.norm_output and any("pull request 879" in note for note in draft.notes)


def test_sizes_left_open(tmp_path: Path) -> None:
    folder = specforge(tmp_path)
    for key in ("hidden_size", "intermediate_size", "num_hidden_layers", "vocab_size"):
        del folder.config[key]
    del folder.config["max_position_embeddings"], folder.config["draft_vocab_size"]
    decoder = read(folder).config.decoder
    assert (decoder.hidden_size, dense_of(decoder).intermediate_size) == (16, 24)
    assert decoder.num_layers == 1 and decoder.max_position_embeddings == 64
    assert read(folder).config.draft_vocab_size == ROWS


def test_a_full_vocabulary_has_no_map(tmp_path: Path) -> None:
    folder = specforge(tmp_path)
    folder.tensors |= {"lm_head.weight": torch.randn(V, H), "d2t": torch.zeros(V).long()}
    folder.tensors["t2d"] = torch.ones(V, dtype=torch.bool)
    draft = read(folder, draft_vocab_size=V)
    assert not draft.config.maps_tokens and "token_map" not in draft.tensors
    assert draft.ignored == ("d2t", "t2d")
    del folder.tensors["lm_head.weight"]
    draft = read(folder, draft_vocab_size=None)
    assert not draft.config.own_head and "the head is the target's" in draft.notes


def test_causal_model(tmp_path: Path) -> None:
    path = TinyFolder(tmp_path).write()
    draft = read_draft(path, TARGET)
    assert isinstance(draft, DraftCheckpoint) and draft.kind == "model"
    assert draft.config.num_layers == 2 and "embed.weight" in draft.tensors
    assert draft.notes == ("draft: causal language model (LlamaForCausalLM, 2 layers of width 16)",)
    assert draft.fingerprint == fingerprint(path) and describe_draft(path) is None


def test_fingerprint(tmp_path: Path) -> None:
    folder = yuhuili3(tmp_path)
    first = read(folder, pickled=True).fingerprint
    assert first == read(folder, pickled=True).fingerprint
    assert first != read(folder, pickled=True, rms_norm_eps=1e-6).fingerprint
    folder.tensors["norm.weight"][0] += 1
    assert first != read(folder, pickled=True).fingerprint


def test_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, target = modelopt(tmp_path / "draft").write(), TinyFolder(tmp_path / "target")
    assert main([str(path)]) == 0
    assert capsys.readouterr().out == (
        "draft: EAGLE-3 (tensor fc.weight [16, 48], q_proj reads 2 x 16), ModelOpt export; "
        "--target DIR checks it against its target\n"
    )
    assert main([str(path), "--target", str(target.write(num_hidden_layers=2))]) == 1
    assert "is not supported" not in capsys.readouterr().out
    for i in range(2, 8):
        first = {n: t for n, t in target.tensors.items() if n.startswith("model.layers.0.")}
        target.tensors |= {
            n.replace("layers.0", f"layers.{i}"): t.clone() for n, t in first.items()
        }
    assert main([str(path), "--target", str(target.write(num_hidden_layers=8))]) == 0
    printed = capsys.readouterr().out
    assert "reads outputs of layers 1, 3, 4 (eagle_config: outputs)\n" in printed
    assert '"version": 3' in printed and "token_map" in printed and "fingerprint" in printed
