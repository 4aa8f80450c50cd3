"""EAGLE draft networks: a decoder layer or a few over the target's own hidden states.

Row p of a draft pairs the target's state at position p with the token at p + 1, and predicts the
token at p + 2. (EAGLE: Li et al., arXiv 2401.15077; EAGLE-3: Li et al., arXiv 2503.01840.)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

import torch
from torch import Tensor, nn

from trtspec.config.eagle import EagleConfig
from trtspec.config.model import ModelConfig
from trtspec.errors import CheckpointError
from trtspec.models.attention import Attention, PackedRows
from trtspec.models.causal_lm import DecoderLayer, Embedding, load_layers, read_weight
from trtspec.models.layers import Linear, RMSNorm, SwiGLU
from trtspec.models.rope import RotaryEmbedding

_OWN_BUFFERS = (
    *("fc_input_norm.", "fc_norm.", "embedding_norm.", "state_norm.", "norm."),
    *("embed.", "token_map"),
)
"""Beginnings of the names of buffers that are loaded as they are."""


class EagleSource(Protocol):
    """What `EagleDraft.load_weights` reads: a draft checkpoint by internal names."""

    @property
    def config(self) -> EagleConfig: ...

    @property
    def tensors(self) -> Mapping[str, Tensor]: ...


class WideLayer(nn.Module):
    """EAGLE-3's first layer: attention reads the normed embedding and the normed state side by
    side; the residual is the state itself or, with ``norm_before_residual``, the normed one."""

    def __init__(self, eagle: EagleConfig, dtype: torch.dtype, *, packed: bool = True) -> None:
        super().__init__()
        config = eagle.decoder
        hidden, eps = config.hidden_size, config.rms_norm_eps
        self.norm_before_residual = eagle.norm_before_residual
        self.input_norm = RMSNorm(hidden, eps, dtype) if eagle.first_input_norm else nn.Identity()
        self.hidden_norm = RMSNorm(hidden, eps, dtype)
        self.attn = Attention(config, 0, dtype, in_features=2 * hidden, packed=packed)
        self.post_attention_norm = RMSNorm(hidden, eps, dtype)
        inner = config.intermediate_size
        self.mlp = SwiGLU(hidden, inner, dtype, config.mlp_bias, packed=packed)

    def forward(
        self,
        embedded: Tensor,
        features: Tensor,
        rows: PackedRows,
        cos_sin: tuple[Tensor, Tensor],
        k_cache: Tensor,
        v_cache: Tensor,
    ) -> Tensor:
        """Embeddings and states ``[T, H]`` -> ``[T, H]``."""
        normed = self.hidden_norm(features)
        residual = normed if self.norm_before_residual else features
        both = torch.cat((self.input_norm(embedded), normed), dim=-1)
        x = residual + self.attn(both, rows, cos_sin, k_cache, v_cache)
        out: Tensor = x + self.mlp(self.post_attention_norm(x))
        return out


class TargetParts(nn.Module):
    """The target's embedding and head, where a draft has none of its own. The names are those of
    `CausalLM`, so that an engine binds the target's own memory to them."""

    def __init__(
        self,
        target: ModelConfig,
        dtype: torch.dtype,
        embed: bool,
        head: bool,
        *,
        packed: bool = True,
    ) -> None:
        super().__init__()
        hidden, vocab, tied = target.hidden_size, target.vocab_size, target.tie_word_embeddings
        self.embed = Embedding(vocab, hidden, dtype) if embed and not tied else None
        needs_head = head or (embed and tied)
        self.lm_head = Linear(hidden, vocab, dtype, packed=packed) if needs_head else None

    def embedding(self, ids: Tensor) -> Tensor:
        """``ids [T] i64`` -> ``[T, H]``."""
        if self.embed is not None:
            rows: Tensor = self.embed(ids)
            return rows
        assert self.lm_head is not None
        return self.lm_head.gather_rows(ids)


class EagleDraft(nn.Module):
    """A draft network over packed rows, its own paged caches and the target's hidden states.

    The ``state_dict`` names follow `CausalLM`; besides: ``fc.P`` (and ``bias``),
    ``fc_input_norm.weight``, ``fc_norm.{j}.weight``, ``layers.0.hidden_norm.weight``, of MTP
    modules ``embedding_norm.weight`` and ``state_norm.weight``,
    ``token_map [V_d] i64`` (the target's id of each row of the head), and ``target.*`` for what is
    borrowed: those are the target's own tensors.
    """

    token_map: Tensor | None

    def __init__(
        self, config: EagleConfig, target: ModelConfig, dtype: torch.dtype, *, packed: bool = True
    ) -> None:
        super().__init__()
        self.config = config
        self.dtype = dtype
        decoder = config.decoder
        hidden, eps = decoder.hidden_size, decoder.rms_norm_eps
        states, width = len(config.capture_layers), config.target_hidden_size
        self.fc_input_norm = (
            RMSNorm(config.hidden_in, eps, dtype) if config.norm_before_fc else None
        )
        self.fc_norm = (
            nn.ModuleList(RMSNorm(width, eps, dtype) for _ in range(states))
            if config.fc_norm
            else None
        )
        norms = config.input_norms
        self.embedding_norm = RMSNorm(hidden, eps, dtype) if norms else None
        self.state_norm = RMSNorm(hidden, eps, dtype) if norms else None
        fc_in = config.hidden_in if config.version == 3 else 2 * hidden
        self.fc = Linear(fc_in, hidden, dtype, config.fc_bias, packed=packed)
        self.rotary = RotaryEmbedding(decoder.rope, decoder.head_dim)
        first = (
            WideLayer(config, dtype, packed=packed)
            if config.version == 3
            else DecoderLayer(decoder, 0, dtype, config.first_input_norm, packed=packed)
        )
        layers = range(1, decoder.num_layers)
        rest = (DecoderLayer(decoder, layer, dtype, packed=packed) for layer in layers)
        self.layers = nn.ModuleList([first, *rest])
        self.norm = RMSNorm(hidden, eps, dtype) if config.final_norm else None
        self.embed = Embedding(decoder.vocab_size, hidden, dtype) if config.own_embedding else None
        # A head cut by a token map is a copy of some of the target's rows.
        self.cuts_target_head = not config.own_head and config.maps_tokens
        has_head = config.own_head or self.cuts_target_head
        rows = config.draft_vocab_size
        self.lm_head = Linear(hidden, rows, dtype, packed=packed) if has_head else None
        borrows = {"embed": self.embed is None, "head": not has_head}
        self.target = TargetParts(target, dtype, **borrows, packed=packed)
        ids = torch.empty(config.draft_vocab_size, dtype=torch.int64)
        self.register_buffer("token_map", ids if config.maps_tokens else None)

    def fuse(self, hidden_in: Tensor) -> Tensor:
        """The target's states ``[T, n * H_t]`` -> the features ``[T, H]`` of a first pass."""
        if self.config.version == 1:
            return hidden_in
        if self.fc_input_norm is not None:
            hidden_in = self.fc_input_norm(hidden_in)
        if self.fc_norm is not None:
            parts = hidden_in.chunk(len(self.fc_norm), dim=-1)
            normed = [norm(part) for norm, part in zip(self.fc_norm, parts, strict=True)]
            hidden_in = torch.cat(normed, dim=-1)
        fused: Tensor = self.fc(hidden_in)
        return fused

    def draft(
        self,
        input_ids: Tensor,
        features: Tensor | None,
        rows: PackedRows,
        k_caches: list[Tensor],
        v_caches: list[Tensor],
    ) -> tuple[Tensor, Tensor]:
        """One pass over tokens ``[T] i64`` and their features ``[T, H]`` (see `DraftNetwork`):
        the features of a next pass and the rows that the head reads, both ``[T, H]``."""
        assert features is not None, "an EAGLE network reads features"
        embedded = self.target.embedding(input_ids) if self.embed is None else self.embed(input_ids)
        cos_sin = self.rotary(rows.positions)
        if self.config.version == 3:
            x = self.layers[0](embedded, features, rows, cos_sin, k_caches[0], v_caches[0])
        else:
            if self.embedding_norm is not None and self.state_norm is not None:
                embedded, features = self.embedding_norm(embedded), self.state_norm(features)
            x = self.fc(torch.cat((embedded, features), dim=-1))
            x = self.layers[0](x, rows, cos_sin, k_caches[0], v_caches[0])
        for i, layer in enumerate(list(self.layers)[1:], 1):
            x = layer(x, rows, cos_sin, k_caches[i], v_caches[i])
        ready = x if self.norm is None else self.norm(x)
        return ready if self.config.norm_output else x, ready

    def head(self, hidden: Tensor) -> Tensor:
        """Logits ``[R, V_d] f32`` of rows ``[R, H]`` that are ready for the head."""
        head = self.target.lm_head if self.lm_head is None else self.lm_head
        assert head is not None
        logits: Tensor = head(hidden, torch.float32)
        return logits

    def forward(
        self,
        input_ids: Tensor,
        rows: PackedRows,
        hidden_in: Tensor,
        k_caches: list[Tensor],
        v_caches: list[Tensor],
    ) -> tuple[Tensor]:
        """Feed rows without drafting (a prefill): writes their K/V, returns their features."""
        features, _ = self.draft(input_ids, self.fuse(hidden_in), rows, k_caches, v_caches)
        return (features,)

    @torch.no_grad()
    def load_weights(self, checkpoint: EagleSource, target: Mapping[str, Tensor]) -> None:
        """Fill every buffer of the draft's own from its checkpoint. ``target`` holds the target
        checkpoint's tensors by internal names: a cut head takes its rows there.

        Raises:
            CheckpointError: made for another config, or a tensor is missing.
        """
        if checkpoint.config != self.config:
            raise CheckpointError(
                f"the draft checkpoint's config {checkpoint.config} is not the network's "
                f"{self.config}"
            )
        tensors = checkpoint.tensors
        bias = [read_weight(tensors, "fc.bias")] if self.config.fc_bias else []
        self.fc.load([read_weight(tensors, "fc.weight")], bias)
        for name, buffer in self.named_buffers():
            if name.startswith(_OWN_BUFFERS):
                buffer.copy_(read_weight(tensors, name))
        load_layers(self.layers, tensors)
        if self.cuts_target_head:
            assert self.token_map is not None
            head = target["head.weight"] if "head.weight" in target else target["embed.weight"]
            assert self.lm_head is not None
            self.lm_head.load([head[self.token_map]])
        elif self.lm_head is not None:
            self.lm_head.load([read_weight(tensors, "head.weight")])
