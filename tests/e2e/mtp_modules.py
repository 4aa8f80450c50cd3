"""MTP modules inside the checkpoints of tiny targets: random ones, and two that are right."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import PreTrainedModel

from .eagle_heads import _LENGTH, MODE, ONE, H, V, _chooser, cycling_target

FORMATS = ("mimo", "qwen3_next")
_WEIGHTS = "model.safetensors"
_MIMO = {
    "fc": "input_proj",
    "embedding_norm": "token_layernorm",
    "state_norm": "hidden_layernorm",
    "norm": "final_layernorm",
}
_QWEN = {
    "fc": "fc",
    "embedding_norm": "pre_fc_norm_embedding",
    "state_norm": "pre_fc_norm_hidden",
    "norm": "norm",
}

Module = dict[str, Tensor]
"""fc (the embedding's half first), embedding_norm, state_norm and norm; else ``self_attn.*``,
``mlp.*`` and the two norms of the layer, by their names in a layer, all without ``.weight``."""


def mtp(**shape: Any) -> dict[str, Any]:
    return {"method": "mtp", **shape}


def add_module(target: Path, folder: Path, module: Module, family: str) -> Path:
    """A copy of a target's folder with a module more in its checkpoint."""
    shutil.copytree(target, folder)
    tensors = load_file(folder / _WEIGHTS)
    for name, weight in module.items():
        if family == "mimo":
            # MiMo reads the state first.
            tensor = torch.cat(weight.chunk(2, dim=1)[::-1], dim=1) if name == "fc" else weight
            full = f"model.mtp_layers.0.{_MIMO.get(name, name)}.weight"
        else:
            # Norms multiply by one more than their weight.
            tensor = weight - 1 if name.endswith("norm") else weight
            full = f"mtp.{_QWEN[name]}.weight" if name in _QWEN else f"mtp.layers.0.{name}.weight"
        tensors[full] = tensor.contiguous()
    save_file(tensors, folder / _WEIGHTS, {"format": "pt"})
    return folder


def random_module(hf: PreTrainedModel, seed: int = 1) -> Module:
    config, noise = hf.config, torch.Generator().manual_seed(seed)
    hidden = config.hidden_size
    head_dim = getattr(config, "head_dim", None) or hidden // config.num_attention_heads
    queries, keys = (n * head_dim for n in (config.num_attention_heads, config.num_key_value_heads))
    shapes = {
        "fc": (hidden, 2 * hidden),
        "self_attn.q_proj": (queries, hidden),
        "self_attn.k_proj": (keys, hidden),
        "self_attn.v_proj": (keys, hidden),
        "self_attn.o_proj": (hidden, queries),
        "mlp.gate_proj": (48, hidden),
        "mlp.up_proj": (48, hidden),
        "mlp.down_proj": (hidden, 48),
    }
    module = {name: 0.15 * torch.randn(shape, generator=noise) for name, shape in shapes.items()}
    norms = dict.fromkeys(("embedding_norm", "state_norm", "norm", "input_layernorm"), hidden)
    norms["post_attention_layernorm"] = hidden
    if config.model_type == "qwen3":
        norms |= {"self_attn.q_norm": head_dim, "self_attn.k_norm": head_dim}
    return module | {n: 0.5 + torch.rand(size, generator=noise) for n, size in norms.items()}


def right_module(cached: bool) -> Module:
    """It computes what `cycling_target` does: token and constant come from the embedding, the mode
    from the state or, ``cached``, by attention from the first row of its own cache."""
    fc, marks = torch.zeros(H, 2 * H), [H - 2, H - 1]
    fc[range(V + 1), range(V + 1)] = 1
    q, k, v, o = (torch.zeros(H, H) for _ in "qkvo")
    if cached:
        fc[marks, [H, H + 1]] = 1  # the state is that of token 0 or 1
        q[7, ONE], k[7, marks], o[MODE, 0] = 40, 40, 1
        v[0, marks] = torch.tensor([1.0, -1.0]) / (H / 3) ** 0.5
    else:
        fc[MODE, H + MODE] = 1
    mlp = _chooser((H / 3) ** 0.5)
    if cached:  # the first row is fed its mark, which its MLP ignores
        assert not any(mlp[name][:, marks].any() for name in ("gate", "up"))
    return {
        "fc": fc,
        # Norms that leave an embedding (token, constant) and a finished state as they are.
        "embedding_norm": torch.full((H,), (2 / H) ** 0.5),
        "state_norm": torch.full((H,), _LENGTH / H**0.5),
        "input_layernorm": torch.ones(H),
        "self_attn.q_proj": q,
        "self_attn.k_proj": k,
        "self_attn.v_proj": v,
        "self_attn.o_proj": o,
        "post_attention_layernorm": torch.ones(H),
        **{f"mlp.{name}_proj": weight for name, weight in mlp.items()},
        "norm": torch.full((H,), _LENGTH / H**0.5),
    }


def save_right(root: Path, sharpness: float, family: str, cached: bool) -> Path:
    hf = cycling_target(sharpness)
    hf.save_pretrained(root / "target")
    return add_module(root / "target", root / "mtp", right_module(cached), family)
