"""DFlash drafts of z-lab's format and of speculators', and what is refused of their relatives."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from trtspec.builder.checkpoints import describe_draft, read_draft
from trtspec.config.embedding_spec import EmbeddingSpec
from trtspec.errors import CheckpointError
from trtspec.speculative.block.dflash import DFlashConfig

from ..tiny_config import attention_of
from .draft_folder import HEADS, INNER, KV, ROWS, TARGET, D, H, V, covered, offsets

NESTED = {"mask_token_id": 2, "target_layer_ids": [1, 4]}
CONFIG: dict[str, Any] = {
    "architectures": ["DFlashDraftModel"],
    "model_type": "qwen3",
    "hidden_size": H,
    "intermediate_size": INNER,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "head_dim": D,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 64,
    "vocab_size": V,
    "num_target_layers": TARGET.num_layers,
    "block_size": 4,
    "dflash_config": NESTED,
}
DECODER = {k: v for k, v in CONFIG.items() if k.startswith(("hidden", "inter", "num_", "head"))}
SPECULATORS: dict[str, Any] = {
    "speculators_model_type": "dflash",
    "architectures": ["DFlashSpeculator"],
    "block_size": 4,
    "mask_token_id": 2,
    "aux_hidden_state_layer_ids": [2, 5],
    "draft_vocab_size": ROWS,
    "transformer_layer_config": {
        **{k: v for k, v in DECODER.items() if k != "num_target_layers"},
        "model_type": "qwen3",
        "vocab_size": V,
        "rms_norm_eps": 1e-6,
        "max_position_embeddings": 64,
    },
}


def network(states: int = 2) -> dict[str, Tensor]:
    tensors = {
        "fc.weight": torch.randn(H, states * H),
        "hidden_norm.weight": torch.ones(H),
        "norm.weight": torch.ones(H),
    }
    shapes = {
        "self_attn.q_proj": (HEADS * D, H),
        "self_attn.k_proj": (KV * D, H),
        "self_attn.v_proj": (KV * D, H),
        "self_attn.o_proj": (H, HEADS * D),
        "self_attn.q_norm": (D,),
        "self_attn.k_norm": (D,),
        "mlp.gate_proj": (INNER, H),
        "mlp.up_proj": (INNER, H),
        "mlp.down_proj": (H, INNER),
        "input_layernorm": (H,),
        "post_attention_layernorm": (H,),
    }
    for layer in (0, 1):
        for name, shape in shapes.items():
            tensors[f"layers.{layer}.{name}.weight"] = torch.randn(shape)
    return tensors


def vocabulary() -> dict[str, Tensor]:
    return {
        "lm_head.weight": torch.randn(ROWS, H),
        "embed_tokens.weight": torch.randn(V, H),
        "d2t": offsets(),
        "t2d": covered(),
        "verifier_norm.weight": torch.ones(H),
    }


def write(folder: Path, config: dict[str, Any], tensors: dict[str, Tensor]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config))
    save_file(tensors, folder / "model.safetensors")
    return folder


def nested(**changes: Any) -> dict[str, Any]:
    return CONFIG | {"dflash_config": {**NESTED, **changes}}


def read(folder: Path, config: dict[str, Any] = CONFIG, states: int = 2) -> DFlashConfig:
    found = read_draft(write(folder, config, network(states)), TARGET).config
    assert isinstance(found, DFlashConfig)
    return found


def test_the_usual_format(tmp_path: Path) -> None:
    """Layer ids are outputs already; embedding and head are the target's."""
    folder = write(tmp_path, CONFIG, network())
    draft = read_draft(folder, TARGET)
    assert isinstance(draft.config, DFlashConfig)
    assert (draft.kind, draft.method) == ("dflash", "dflash")
    assert (draft.config.capture_layers, draft.config.block_size) == ((1, 4), 4)
    assert draft.config.causal_layers == (False, False)
    assert attention_of(draft.config.decoder).qk_norm
    assert not (draft.config.own_embedding or draft.config.own_head)
    assert draft.notes[0] == (
        "draft: DFlash (dflash_config, blocks of 4), DFlash checkpoint; reads outputs of layers "
        "1, 4 (target_layer_ids: outputs)"
    )
    assert "the head is the target's" in draft.notes
    assert draft.tensors["layers.1.attn.k.weight"].shape == (KV * D, H)
    assert describe_draft(folder) == "draft: DFlash (dflash_config, blocks of 4), DFlash checkpoint"


def test_speculators(tmp_path: Path) -> None:
    """Layer ids are inputs, one more; a vocabulary of the draft's own."""
    draft = read_draft(write(tmp_path, SPECULATORS, {**network(), **vocabulary()}), TARGET)
    config = draft.config
    assert isinstance(config, DFlashConfig)
    assert (config.capture_layers, config.draft_vocab_size) == ((1, 4), ROWS)
    assert config.own_embedding and config.own_head and config.maps_tokens
    assert any("layer inputs 2, 5, which are outputs 1, 4" in note for note in draft.notes)
    assert draft.ignored == ("t2d", "verifier_norm.weight")
    assert draft.tensors["token_map"].tolist() == [0, 3, 4, 9, 15, 19]


def test_the_last_layer(tmp_path: Path) -> None:
    """transformers gives its state behind the final norm, so that is what was trained on."""
    assert read(tmp_path, nested(target_layer_ids=[1, 7])).capture_layers == (1, 8)


@pytest.mark.parametrize(
    ("changes", "windows", "causal"),
    [
        ({}, (0, 0), (False, False)),
        ({"causal": True}, (0, 0), (True, True)),
        ({"causal_head": True, "target_hidden_size": H}, (0, 0), (True, True)),
        ({"use_swa": True, "swa_window_size": 9, "causal": False}, (9, 9), (False, False)),
        ({"layer_types": ["sliding_attention", "full_attention"]}, (11, 0), (True, False)),
        ({"layer_types": ["sliding_attention"] * 2, "causal": False}, (11, 11), (False, False)),
        ({"layer_types": ["sliding_attention"] * 2, "is_causal": False}, (11, 11), (False, False)),
    ],
)
def test_attention(
    tmp_path: Path, changes: dict[str, Any], windows: tuple[int, ...], causal: tuple[bool, ...]
) -> None:
    outside = {k: changes.pop(k) for k in ("layer_types", "is_causal") if k in changes}
    config = read(tmp_path, nested(**changes) | {"sliding_window": 11} | outside)
    assert tuple(layer.window for layer in config.decoder.layers) == windows
    assert config.causal_layers == causal


def test_an_anchor_that_predicts(tmp_path: Path) -> None:
    assert read(tmp_path / "a", nested(sample_from_anchor=True)).max_draft_len == 4
    assert read(tmp_path / "b", CONFIG).max_draft_len == 3


def test_scale_of_borrowed_rows(tmp_path: Path) -> None:
    """Of a target whose own embedding scales them, unless the draft brings its own."""
    gemma = replace(TARGET, embedding=EmbeddingSpec(4.0, scales_borrowed=True))
    granite = replace(TARGET, embedding=EmbeddingSpec(4.0))
    folder = write(tmp_path / "plain", CONFIG, network())
    found = read_draft(folder, gemma)
    assert found.config.embedding_scale == 4.0
    assert any("are multiplied by 4, as its embedding gives them" in note for note in found.notes)
    assert read_draft(folder, granite).config.embedding_scale == 1.0
    said = nested(input_embedding_scale=0.25, final_logit_softcapping=30)
    found = read_draft(write(tmp_path / "said", said, network()), gemma)
    assert (found.config.embedding_scale, found.config.soft_cap) == (1.0, 30.0)
    own = {**network(), "embed_tokens.weight": torch.randn(V, H)}
    assert read_draft(write(tmp_path / "own", CONFIG, own), gemma).config.embedding_scale == 1.0
    mapped = {n: t for n, t in vocabulary().items() if n != "embed_tokens.weight"}
    stored = write(tmp_path / "speculators", SPECULATORS, network() | mapped)
    assert read_draft(stored, gemma).config.embedding_scale == 1.0


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (nested(input_embedding_scale="4"), "input_embedding_scale is '4', not a number"),
        (nested(input_embedding_scale=0), "embedding_scale is 0.0; it must be above 0"),
        (CONFIG | {"final_logit_softcapping": -1}, "soft_cap is -1.0; it must be above 0"),
        (CONFIG | {"architectures": ["DominoDraftModel"]}, "a Domino draft"),
        (CONFIG | {"architectures": ["DFlash2DraftModel"]}, "does not say conv_kernel_size, conv"),
        (nested(projector_type="domino"), r"dflash_config\.projector_type is 'domino'"),
        (nested(attention_sink_bias=True), r"dflash_config\.attention_sink_bias is True"),
        (nested(markov_rank=256), "says markov_rank, which this version does not know"),
        (nested(mask_token_id=None), "does not say mask_token_id"),
        (nested(mask_token_id=V), f"mask_token_id={V} is no token"),
        (nested(target_layer_ids=None), "does not say target_layer_ids"),
        (nested(target_layer_ids=[4, 1]), "does not rise"),
        (nested(target_layer_ids=[1, 8]), "names layers outside -1 to 7"),
        (nested(causal=False, causal_head=True), r"causal and dflash_config\.causal_head disagree"),
        (nested(target_hidden_size=2 * H), f"hidden size {2 * H} .target_hidden_size., the"),
        (nested(target_layer_ids=[1]), "1 x 16 = 16 values, but fc.weight has 32 inputs"),
        (nested(use_swa=True), "nor sliding_window says how wide"),
        (nested(use_swa=True, swa_window_size=3), "a sliding window of 3 tokens cuts blocks of 4"),
        (CONFIG | {"block_size": None}, "does not say block_size"),
        (CONFIG | {"num_target_layers": 36}, "a target of 36 layers .* the target has 8"),
        (CONFIG | {"layer_types": ["linear"] * 2}, r"layer_types \['linear', 'linear'\]"),
        (
            CONFIG | {"quantization_config": {"quant_method": "exl2"}},
            "_config exl2 is not",
        ),
        (SPECULATORS | {"speculators_model_type": "dflash3"}, "a speculators draft .* 'dflash3'"),
    ],
)
def test_refusals(tmp_path: Path, config: dict[str, Any], message: str) -> None:
    given = json.loads(json.dumps(config))
    if isinstance(given.get("dflash_config"), dict):
        said = given["dflash_config"].items()
        given["dflash_config"] = {k: v for k, v in said if v is not None}
    with pytest.raises(CheckpointError, match=message):
        read_draft(write(tmp_path, given, network()), TARGET)


def test_tensors(tmp_path: Path) -> None:
    """A relative's tensors have no use, and none may be missing."""
    more = {**network(), "markov_w1.weight": torch.randn(V, 4)}
    with pytest.raises(CheckpointError, match=r"1 tensors have no use: markov_head\.markov_w1"):
        read_draft(write(tmp_path / "a", CONFIG, more), TARGET)
    less = network()
    del less["hidden_norm.weight"]
    with pytest.raises(CheckpointError, match=r"1 tensors are missing: hidden_norm\.weight"):
        read_draft(write(tmp_path / "b", CONFIG, less), TARGET)


def test_a_file_of_tokens(tmp_path: Path) -> None:
    """A head of the draft's own keeps their rows; beside a map of the draft's, it is refused."""
    ids = [7, 3, 12]
    (tmp_path / "list.json").write_text(json.dumps(ids))
    borrowed = read_draft(write(tmp_path / "a", CONFIG, network()), TARGET, tmp_path / "list.json")
    assert borrowed.config.draft_vocab_size == 3 and not borrowed.config.own_head
    assert borrowed.tensors["token_map"].tolist() == ids
    assert tmp_path / "list.json" in borrowed.files
    head = {"lm_head.weight": torch.randn(V, H)}
    own = read_draft(
        write(tmp_path / "b", CONFIG, network() | head), TARGET, tmp_path / "list.json"
    )
    assert torch.equal(own.tensors["head.weight"], head["lm_head.weight"][ids])
    with pytest.raises(CheckpointError, match=r"has its own token map .* leave vocabulary out"):
        folder = write(tmp_path / "c", SPECULATORS, {**network(), **vocabulary()})
        read_draft(folder, TARGET, tmp_path / "list.json")
