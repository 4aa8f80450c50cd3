"""A tiny Llama folder whose config and tensors a test can bend before it is written."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from torch import Tensor

CONFIG: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "vocab_size": 20,
    "hidden_size": 16,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 64,
    "rope_theta": 500.0,
    "torch_dtype": "bfloat16",
    "hidden_act": "silu",
    "tie_word_embeddings": False,
    "eos_token_id": 2,
}


def tensors() -> dict[str, Tensor]:
    torch.manual_seed(0)
    shapes: dict[str, tuple[int, ...]] = {
        "model.embed_tokens.weight": (20, 16),
        "model.norm.weight": (16,),
        "lm_head.weight": (20, 16),
    }
    for i in range(2):
        layer = f"model.layers.{i}."
        shapes |= {
            f"{layer}input_layernorm.weight": (16,),
            f"{layer}post_attention_layernorm.weight": (16,),
            f"{layer}self_attn.q_proj.weight": (16, 16),
            f"{layer}self_attn.k_proj.weight": (8, 16),
            f"{layer}self_attn.v_proj.weight": (8, 16),
            f"{layer}self_attn.o_proj.weight": (16, 16),
            f"{layer}mlp.gate_proj.weight": (24, 16),
            f"{layer}mlp.up_proj.weight": (24, 16),
            f"{layer}mlp.down_proj.weight": (16, 24),
        }
    return {name: torch.randn(shape).bfloat16() for name, shape in shapes.items()}


@dataclass
class TinyFolder:
    """``config`` values of None are written as null; a key is removed with `drop`."""

    path: Path
    config: dict[str, Any] = field(default_factory=lambda: dict(CONFIG))
    tensors: dict[str, Tensor] = field(default_factory=tensors)

    def drop(self, *keys: str) -> TinyFolder:
        for key in keys:
            self.config.pop(key)
        return self

    def write(self, **changes: Any) -> Path:
        """Write one safetensors file and config.json with changes; returns the folder."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "config.json").write_text(json.dumps(self.config | changes))
        save_file(self.tensors, self.path / "model.safetensors")
        return self.path

    def write_shards(self) -> Path:
        """The same in two shards and an index."""
        self.write()
        (self.path / "model.safetensors").unlink()
        names = sorted(self.tensors)
        weight_map = {}
        for number, part in enumerate((names[: len(names) // 2], names[len(names) // 2 :]), 1):
            shard = f"model-{number:05}-of-00002.safetensors"
            save_file({name: self.tensors[name] for name in part}, self.path / shard)
            weight_map |= dict.fromkeys(part, shard)
        index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
        (self.path / "model.safetensors.index.json").write_text(json.dumps(index))
        return self.path
