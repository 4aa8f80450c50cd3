"""MTP modules in targets' checkpoints: two families in their formats, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec.builder.checkpoints import load_target, read_draft, read_own_draft, target_config
from trtspec.config.model import ModelConfig
from trtspec.errors import CheckpointError
from trtspec.speculative.mtp.method import MTP
from trtspec.speculative.mtp.shape import MtpConfig

from ..tiny_config import attention_of, dense_of
from .tiny_folder import TinyFolder

H, V, INNER, KV = 16, 20, 40, 8
MIMO, QWEN, GLM = "model.mtp_layers.0.", "mtp.", "model.layers.2."
NOISE = torch.Generator().manual_seed(4)


def layer(prefix: str, bias: bool = False, qk_norm: bool = False) -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {
        "input_layernorm.weight": (H,),
        "post_attention_layernorm.weight": (H,),
        "self_attn.q_proj.weight": (H, H),
        "self_attn.k_proj.weight": (KV, H),
        "self_attn.v_proj.weight": (KV, H),
        "self_attn.o_proj.weight": (H, H),
        "mlp.gate_proj.weight": (INNER, H),
        "mlp.up_proj.weight": (INNER, H),
        "mlp.down_proj.weight": (H, INNER),
    }
    if bias:
        shapes |= {f"self_attn.{n}_proj.bias": (H if n == "q" else KV,) for n in "qkv"}
    if qk_norm:
        shapes |= {f"self_attn.{n}_norm.weight": (4,) for n in "qk"}
    return {
        prefix + name: torch.randn(shape, generator=NOISE).bfloat16()
        for name, shape in shapes.items()
    }


def more(**shapes: tuple[int, ...]) -> dict[str, Tensor]:
    return {
        f"{name}.weight": torch.randn(shape, generator=NOISE).bfloat16()
        for name, shape in shapes.items()
    }


def mimo(path: Path, modules: int = 1) -> TinyFolder:
    """Qwen2's biases, in the target as well."""
    folder = TinyFolder(path)
    folder.config |= {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "mimo",
        "num_nextn_predict_layers": modules,
    }
    for i in range(2):
        for n in "qkv":
            name = f"model.layers.{i}.self_attn.{n}_proj.bias"
            folder.tensors[name] = torch.zeros(H if n == "q" else KV).bfloat16()
    for i in range(modules):
        root = f"model.mtp_layers.{i}."
        norms = dict.fromkeys(("token_layernorm", "hidden_layernorm", "final_layernorm"), (H,))
        own = more(input_proj=(H, 2 * H), **norms)
        folder.tensors |= {root + name: tensor for name, tensor in own.items()}
        folder.tensors |= layer(root, bias=True)
    return folder


def qwen_next(path: Path, modules: int = 1) -> TinyFolder:
    """A dense target with the module of Qwen3-Next."""
    folder = TinyFolder(path)
    folder.config["mtp_num_hidden_layers"] = modules
    norms = dict.fromkeys(("pre_fc_norm_embedding", "pre_fc_norm_hidden", "norm"), (H,))
    own = more(fc=(H, 2 * H), **norms)
    folder.tensors |= {QWEN + name: tensor for name, tensor in own.items()}
    for i in range(modules):
        folder.tensors |= layer(f"mtp.layers.{i}.", qk_norm=True)
    return folder


def behind(path: Path, model_type: str) -> TinyFolder:
    """The layout of DeepSeek-V3 and GLM-4.5, with a dense block."""
    folder = TinyFolder(path)
    folder.config |= {"model_type": model_type, "num_nextn_predict_layers": 1}
    own = more(eh_proj=(H, 2 * H), enorm=(H,), hnorm=(H,), embed_tokens=(V, H))
    own |= {
        "shared_head.norm.weight": torch.ones(H).bfloat16(),
        "shared_head.head.weight": torch.randn(V, H, generator=NOISE).bfloat16(),
    }
    folder.tensors |= {GLM + name: tensor for name, tensor in own.items()}
    folder.tensors |= layer(GLM)
    return folder


def read(path: Path, **options: Any) -> tuple[MtpConfig, dict[str, Tensor], tuple[str, ...]]:
    """A checkpoint of one module."""
    found = read_own_draft(path, MTP, target_config(path), **options)
    assert found.kind == "mtp_modules" and found.path == path and found.config.num_modules == 1
    tensors = {name.removeprefix("modules.0."): found.tensors[name] for name in found.tensors}
    assert len(tensors) == len(found.tensors)
    return found.config.module, tensors, found.notes


def test_mimo(tmp_path: Path) -> None:
    """The state's half comes first there; the layer has biases on q, k and v."""
    folder = mimo(tmp_path)
    config, tensors, notes = read(folder.write())
    decoder = config.decoder
    mixer = attention_of(decoder)
    assert (decoder.num_layers, dense_of(decoder).intermediate_size, mixer.bias) == (1, 40, True)
    assert not mixer.qk_norm and config.norm_output and config.capture_layers == (2,)
    assert not config.own_head and not config.own_embedding
    whole = folder.tensors[f"{MIMO}input_proj.weight"]
    assert torch.equal(tensors["fc.weight"], torch.cat((whole[:, H:], whole[:, :H]), 1))
    for ours, theirs in {
        "embedding_norm.weight": "token_layernorm.weight",
        "state_norm.weight": "hidden_layernorm.weight",
        "norm.weight": "final_layernorm.weight",
        "layers.0.input_norm.weight": "input_layernorm.weight",
        "layers.0.attn.k.bias": "self_attn.k_proj.bias",
        "layers.0.mlp.down.weight": "mlp.down_proj.weight",
    }.items():
        assert torch.equal(tensors[ours], folder.tensors[MIMO + theirs]), ours
    assert notes[0].startswith("draft: MTP (MiMo, tensors model.mtp_layers.0.*)")


def test_qwen3_next(tmp_path: Path) -> None:
    """Every norm's weight is one less than what it multiplies by; nothing else is changed."""
    folder = qwen_next(tmp_path)
    config, tensors, notes = read(folder.write())
    mixer = attention_of(config.decoder)
    assert mixer.qk_norm and config.norm_output and not mixer.bias
    norms = {
        "embedding_norm.weight": "mtp.pre_fc_norm_embedding.weight",
        "state_norm.weight": "mtp.pre_fc_norm_hidden.weight",
        "norm.weight": "mtp.norm.weight",
        "layers.0.input_norm.weight": "mtp.layers.0.input_layernorm.weight",
        "layers.0.post_attention_norm.weight": "mtp.layers.0.post_attention_layernorm.weight",
        "layers.0.attn.q_norm.weight": "mtp.layers.0.self_attn.q_norm.weight",
        "layers.0.attn.k_norm.weight": "mtp.layers.0.self_attn.k_norm.weight",
    }
    assert {name for name in tensors if name.endswith("norm.weight")} == set(norms)
    for ours, theirs in norms.items():
        assert torch.equal(tensors[ours], folder.tensors[theirs].float() + 1), ours
    assert torch.equal(tensors["fc.weight"], folder.tensors["mtp.fc.weight"])
    assert "Qwen3-Next" in notes[0]


@pytest.mark.parametrize(("model_type", "feeds_normed"), [("llama", True), ("glm4_moe", False)])
def test_behind_the_targets_layers(tmp_path: Path, model_type: str, feeds_normed: bool) -> None:
    """They bring their own embedding and head; GLM-4.5 feeds back what its last norm reads."""
    folder = behind(tmp_path, model_type)
    config, tensors, _ = read(folder.write())
    assert config.own_head and config.own_embedding and config.norm_output == feeds_normed
    assert torch.equal(tensors["head.weight"], folder.tensors[f"{GLM}shared_head.head.weight"])
    assert torch.equal(tensors["embed.weight"], folder.tensors[f"{GLM}embed_tokens.weight"])
    assert torch.equal(tensors["fc.weight"], folder.tensors[f"{GLM}eh_proj.weight"])


@pytest.mark.parametrize("make", [mimo, qwen_next, lambda p, n: behind(p, "llama")])
def test_the_target_ignores_them(tmp_path: Path, make: Any) -> None:
    """Read as a language model, and as a draft that is one."""
    folder = make(tmp_path, 2)
    path, plain = folder.write(), set(TinyFolder(tmp_path).tensors)
    checkpoint = load_target(path)
    roots = ("mtp.", "model.mtp_layers.", GLM)
    assert set(checkpoint.ignored) == {name for name in folder.tensors if name.startswith(roots)}
    assert checkpoint.config.num_layers == 2 and len(plain) <= len(checkpoint.tensors)
    target = target_config(path)
    assert isinstance(read_draft(path, target).config, ModelConfig)


def test_other_unknown_tensors_are_still_refused(tmp_path: Path) -> None:
    folder = qwen_next(tmp_path)
    folder.tensors["model.layers.2.mlp.down_proj.weight"] = torch.zeros(H, INNER).bfloat16()
    with pytest.raises(CheckpointError, match=r"no use: model\.layers\.2\.mlp\.down_proj"):
        load_target(folder.write())


@pytest.mark.parametrize(
    ("make", "shared"),
    [(mimo, ()), (qwen_next, ("fc.weight", "norm.weight", "state_norm.weight"))],
)
def test_several_modules(tmp_path: Path, make: Any, shared: tuple[str, ...]) -> None:
    """Each by itself is what a checkpoint with it alone holds; some families share a part."""
    folder = make(tmp_path / "three", 3)
    path = folder.write()
    found = read_own_draft(path, MTP, target_config(path))
    one = read(make(tmp_path / "one", 1).write())
    assert found.config.module == one[0] and found.config.num_modules == 3
    assert found.config.decoder.num_layers == found.config.lookahead == 3
    assert found.notes == one[2]
    assert {name.split(".", 2)[2] for name in found.tensors} == set(one[1])
    assert len(found.tensors) == 3 * len(one[1])
    root = {mimo: "model.mtp_layers.{}.", qwen_next: "mtp.layers.{}."}[make]
    for i in range(3):
        theirs = folder.tensors[root.format(i) + "mlp.down_proj.weight"]
        assert torch.equal(found.tensors[f"modules.{i}.layers.0.mlp.down.weight"], theirs)
    for name in one[1]:
        first, last = (found.tensors[f"modules.{i}.{name}"] for i in (0, 2))
        if name.startswith("layers.") and not name.endswith("bias"):
            assert not torch.equal(first, last), name
        elif name in shared:
            assert torch.equal(first, last), name


def test_several_modules_behind_the_targets_layers(tmp_path: Path) -> None:
    """Every one with an embedding and a head of its own."""
    folder = behind(tmp_path, "llama")
    again = {
        name.replace(GLM, "model.layers.3."): torch.randn(tensor.shape, generator=NOISE).bfloat16()
        for name, tensor in folder.tensors.items()
        if name.startswith(GLM)
    }
    folder.tensors |= again
    path = folder.write(num_nextn_predict_layers=2)
    found = read_own_draft(path, MTP, target_config(path))
    assert found.config.num_modules == 2 and found.config.module.own_head
    for i, root in enumerate((GLM, "model.layers.3.")):
        head = found.tensors[f"modules.{i}.head.weight"]
        assert torch.equal(head, folder.tensors[f"{root}shared_head.head.weight"])


def test_another_number_of_modules_is_told(tmp_path: Path) -> None:
    path = mimo(tmp_path, 2).write(num_nextn_predict_layers=3)
    found = read_own_draft(path, MTP, target_config(path))
    assert found.config.num_modules == 2
    (note,) = (note for note in found.notes if "config.json says" in note)
    assert "num_nextn_predict_layers 3, but the checkpoint has tensors of 2 MTP modules" in note


def test_modules_that_differ(tmp_path: Path) -> None:
    """A part that one lacks, one that only one has, and another size."""
    name = "model.mtp_layers.1.self_attn.o_proj.weight"
    folder = mimo(tmp_path / "lacks", 2)
    del folder.tensors[name]
    with pytest.raises(CheckpointError, match=f"MTP module 1 of 2.*1 tensors are missing: {name}"):
        read(folder.write())
    folder = mimo(tmp_path / "bias", 2)
    folder.tensors[name.replace("weight", "bias")] = torch.zeros(H).bfloat16()
    with pytest.raises(CheckpointError, match=r"MTP module 1 is not like module 0.*of one shape"):
        read(folder.write())
    folder = mimo(tmp_path / "moe", 2)
    folder.tensors["model.mtp_layers.1.mlp.gate.weight"] = torch.zeros(2, 2)
    with pytest.raises(CheckpointError, match=r"no use: model\.mtp_layers\.1\.mlp\.gate\.weight"):
        read(folder.write())


def test_a_token_map(tmp_path: Path) -> None:
    torch.save(torch.tensor([3, 1, 7]), tmp_path / "map.pt")
    path = behind(tmp_path / "m", "llama").write()
    config, tensors, _ = read(path, token_map=tmp_path / "map.pt")
    assert config.draft_vocab_size == 3 and tensors["head.weight"].shape == (3, H)
    assert tensors["token_map"].tolist() == [3, 1, 7]


BLOCKS = [
    ("linear_attn.in_proj_qkvz.weight", "linear attention"),
    ("self_attn.attention_sink_bias", "attention sinks"),
]


@pytest.mark.parametrize(("name", "message"), BLOCKS)
@pytest.mark.parametrize("make", [mimo, qwen_next, lambda p: behind(p, "llama")])
def test_blocks_that_are_not_run(tmp_path: Path, make: Any, name: str, message: str) -> None:
    folder = make(tmp_path)
    prefix = (
        next(n for n in folder.tensors if n.endswith("mlp.up_proj.weight") and "mtp" in n)
        if (make in (mimo, qwen_next))
        else f"{GLM}mlp.up_proj.weight"
    )
    folder.tensors[prefix.removesuffix("mlp.up_proj.weight") + name] = torch.zeros(2, 2)
    with pytest.raises(CheckpointError, match=f"{message}.*supported: grouped-query or latent"):
        read(folder.write())


def test_gates_that_the_target_lacks(tmp_path: Path) -> None:
    folder = qwen_next(tmp_path)
    folder.tensors["mtp.layers.0.self_attn.q_proj.weight"] = torch.zeros(2 * H, H).bfloat16()
    with pytest.raises(CheckpointError, match=r"q_proj.weight has shape \[32, 16\], .* \[16, 16\]"):
        read(folder.write())


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (mimo, f"{MIMO}hidden_layernorm.weight"),
        (mimo, f"{MIMO}self_attn.v_proj.bias"),
        (mimo, f"{MIMO}input_proj.weight"),
        (qwen_next, "mtp.fc.weight"),
        (qwen_next, "mtp.pre_fc_norm_hidden.weight"),
        (qwen_next, "mtp.layers.0.mlp.down_proj.weight"),
    ],
)
def test_a_missing_tensor(tmp_path: Path, make: Any, name: str) -> None:
    folder = make(tmp_path)
    del folder.tensors[name]
    with pytest.raises(CheckpointError, match=f"does not fit.*1 tensors are missing: {name};"):
        read(folder.write())


def test_other_refusals(tmp_path: Path) -> None:
    """No modules, although the config speaks of some; a tensor too many; another target."""
    plain = TinyFolder(tmp_path / "plain").write(num_nextn_predict_layers=1)
    with pytest.raises(CheckpointError, match=r"no MTP modules.*although num_nextn_predict_layers"):
        read(plain)
    folder = qwen_next(tmp_path / "extra")
    folder.tensors["mtp.layers.0.gate_x.weight"] = torch.zeros(2)
    with pytest.raises(CheckpointError, match=r"no use: mtp\.layers\.0\.gate_x\.weight"):
        read(folder.write())
    path = mimo(tmp_path / "other").write()
    wide = TinyFolder(tmp_path / "wide").write(hidden_size=32)
    with pytest.raises(CheckpointError, match=r"shape \[16, 32\].*asks for \[32, 64\]"):
        read_own_draft(path, MTP, target_config(wide))
