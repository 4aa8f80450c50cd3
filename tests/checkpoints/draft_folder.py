"""One tiny EAGLE network, written in every format that people have; tests bend what they need."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

from ..tiny_config import tiny_config

V, H, INNER, HEADS, KV, D = 20, 16, 24, 4, 2, 4
ROWS = 6
IDS = [0, 3, 4, 9, 15, 19]
"""The target's ids of the ROWS tokens that the EAGLE-3 head covers."""

TARGET = tiny_config(
    architecture="LlamaForCausalLM",
    vocab_size=V,
    hidden_size=H,
    intermediate_size=INNER,
    num_layers=8,
    num_heads=HEADS,
    num_kv_heads=KV,
    head_dim=D,
    eps=1e-5,
    max_position_embeddings=64,
    eos_token_ids=(19,),
)

SIZES: dict[str, Any] = {
    "hidden_size": H,
    "intermediate_size": INNER,
    "num_hidden_layers": 1,
    "num_attention_heads": HEADS,
    "num_key_value_heads": KV,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 32,
    "vocab_size": V,
    "hidden_act": "silu",
}
LLAMA: dict[str, Any] = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", **SIZES}
EAGLE_CONFIG: dict[str, Any] = {
    "eagle_aux_hidden_state_layer_ids": [1, 3, 4],
    "use_aux_hidden_state": True,
    "use_input_layernorm_in_first_layer": True,
    "use_last_layernorm": True,
    "use_mtp_layernorm": False,
    "next_layer_regular": True,
    "parallel_draft_step": 1,
    "parallel_draft_heads_num_layers": 1,
}


def offsets(ids: list[int] = IDS) -> Tensor:
    return torch.tensor(ids) - torch.arange(len(ids))


def covered(ids: list[int] = IDS, vocab: int = V) -> Tensor:
    mask = torch.zeros(vocab, dtype=torch.bool)
    mask[ids] = True
    return mask


def layer(prefix: str, width: int, input_norm: bool = True) -> dict[str, Tensor]:
    shapes: dict[str, tuple[int, ...]] = {
        "self_attn.q_proj.weight": (HEADS * D, width),
        "self_attn.k_proj.weight": (KV * D, width),
        "self_attn.v_proj.weight": (KV * D, width),
        "self_attn.o_proj.weight": (H, HEADS * D),
        "post_attention_layernorm.weight": (H,),
        "mlp.gate_proj.weight": (INNER, H),
        "mlp.up_proj.weight": (INNER, H),
        "mlp.down_proj.weight": (H, INNER),
    }
    if input_norm:
        shapes["input_layernorm.weight"] = (H,)
    if width == 2 * H:
        shapes["hidden_norm.weight"] = (H,)
    return {prefix + name: torch.randn(shape) for name, shape in shapes.items()}


def eagle3(prefix: str = "midlayer.", states: int = 3) -> dict[str, Tensor]:
    """The tensors of an EAGLE-3 draft, equal for every ``prefix``; no vocabulary tables."""
    torch.manual_seed(3)
    return {
        "fc.weight": torch.randn(H, states * H),
        "norm.weight": torch.randn(H),
        "lm_head.weight": torch.randn(ROWS, H),
        **layer(prefix, 2 * H),
    }


def eagle1() -> dict[str, Tensor]:
    torch.manual_seed(1)
    return {
        "fc.weight": torch.randn(H, 2 * H),
        "fc.bias": torch.randn(H),
        **layer("layers.0.", H, input_norm=False),
    }


@dataclass
class DraftFolder:
    path: Path
    config: dict[str, Any]
    tensors: dict[str, Tensor] = field(default_factory=dict)

    def write(self, pickled: bool = False, **changes: Any) -> Path:
        """Write config.json (with changes) and the tensors; returns the folder."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "config.json").write_text(json.dumps(self.config | changes))
        if pickled:
            torch.save(self.tensors, self.path / "pytorch_model.bin")
        else:
            tensors = {name: tensor.contiguous() for name, tensor in self.tensors.items()}
            save_file(tensors, self.path / "model.safetensors")
        return self.path


def yuhuili3(path: Path) -> DraftFolder:
    tables = {"d2t": offsets(), "t2d": covered()}
    config = LLAMA | {"draft_vocab_size": ROWS, "torch_dtype": "float16"}
    return DraftFolder(path, config, {**eagle3(), **tables})


def yuhuili1(path: Path) -> DraftFolder:
    return DraftFolder(path, LLAMA | {"bias": True, "torch_dtype": "float16"}, eagle1())


def specforge(path: Path) -> DraftFolder:
    folder = yuhuili3(path)
    folder.config["architectures"] = ["LlamaForCausalLMEagle3"]
    return folder


def modelopt(path: Path) -> DraftFolder:
    config = LLAMA | {
        "architectures": ["LlamaForCausalLMEagle3"],
        "draft_vocab_size": ROWS,
        "head_dim": D,
        "rope_theta": 500.0,
        "rope_scaling": {
            "rope_type": "yarn",
            "factor": 32.0,
            "original_max_position_embeddings": 2048,
        },
        "eagle_config": dict(EAGLE_CONFIG),
        "torch_dtype": "bfloat16",
    }
    return DraftFolder(path, config, {**eagle3("layers.0."), "d2t": offsets()})


def speculators(path: Path) -> DraftFolder:
    config = {
        "architectures": ["Eagle3Speculator"],
        "speculators_model_type": "eagle3",
        "speculators_version": "0.3.0",
        "speculators_config": {
            "algorithm": "eagle3",
            "default_proposal_method": "greedy",
            "proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 3}],
            "verifier": {"name_or_path": "some/Model", "architectures": ["LlamaForCausalLM"]},
        },
        "transformer_layer_config": {"model_type": "llama", "head_dim": D, **SIZES},
        "draft_vocab_size": ROWS,
        "target_hidden_size": None,
        "norm_before_residual": False,
        "norm_before_fc": False,
        "fc_norm": False,
        "norm_output": False,
        "eagle_aux_hidden_state_layer_ids": [2, 4, 5],
        "dtype": "float32",
    }
    tables = {"d2t": offsets(), "t2d": covered()}
    return DraftFolder(path, config, {**eagle3("layers.0."), **tables})


EAGLE3_FORMATS = {
    "yuhuili": yuhuili3,
    "SpecForge": specforge,
    "ModelOpt": modelopt,
    "speculators": speculators,
}
