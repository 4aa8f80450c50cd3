"""A decoder whose layers differ in heads, head size, window, rope table and scale is what plain
dense arithmetic makes of its specs."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.config.layer import Layers
from trtspec.config.layer_tensors import model_tensors
from trtspec.config.rope import RopeConfig
from trtspec.models.causal_lm import CausalLM

from ..tiny_config import attention_of, tiny_config
from .paged import Feed, PagedModel

BASE = tiny_config("LlamaForCausalLM", 70, 16, 24, 1, 4, 2, 8, 1e-5, 64)
LAYER = BASE.layers[0]
CONFIG = replace(
    BASE,
    ropes=(RopeConfig(), RopeConfig(300.0), RopeConfig(50.0)),
    layers=Layers.of(
        [
            LAYER.with_mixer(head_dim=4, num_kv_heads=1, window=5),
            LAYER.with_mixer(rope=1, scale=0.7, qk_norm=LAYER.norm).with_ffn(intermediate_size=40),
            LAYER.with_mixer(head_dim=4, num_heads=2, rope=2, bias=True),
            LAYER.with_mixer(head_dim=4, num_kv_heads=1, window=5),
        ]
    ),
)
TOKENS = [3, 9, 27, 11, 33, 29, 17, 51, 13, 39, 47, 1]


def weights() -> dict[str, Tensor]:
    noise = torch.Generator().manual_seed(2)
    return {
        name: 0.5 + torch.rand(shape, generator=noise)
        if name.endswith("norm.weight")
        else torch.randn(shape, generator=noise) / 3
        for name, shape in model_tensors(CONFIG).items()
    }


def dense(w: dict[str, Tensor], ids: list[int]) -> Tensor:
    """Logits of a whole sequence."""

    def norm(x: Tensor, name: str) -> Tensor:
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-5) * w[f"{name}.weight"]

    def linear(x: Tensor, name: str) -> Tensor:
        return F.linear(x, w[f"{name}.weight"], w.get(f"{name}.bias"))

    x, steps = w["embed.weight"][ids], torch.arange(len(ids))
    for i in range(CONFIG.num_layers):
        a, own = attention_of(CONFIG, i), f"layers.{i}."
        assert a.rope is not None
        inner = norm(x, own + "input_norm")
        q, k, v = (
            linear(inner, f"{own}attn.{part}").unflatten(-1, (-1, a.head_dim)) for part in "qkv"
        )
        if a.qk_norm:
            q, k = norm(q, own + "attn.q_norm"), norm(k, own + "attn.k_norm")
        powers = torch.arange(0, a.head_dim, 2) / a.head_dim
        angles = (steps[:, None] / CONFIG.ropes[a.rope].theta ** powers)[:, None]

        def turned(y: Tensor, angles: Tensor = angles) -> Tensor:
            first, second = y.chunk(2, -1)
            cos, sin = angles.cos(), angles.sin()
            return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)

        groups = a.num_heads // a.num_kv_heads
        k, v = (y.repeat_interleave(groups, 1) for y in (turned(k), v))
        scores = torch.einsum("qhd,khd->hqk", turned(q), k) * (a.scale or a.head_dim**-0.5)
        ago = steps[:, None] - steps
        unseen = (ago < 0) | ((ago >= a.window) if a.window else (ago < 0))
        probabilities = scores.masked_fill(unseen, -torch.inf).softmax(-1)
        x = x + linear(torch.einsum("hqk,khd->qhd", probabilities, v).flatten(1), own + "attn.o")
        inner = norm(x, own + "post_attention_norm")
        gated = F.silu(linear(inner, own + "mlp.gate")) * linear(inner, own + "mlp.up")
        x = x + linear(gated, own + "mlp.down")
    return norm(x, "norm") @ w["head.weight"].T


@pytest.mark.parametrize("chunk", [12, 5, 1])
@torch.no_grad()
def test_equals_dense_arithmetic(chunk: int) -> None:
    w = weights()
    model = CausalLM(CONFIG, torch.float32)
    model.load_weights(SimpleNamespace(config=CONFIG, tensors=w))
    names = [name for name in model.state_dict() if name.startswith("rotary")]
    assert names == [f"rotary.{part}inv_freq" for part in ("", "others.0.", "others.1.")]
    paged = PagedModel(model)
    starts = range(0, len(TOKENS), chunk)
    found = torch.cat([paged.run({0: Feed(TOKENS[a : a + chunk], a)}) for a in starts])
    torch.testing.assert_close(found, dense(w, TOKENS), rtol=1e-4, atol=1e-4)
