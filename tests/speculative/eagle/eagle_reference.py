"""The published EAGLE networks in plain, dense PyTorch, and random weights for their variants.

EAGLE-1: `cnets1.py` of the EAGLE repository, and with two norms more an MTP module (DeepSeek-V3);
EAGLE-3: its `cnets.py`, with the flags of speculators (norm_before_residual, norm_before_fc) and of
EAGLE-3.1 (fc_norm, norm_output).
"""

from __future__ import annotations

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.config.model import ModelConfig
from trtspec.speculative.eagle.shape import EagleConfig

from ...tiny_config import attention_of, changed, dense_of, tiny_config

V, WIDTH, HIDDEN, INNER, HEADS, KV, HEAD_DIM = 70, 24, 24, 40, 4, 2, 6

TARGET = tiny_config(
    architecture="LlamaForCausalLM",
    vocab_size=V,
    hidden_size=WIDTH,
    intermediate_size=32,
    num_layers=4,
    num_heads=2,
    num_kv_heads=1,
    head_dim=8,
    eps=1e-5,
    max_position_embeddings=64,
)
TIED = changed(TARGET, tied=True)

_DECODER = tiny_config(
    architecture="EagleForCausalLM",
    vocab_size=V,
    hidden_size=HIDDEN,
    intermediate_size=INNER,
    num_layers=1,
    num_heads=HEADS,
    num_kv_heads=KV,
    head_dim=HEAD_DIM,
    eps=1e-6,
    max_position_embeddings=64,
)


def eagle1(decoder: dict[str, Any] | None = None, **flags: Any) -> EagleConfig:
    values = {"first_input_norm": False, "final_norm": False, "own_head": False, **flags}
    decoding = changed(_DECODER, **decoder or {})
    return EagleConfig(
        version=1,
        decoder=decoding,
        target_hidden_size=WIDTH,
        capture_layers=(TARGET.num_layers,),
        **{"draft_vocab_size": V, **values},
    )


def eagle3(decoder: dict[str, Any] | None = None, **flags: Any) -> EagleConfig:
    return EagleConfig(
        version=3,
        decoder=changed(_DECODER, **decoder or {}),
        target_hidden_size=WIDTH,
        capture_layers=(0, 1, 3),
        **{"draft_vocab_size": V, **flags},
    )


_MTP = {"first_input_norm": True, "final_norm": True, "input_norms": True}

CASES: dict[str, EagleConfig] = {
    "eagle1": eagle1(),
    "eagle1_bias": eagle1(fc_bias=True),
    "eagle1_norms_2_layers_own_head": eagle1(
        {"num_layers": 2}, first_input_norm=True, final_norm=True, own_head=True
    ),
    "eagle1_own_embedding": eagle1(own_embedding=True),
    "eagle1_cut_head": eagle1(draft_vocab_size=30),
    "mtp": eagle1(**_MTP, norm_output=True),
    "mtp_feeds_back_before_the_norm": eagle1({"qk_norm": True}, **_MTP),
    "eagle3": eagle3(),
    "eagle3_token_map": eagle3(draft_vocab_size=33),
    "eagle3_targets_head": eagle3(own_head=False),
    "eagle3_cut_head": eagle3(own_head=False, draft_vocab_size=20),
    "eagle3_own_embedding": eagle3(own_embedding=True),
    "eagle3_own_embedding_targets_head": eagle3(own_embedding=True, own_head=False),
    "eagle3_no_norms": eagle3(first_input_norm=False, final_norm=False),
    "eagle3_norm_before_residual": eagle3(norm_before_residual=True),
    "eagle3_norm_before_fc": eagle3(norm_before_fc=True),
    "eagle3_fc_norm": eagle3(fc_norm=True),
    "eagle3_norm_output": eagle3(norm_output=True),
    "eagle3.1": eagle3(fc_norm=True, norm_output=True, draft_vocab_size=33),
    "eagle3_fc_bias": eagle3(fc_bias=True),
    "eagle3_2_layers": eagle3({"num_layers": 2}),
    "eagle3_qk_norm_biases": eagle3({"qk_norm": True, "bias": True}),
    "eagle3_wider": eagle3(
        {"hidden_size": 32, "head_dim": 8}, own_embedding=True, draft_vocab_size=33
    ),
}


def _shapes(c: EagleConfig) -> dict[str, tuple[int, ...]]:
    """Every tensor of a draft checkpoint by its internal name."""
    d = c.decoder
    hidden, a, inner = d.hidden_size, attention_of(d), dense_of(d).intermediate_size
    q, kv = a.num_heads * a.head_dim, a.num_kv_heads * a.head_dim
    shapes: dict[str, tuple[int, ...]] = {
        "fc.weight": (hidden, c.hidden_in if c.version == 3 else 2 * hidden)
    }
    if c.fc_bias:
        shapes["fc.bias"] = (hidden,)
    if c.norm_before_fc:
        shapes["fc_input_norm.weight"] = (c.hidden_in,)
    if c.input_norms:
        shapes |= {f"{name}_norm.weight": (hidden,) for name in ("embedding", "state")}
    if c.fc_norm:
        shapes |= {f"fc_norm.{j}.weight": (WIDTH,) for j in range(len(c.capture_layers))}
    for i in range(d.num_layers):
        wide = i == 0 and c.version == 3
        layer: dict[str, tuple[int, ...]] = {
            "post_attention_norm.weight": (hidden,),
            "attn.o.weight": (hidden, q),
            "mlp.gate.weight": (inner, hidden),
            "mlp.up.weight": (inner, hidden),
            "mlp.down.weight": (hidden, inner),
        }
        for name, rows in (("q", q), ("k", kv), ("v", kv)):
            layer[f"attn.{name}.weight"] = (rows, 2 * hidden if wide else hidden)
            if a.bias:
                layer[f"attn.{name}.bias"] = (rows,)
        if a.output_bias:
            layer["attn.o.bias"] = (hidden,)
        if dense_of(d).bias:
            layer |= {f"mlp.{n}.bias": (inner,) for n in ("gate", "up")}
            layer["mlp.down.bias"] = (hidden,)
        if a.qk_norm:
            layer |= {f"attn.{n}_norm.weight": (a.head_dim,) for n in "qk"}
        if i > 0 or c.first_input_norm:
            layer["input_norm.weight"] = (hidden,)
        if wide:
            layer["hidden_norm.weight"] = (hidden,)
        shapes |= {f"layers.{i}.{name}": shape for name, shape in layer.items()}
    if c.final_norm:
        shapes["norm.weight"] = (hidden,)
    if c.own_head:
        shapes["head.weight"] = (c.draft_vocab_size, hidden)
    if c.own_embedding:
        shapes["embed.weight"] = (V, hidden)
    return shapes


def random_checkpoint(config: EagleConfig) -> SimpleNamespace:
    """What `EagleDraft.load_weights` reads, its weights large enough to show."""
    noise = torch.Generator().manual_seed(5)
    tensors = {}
    for name, shape in _shapes(config).items():
        if name.endswith("norm.weight") or name.startswith("fc_norm."):
            tensors[name] = 0.5 + torch.rand(shape, generator=noise)
        else:
            tensors[name] = torch.randn(shape, generator=noise) * (0.3 if len(shape) == 2 else 0.5)
    if config.maps_tokens:
        order = torch.randperm(V, generator=noise)
        tensors["token_map"] = order[: config.draft_vocab_size].clone()
    return SimpleNamespace(config=config, tensors=tensors)


def random_target(target: ModelConfig) -> dict[str, Tensor]:
    """Embedding and head of a target checkpoint, by internal names."""
    noise = torch.Generator().manual_seed(6)
    names = ["embed.weight"] if target.head.tied else ["embed.weight", "head.weight"]
    return {name: torch.randn(V, WIDTH, generator=noise) for name in names}


@dataclass(frozen=True)
class DenseEagle:
    """One whole sequence at a time, without a cache."""

    config: EagleConfig
    w: dict[str, Tensor]
    target: dict[str, Tensor]

    def norm(self, x: Tensor, name: str) -> Tensor:
        scale = torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.config.decoder.norm.eps)
        return self.w[name] * x * scale

    def linear(self, x: Tensor, name: str) -> Tensor:
        return F.linear(x, self.w[f"{name}.weight"], self.w.get(f"{name}.bias"))

    def fuse(self, states: Tensor) -> Tensor:
        """Captured states ``[T, n * WIDTH]`` -> features of the first pass."""
        c = self.config
        if c.version == 1:
            return states
        if c.norm_before_fc:
            states = self.norm(states, "fc_input_norm.weight")
        if c.fc_norm:
            parts = states.split(WIDTH, dim=-1)
            states = torch.cat(
                [self.norm(part, f"fc_norm.{j}.weight") for j, part in enumerate(parts)], -1
            )
        return self.linear(states, "fc")

    def attention(self, x: Tensor, layer: int) -> Tensor:
        d, name = attention_of(self.config.decoder), f"layers.{layer}.attn."
        q, k, v = (
            self.linear(x, name + n).unflatten(-1, (-1, d.head_dim)).transpose(0, 1) for n in "qkv"
        )
        if d.qk_norm:
            q, k = self.norm(q, name + "q_norm.weight"), self.norm(k, name + "k_norm.weight")
        steps = torch.arange(0, d.head_dim, 2) / d.head_dim
        angles = torch.arange(len(x))[:, None] / 10000.0**steps
        cos, sin = (torch.cat([f(angles)] * 2, -1) for f in (torch.cos, torch.sin))

        def rotate(y: Tensor) -> Tensor:
            first, second = y.chunk(2, -1)
            return y * cos + torch.cat((-second, first), -1) * sin

        groups = d.num_heads // d.num_kv_heads
        k, v = (y.repeat_interleave(groups, 0) for y in (rotate(k), v))
        scores = rotate(q) @ k.transpose(1, 2) / d.head_dim**0.5
        hidden = torch.ones(len(x), len(x), dtype=torch.bool).triu(1)
        out = scores.masked_fill(hidden, -torch.inf).softmax(-1) @ v
        return self.linear(out.transpose(0, 1).flatten(1), name + "o")

    def mlp(self, x: Tensor, layer: int) -> Tensor:
        name = f"layers.{layer}.mlp."
        x = self.norm(x, f"layers.{layer}.post_attention_norm.weight")
        product = F.silu(self.linear(x, name + "gate")) * self.linear(x, name + "up")
        return self.linear(product, name + "down")

    def __call__(self, ids: list[int], features: Tensor) -> tuple[Tensor, Tensor]:
        """Tokens and features of one sequence -> the features to feed back, and logits."""
        c = self.config
        table = self.w["embed.weight"] if c.own_embedding else self.target["embed.weight"]
        embedded = table[torch.tensor(ids)]
        if c.input_norms:
            embedded = self.norm(embedded, "embedding_norm.weight")
            features = self.norm(features, "state_norm.weight")
        if c.version == 1:
            x = self.linear(torch.cat((embedded, features), -1), "fc")
            normed = self.norm(x, "layers.0.input_norm.weight") if c.first_input_norm else x
            x = x + self.attention(normed, 0)
        else:
            normed = self.norm(features, "layers.0.hidden_norm.weight")
            if c.first_input_norm:
                embedded = self.norm(embedded, "layers.0.input_norm.weight")
            residual = normed if c.norm_before_residual else features
            x = residual + self.attention(torch.cat((embedded, normed), -1), 0)
        x = x + self.mlp(x, 0)
        for i in range(1, c.decoder.num_layers):
            x = x + self.attention(self.norm(x, f"layers.{i}.input_norm.weight"), i)
            x = x + self.mlp(x, i)
        ready = self.norm(x, "norm.weight") if c.final_norm else x
        head = self.w.get("head.weight")
        if head is None:
            head = self.target.get("head.weight", self.target["embed.weight"])
            if c.maps_tokens:
                head = head[self.w["token_map"]]
        return (ready if c.norm_output else x), ready @ head.T
