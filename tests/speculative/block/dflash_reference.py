"""The published DFlash network in plain, dense PyTorch (z-lab's `dflash/model.py`), and random
weights for its variants."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor

from trtspec.speculative.block.dflash import DFlashConfig
from trtspec.speculative.block.shape import BlockConfig

from ...tiny_config import attention_of, changed, dense_of, tiny_config

V, H, INNER, HEADS, KV, HEAD_DIM = 70, 24, 40, 4, 2, 6
BLOCK, MASK = 6, 69

TARGET = tiny_config("LlamaForCausalLM", V, H, 32, 4, 2, 1, 8, 1e-5, 64)
TIED = changed(TARGET, tied=True)

_DECODER = tiny_config(
    architecture="DFlashDraftModel",
    vocab_size=V,
    hidden_size=H,
    intermediate_size=INNER,
    num_layers=2,
    num_heads=HEADS,
    num_kv_heads=KV,
    head_dim=HEAD_DIM,
    eps=1e-6,
    max_position_embeddings=64,
    qk_norm=True,
    theta=1e6,
)


Config = TypeVar("Config", bound=BlockConfig)


def dflash(decoder: dict[str, Any] | None = None, **flags: Any) -> DFlashConfig:
    return block(DFlashConfig, decoder, **flags)


def block(kind: type[Config], decoder: dict[str, Any] | None = None, **flags: Any) -> Config:
    """The shape of a variant."""
    values = {"causal_layers": (False, False), "draft_vocab_size": V, **flags}
    return kind(
        decoder=changed(_DECODER, **decoder or {}),
        target_hidden_size=H,
        capture_layers=(0, 2),
        block_size=BLOCK,
        mask_token_id=MASK,
        **values,
    )


CASES: dict[str, DFlashConfig] = {
    "plain": dflash(),
    "causal": dflash(causal_layers=(True, True)),
    "window": dflash({"windows": 7}),
    "mixed": dflash({"windows": (9, 0)}, causal_layers=(True, False)),
    "anchor": dflash(anchor_predicts=True),
    "own_parts": dflash(draft_vocab_size=20, own_head=True, own_embedding=True),
    "scaled": dflash(embedding_scale=0.3, soft_cap=2.0),
    "biases": dflash({"bias": True, "qk_norm": False}),
}


def random_checkpoint(config: BlockConfig, seed: int = 0) -> SimpleNamespace:
    """A draft checkpoint by internal names."""
    noise, decoder = torch.Generator().manual_seed(seed), config.decoder
    q, kv, has_bias = HEADS * HEAD_DIM, KV * HEAD_DIM, dense_of(decoder).bias
    tensors = {"fc.weight": torch.randn(H, config.hidden_in, generator=noise) / 5}
    for name in ("hidden_norm", "norm"):
        tensors[f"{name}.weight"] = 0.5 + torch.rand(H, generator=noise)
    for i in range(decoder.num_layers):
        shapes = {
            **{"attn.q": (q, H), "attn.k": (kv, H), "attn.v": (kv, H), "attn.o": (H, q)},
            **{"mlp.gate": (INNER, H), "mlp.up": (INNER, H), "mlp.down": (H, INNER)},
        }
        for name, shape in shapes.items():
            tensors[f"layers.{i}.{name}.weight"] = torch.randn(shape, generator=noise) / 4
            if has_bias:
                bias = torch.randn(shape[0], generator=noise) / 4
                tensors[f"layers.{i}.{name}.bias"] = bias
        norms = {"input_norm": H, "post_attention_norm": H}
        if attention_of(decoder).qk_norm:
            norms |= {"attn.q_norm": HEAD_DIM, "attn.k_norm": HEAD_DIM}
        for name, size in norms.items():
            tensors[f"layers.{i}.{name}.weight"] = 0.5 + torch.rand(size, generator=noise)
    if config.own_head:
        tensors["head.weight"] = torch.randn(config.draft_vocab_size, H, generator=noise)
    if config.own_embedding:
        tensors["embed.weight"] = torch.randn(V, H, generator=noise)
    if config.maps_tokens:
        tensors["token_map"] = torch.arange(config.draft_vocab_size) * 3 + 2
    return SimpleNamespace(config=config, tensors=tensors)


@dataclass(frozen=True)
class DenseDFlash:
    """``tensors`` by internal names; ``target``: embed.weight and head.weight."""

    config: BlockConfig
    tensors: dict[str, Tensor]
    target: dict[str, Tensor]

    def logits(self, states: Tensor, root: int) -> Tensor:
        """Of every row of a block ``[B, V_d]`` behind the target's states ``[p, n * H]`` and their
        next token."""
        return self.of_rows(self.rows(states, root))

    def rows(self, states: Tensor, root: int) -> Tensor:
        """The same rows ``[B, H]`` as the head reads them."""
        t, config = self.tensors, self.config
        decoder, count = config.decoder, len(states)
        context = _norm(states @ t["fc.weight"].T, t["hidden_norm.weight"])
        embedding = t.get("embed.weight", self.target["embed.weight"])
        x = embedding[torch.tensor([root, *[config.mask_token_id] * (config.block_size - 1)])]
        x = x * config.embedding_scale
        positions = torch.arange(count + config.block_size)
        for i in range(decoder.num_layers):
            normed = _norm(x, t[f"layers.{i}.input_norm.weight"])
            attended = partial(self._attended, i, context, positions)
            x = x + self.sublayer(i, "attn", normed, attended)
            normed = _norm(x, t[f"layers.{i}.post_attention_norm.weight"])
            x = x + self.sublayer(i, "mlp", normed, partial(self._mlp, i))
        return _norm(x, t["norm.weight"])

    def sublayer(self, layer: int, name: str, x: Tensor, of: Callable[[Tensor], Tensor]) -> Tensor:
        """What a layer's attention or MLP makes of its normed rows."""
        return of(x)

    def _attended(self, i: int, context: Tensor, positions: Tensor, x: Tensor) -> Tensor:
        count, both = len(context), torch.cat((context, x))
        q = self._heads(i, "q", x, positions[count:])
        k = self._heads(i, "k", both, positions).repeat_interleave(HEADS // KV, 1)
        v = self._linear(i, "attn.v", both).view(-1, KV, HEAD_DIM)
        v = v.repeat_interleave(HEADS // KV, 1)
        scores = torch.einsum("qhd,khd->hqk", q, k) / HEAD_DIM**0.5
        scores = scores.masked_fill(~self._seen(i, positions, count), -torch.inf)
        attended = torch.einsum("hqk,khd->qhd", scores.softmax(-1), v).flatten(1)
        return self._linear(i, "attn.o", attended)

    def _mlp(self, i: int, x: Tensor) -> Tensor:
        gated = F.silu(self._linear(i, "mlp.gate", x)) * self._linear(i, "mlp.up", x)
        return self._linear(i, "mlp.down", gated)

    def of_rows(self, rows: Tensor) -> Tensor:
        """What the head makes of them."""
        t, target = self.tensors, self.target
        head = t.get("head.weight", target.get("head.weight", target["embed.weight"]))
        logits, cap = rows @ head.T, self.config.soft_cap
        return logits if cap is None else cap * torch.tanh(logits / cap)

    def _seen(self, layer: int, positions: Tensor, count: int) -> Tensor:
        query, key = positions[count:, None], positions[None]
        seen = torch.ones(len(query), len(positions), dtype=torch.bool)
        window = self.config.decoder.layers[layer].window
        if window:
            seen &= (key >= count) | (query - key < window)
        if self.config.causal_layers[layer]:
            seen &= key <= query
        return seen

    def _linear(self, layer: int, name: str, x: Tensor) -> Tensor:
        name = f"layers.{layer}.{name}"
        return F.linear(x, self.tensors[f"{name}.weight"], self.tensors.get(f"{name}.bias"))

    def _heads(self, layer: int, part: str, x: Tensor, positions: Tensor) -> Tensor:
        heads = self._linear(layer, f"attn.{part}", x).view(len(x), -1, HEAD_DIM)
        norm = self.tensors.get(f"layers.{layer}.attn.{part}_norm.weight")
        heads = heads if norm is None else _norm(heads, norm)
        theta = self.config.decoder.ropes[0].theta
        frequencies = 1 / theta ** (torch.arange(0, HEAD_DIM, 2) / HEAD_DIM)
        angles = (positions[:, None] * frequencies)[:, None]
        first, second = heads.chunk(2, -1)
        cos, sin = angles.cos(), angles.sin()
        return torch.cat((first * cos - second * sin, second * cos + first * sin), -1)


def _norm(x: Tensor, weight: Tensor) -> Tensor:
    return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * weight
