"""EAGLE draft networks: a decoder layer or a few over the target's own hidden states.

Row p of a draft pairs the target's state at position p with the token at p + 1, and predicts the
token at p + 2. (EAGLE: Li et al., arXiv 2401.15077; EAGLE-3: Li et al., arXiv 2503.01840.)
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trtspec.config.model import ModelConfig
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import IN_PANELS
from trtspec.models.block_map import attention_of, make_feed_forward, require_blocks
from trtspec.models.decoder import DecoderLayer
from trtspec.models.layer_facts import Matrix, Read, layer_facts
from trtspec.models.linear import Linear
from trtspec.models.mixers.attention import Attention
from trtspec.models.norm import RMSNorm
from trtspec.models.ranks import Ranks, added
from trtspec.models.rope import LayerRotary, Rotation
from trtspec.models.rows import Cache, Caches, Rows
from trtspec.models.vocabulary import head_matrix
from trtspec.speculative.eagle.shape import EagleConfig
from trtspec.speculative.hidden_state_network import HiddenStateNetwork


class WideLayer(nn.Module):
    """EAGLE-3's first layer: attention reads the normed embedding next to the normed state; the
    residual is the state itself or, with ``norm_before_residual``, the normed one."""

    def __init__(
        self, eagle: EagleConfig, dtype: torch.dtype, *, formats: NetworkFormats = IN_PANELS
    ) -> None:
        super().__init__()
        config = eagle.decoder
        spec, hidden = config.layers[0], config.hidden_size
        eps = spec.norm.eps
        self.norm_before_residual = eagle.norm_before_residual
        self.input_norm = RMSNorm(hidden, eps, dtype) if eagle.first_input_norm else nn.Identity()
        self.hidden_norm = RMSNorm(hidden, eps, dtype)
        attention = attention_of(spec)
        self.attn = Attention(
            attention, hidden, dtype, in_features=2 * hidden, formats=formats.at("attn")
        )
        self.post_attention_norm = RMSNorm(hidden, eps, dtype)
        self.mlp = make_feed_forward(spec, hidden, dtype, formats.at("mlp"))

    def forward(
        self,
        embedded: Tensor,
        features: Tensor,
        rows: Rows,
        rotation: Rotation | None,
        cache: Cache,
        kept: Tensor | None = None,
        ranks: Ranks | None = None,
    ) -> Tensor:
        """Embeddings and states ``[T, H]`` -> ``[T, H]``; ``kept``, ``ranks``: see
        `DecoderLayer`."""
        normed = self.hidden_norm(features)
        both = torch.cat((self.input_norm(embedded), normed), dim=-1)
        residual = normed if self.norm_before_residual else features
        options: dict[str, Any] = {"norm": None, "kept": kept, "ranks": ranks}
        x = added(partial(self.attn, both, rows, rotation, cache, **options), residual, ranks, kept)
        return added(partial(self.mlp, x, norm=self.post_attention_norm), x, ranks)


class EagleDraft(HiddenStateNetwork):
    """A draft network over packed rows, its own paged caches and the target's hidden states.

    The ``state_dict`` names follow `CausalLM`; besides those of `DraftVocabulary`: ``fc.P`` (and
    ``bias``), ``fc_input_norm.weight``, ``fc_norm.{j}.weight``, ``layers.0.hidden_norm.weight``, of
    MTP modules ``embedding_norm.weight`` and ``state_norm.weight``.
    """

    own_buffers = (
        *("fc_input_norm.", "fc_norm.", "embedding_norm.", "state_norm.", "norm."),
        *("token_map", "mask_hidden"),
    )

    config: EagleConfig

    def __init__(
        self,
        config: EagleConfig,
        target: ModelConfig,
        dtype: torch.dtype,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__(config, target, dtype, formats=formats)
        self.config = config
        self.dtype = dtype
        decoder = config.decoder
        require_blocks(decoder)
        hidden, eps = decoder.hidden_size, decoder.norm.eps
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
        fc_out, fc_in, *_ = _projection(config)
        self.fc = Linear(fc_in, fc_out, dtype, config.fc_bias, format=formats.of({"fc": fc_out}))
        self.rotary = LayerRotary(decoder)
        specs = list(decoder.layers)
        inner = [formats.at(f"layers.{i}") for i in range(decoder.num_layers)]
        first = (
            WideLayer(config, dtype, formats=inner[0])
            if config.version == 3
            else DecoderLayer(specs[0], hidden, dtype, config.first_input_norm, formats=inner[0])
        )
        rest = (
            DecoderLayer(spec, hidden, dtype, formats=own)
            for spec, own in zip(specs[1:], inner[1:], strict=True)
        )
        self.layers = nn.ModuleList([first, *rest])
        self.norm = RMSNorm(hidden, eps, dtype) if config.final_norm else None

    @staticmethod
    def matrices(config: EagleConfig) -> list[Read]:
        """The matrices that the first pass of a rollout reads: the projection, the layers', the
        head."""
        decoder = config.decoder
        first, *rest = decoder.layers
        width = 2 * decoder.hidden_size if config.version == 3 else None
        layers = [layer_facts(first, decoder.hidden_size, width)]
        layers += [layer_facts(spec, decoder.hidden_size) for spec in rest]
        return [
            _projection(config),
            *(matrix for i, facts in enumerate(layers) for matrix in facts.named(i)),
            head_matrix(config),
        ]

    def fuse(self, hidden_in: Tensor) -> Tensor:
        """The target's hidden states ``[T, n * H_t]`` -> the features ``[T, H]`` of a first
        pass."""
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
        rows: Rows,
        caches: Caches,
        kept: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """One pass over tokens ``[T] i64`` and their features ``[T, H]`` (see `DraftNetwork`): the
        features for a next pass and the rows that the head reads, both ``[R, H]``."""
        assert features is not None, "an EAGLE network reads features"
        embedded = self.embedding(input_ids)
        *turns, last_turn = self.rotary.of_layers(rows.positions)
        x: tuple[Tensor, ...] = embedded, features
        if self.config.version != 3:
            if self.embedding_norm is not None and self.state_norm is not None:
                x = self.embedding_norm(embedded), self.state_norm(features)
            x = (self.fc(torch.cat(x, dim=-1)),)
        *before, last = self.layers
        for layer, turn, cache in zip(before, turns, caches, strict=False):
            x = (layer(*x, rows, turn, cache, ranks=self.ranks),)
        out = last(*x, rows, last_turn, caches[-1], kept, ranks=self.ranks)
        ready = out if self.norm is None else self.norm(out)
        return ready if self.config.norm_output else out, ready


def _projection(config: EagleConfig) -> Matrix:
    """Projects hidden states, or an embedding and a state, to a row of the network."""
    hidden = config.decoder.hidden_size
    return Matrix(hidden, config.hidden_in if config.version == 3 else 2 * hidden, "fc")
