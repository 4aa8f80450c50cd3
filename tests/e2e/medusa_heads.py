"""Medusa heads for the tiny targets: fitted to their texts, and two pairs where they are right."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel

from .eagle_heads import MODE, ONE, OUT, H, V, cycle, cycling_target

Heads = list[dict[str, Tensor]]
"""Of each head ``A``, ``b`` and, unless the target's is to be used, ``W``."""


def medusa(folder: Path, heads: int = 3, **shape: Any) -> dict[str, Any]:
    return {"method": "medusa", "model": str(folder), "num_medusa_heads": heads, **shape}


def write_heads(folder: Path, heads: Heads, modelopt: PreTrainedModel | None = None) -> Path:
    """As FasterDecoding does or, with the model, as ModelOpt does."""
    prefix = "" if modelopt is None else "medusa_heads."
    tensors: dict[str, Tensor] = {}
    for h, head in enumerate(heads):
        tensors[f"{prefix}{h}.0.linear.weight"] = head["A"].contiguous()
        tensors[f"{prefix}{h}.0.linear.bias"] = head["b"].contiguous()
        if "W" in head:
            tensors[f"{prefix}{h}.1.weight"] = head["W"].contiguous()
    folder.mkdir(parents=True, exist_ok=True)
    if modelopt is None:
        config: dict[str, Any] = {"medusa_num_heads": len(heads), "medusa_num_layers": 1}
        torch.save(tensors, folder / "medusa_lm_head.pt")
    else:
        config = modelopt.config.to_dict()
        config["architectures"] = ["MedusaLlamaForCausalLM"]
        config["medusa"] = {"num_medusa_heads": len(heads), "num_medusa_layers": 1}
        torch.save({**modelopt.state_dict(), **tensors}, folder / "pytorch_model.bin")
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@torch.no_grad()
def fitted_heads(hf: PreTrainedModel, texts: Sequence[Sequence[int]], count: int) -> Heads:
    """The linear maps, behind random blocks, that tell the texts' tokens from the states best."""
    noise = torch.Generator().manual_seed(11)
    ids = [torch.tensor([list(text)]) for text in texts]
    states = [hf.model(x).last_hidden_state[0] for x in ids]
    hidden, vocab = states[0].shape[1], hf.config.vocab_size
    heads = []
    for h in range(count):
        a = 0.3 * torch.randn(hidden, hidden, generator=noise) / hidden**0.5
        b = 0.1 * torch.randn(hidden, generator=noise)
        x = torch.cat([state[: -2 - h] for state in states])
        wanted = torch.cat([text[0, 2 + h :] for text in ids])
        x = x + torch.nn.functional.silu(x @ a.T + b)
        gram = x.T @ x + 3.0 * torch.eye(hidden)
        w = torch.linalg.solve(gram, x.T @ torch.nn.functional.one_hot(wanted, vocab).float())
        heads.append({"A": a, "b": b, "W": 8 * w.T})
    return heads


_BIG = 60.0
_ON = 0.5 * _BIG


def _right_head(ahead: int, sharpness: float) -> dict[str, Tensor]:
    """The token ``ahead`` places behind the target's next one, by a unit for every token and mode:
    on for one of them, and silu is the identity there and 0 for the others."""
    a, b, w = torch.zeros(H, H), torch.full((H,), -1.5 * _BIG), torch.zeros(V, H)
    for mode in (0, 1):
        following = cycle(mode)
        for token in range(2, V):
            unit, after = mode * V + token, token
            a[unit, OUT + token] = _BIG
            a[unit, MODE] = _BIG * (1 - 2 * mode)
            for _ in range(ahead):
                after = following[after]
            w[after, unit] = sharpness / _ON
    return {"A": a, "b": b, "W": w}


def right_heads(count: int, sharpness: float = 40.0, shift: int = 0) -> Heads:
    """Heads for `cycling_target`; ``shift``: every one looks that many places too far."""
    return [_right_head(h + 1 + shift, sharpness) for h in range(count)]


def forgetful_target() -> LlamaForCausalLM:
    """A target whose tokens are drawn from one distribution for each mode, whatever the text is: so
    heads that change nothing, with the target's own head, know every later token's distribution."""
    model = cycling_target(0.0)
    noise = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for layer in model.model.layers:
            layer.mlp.down_proj.weight.zero_()
        model.lm_head.weight.zero_()
        model.lm_head.weight[:, ONE] = 1.5 * torch.randn(V, generator=noise)
        model.lm_head.weight[:, MODE] = 1.5 * torch.randn(V, generator=noise)
        model.lm_head.weight[:2, ONE] = -60  # they would change the mode
    return model


def idle_heads(count: int) -> Heads:
    """silu(0) = 0: the state as it is, for the target's head."""
    return [{"A": torch.zeros(H, H), "b": torch.zeros(H)} for _ in range(count)]
