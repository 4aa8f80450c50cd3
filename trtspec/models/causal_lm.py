"""The decoder-only language model: one class for every family, built from its layers' specs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import Tensor, nn

from trtspec.config.adapters import AdapterSizes
from trtspec.config.cache_buffer import CacheBuffer
from trtspec.config.layer_tensors import HEAD_BIAS
from trtspec.config.model import ModelConfig
from trtspec.config.quantised import Weights
from trtspec.errors import CheckpointError
from trtspec.formats.network_formats import NetworkFormats, reads_head
from trtspec.formats.registry import IN_PANELS
from trtspec.formats.stored import read_tensor
from trtspec.models.adapters import AdapterRows, add_adapters, without_adapters
from trtspec.models.block_map import require_blocks
from trtspec.models.decoder import DecoderLayer
from trtspec.models.embedding import Embedding, rounded_scale
from trtspec.models.layer_facts import (
    Matrix,
    Read,
    buffer_dtype,
    cache_places,
    decoder_caches,
    decoder_matrices,
)
from trtspec.models.linear import Linear
from trtspec.models.loading import load_layers, load_linear
from trtspec.models.norm import make_norm
from trtspec.models.per_layer import PerLayerEmbedding
from trtspec.models.ranks import Ranks
from trtspec.models.rope import LayerRotary
from trtspec.models.rows import Caches, Rows

EMBEDDING = "embed"
"""The name, without ``.weight``, of the weight that the embedding is loaded from."""
TOKEN_MAP = "token_map"
"""The name, in checkpoints and in the ``state_dict``, of the ids for the rows of a cut head."""


class WeightSource(Protocol):
    """What `CausalLM.load_weights` reads: a checkpoint by internal names, which may load its
    tensors lazily."""

    @property
    def config(self) -> ModelConfig: ...

    @property
    def tensors(self) -> Weights: ...


def capped(logits: Tensor, cap: float | None) -> Tensor:
    """Logits l as ``cap * tanh(l / cap)``; unchanged without a cap."""
    return logits if cap is None else cap * torch.tanh(logits / cap)


class CausalLM(nn.Module):
    """A causal language model over packed rows and paged caches.

    Its ``state_dict`` is a stable interface: a builder saves it and binds it to compiled engines by
    these names (P stands for the buffers of a layer's `WeightFormat` and, where the spec says so,
    ``bias``):

    ``embed.P``, of floats ``embed.weight [V, H]`` (absent when read out of a tied head),
    ``rotary.inv_freq [rotary_dim / 2]`` (always float32; ``rotary.others.{j}.inv_freq`` where
    layers have other tables), of each layer ``layers.{i}.attn.qkv.P``, ``attn.o.P``,
    ``mlp.gate_up.P`` (without a gate ``mlp.up.P``), ``mlp.down.P`` and those of its norms that
    there are, ``input_norm.weight`` (and ``bias``), ``attn.q_norm``, ``attn.k_norm``,
    ``attn_out_norm``, ``post_attention_norm``, ``mlp_out_norm``; ``norm.weight``, ``lm_head.P``,
    and ``head_bias [V]`` (always float32) where the head has one.
    In place of ``attn.qkv`` stands ``attn.qk`` where the values are the keys, ``attn.q`` where
    both are an earlier layer's. With per-layer embeddings there are those of `PerLayerEmbedding`
    behind ``per_layer.`` and of each layer those of `PerLayerPart`; ``layers.{i}.output_scale``.
    With a head that is cut there is ``token_map [V_d] i64``, the ids of its rows. Where the config
    is that of a rank, there are those of `Ranks` behind ``ranks.``. With ``adapters`` there are
    those of `Lora` behind ``lora.`` of each of a layer's products; no checkpoint fills them.

    q, k, v, and gate, up, follow each other along the outputs of P. A tied model reads its
    embedding rows out of ``lm_head``, unless that is rounded and the rows are to be otherwise. All
    but ``inv_freq``, ``head_bias`` and rounded weights with their scales have the model's dtype:
    choose it at construction; ``.to(dtype)`` would round the frequencies.

    ``capture_layers`` are the hidden states handed out for a draft network, in that order: i is the
    output of layer i, -1 the embeddings, the number of layers the output of the final norm.
    """

    token_map: Tensor | None
    head_bias: Tensor | None

    def __init__(
        self,
        config: ModelConfig,
        dtype: torch.dtype,
        capture_layers: tuple[int, ...] = (),
        *,
        formats: NetworkFormats = IN_PANELS,
        adapters: AdapterSizes | None = None,
    ) -> None:
        super().__init__()
        self.config = config
        self.dtype = dtype
        self.capture_layers = capture_layers
        require_blocks(config)
        hidden = config.hidden_size
        head_format = formats.of_head(head_weight(config))
        rows = formats.of_embedding(EMBEDDING)
        ties = reads_head(config.head.tied, head_format, rows)
        own_rows = config.embedding_rows
        self.embed = None if ties else Embedding(own_rows, hidden, dtype, format=rows)
        self.ranks = Ranks(config.ranks, own_rows) if config.ranks > 1 else None
        self.rotary = LayerRotary(config)
        self.layers = nn.ModuleList(
            DecoderLayer(spec, hidden, dtype, formats=formats.at(f"layers.{i}"))
            for i, spec in enumerate(config.layers)
        )
        if adapters is not None:
            add_adapters(self.layers, config, adapters)
        self.norm = make_norm(config.norm, hidden, dtype)
        self.embedding_scale = rounded_scale(config.embedding.scale, dtype)
        given = config.embedding.per_layer
        self.per_layer = None if given is None else PerLayerEmbedding(config, given, dtype, formats)
        self.cache_places = cache_places(config)
        rows_of_head = config.draft_vocab_size
        self.lm_head = Linear(hidden, config.head_rows, dtype, format=head_format)
        bias = torch.empty(rows_of_head, dtype=torch.float32) if config.head.bias else None
        self.register_buffer("head_bias", bias)
        ids = torch.empty(rows_of_head, dtype=torch.int64) if config.maps_tokens else None
        self.register_buffer(TOKEN_MAP, ids)

    @staticmethod
    def matrices(config: ModelConfig) -> list[Read]:
        """The matrices that one pass reads: those of the layers, and the head."""
        head = Matrix(config.head_rows, config.hidden_size, head_weight(config), is_head=True)
        return [*decoder_matrices(config), head]

    def trunk(
        self,
        input_ids: Tensor,
        rows: Rows | AdapterRows,
        caches: Caches,
        kept: Tensor | None = None,
        added: Tensor | None = None,
    ) -> tuple[Tensor, Tensor | None]:
        """All layers and the final norm over ``input_ids [T] i64`` -> hidden rows ``[T, H]``, or
        only the rows ``kept [R] i64``, and, with ``capture_layers``, the captured hidden states
        ``[T, n * H]`` of all rows side by side.

        The last layer computes only the kept rows, and K and V of the others, unless its output is
        captured. This saves time on prompts, of which one row is wanted.

        The caches (see `new_caches`) are written in place. Ids of padding rows must be valid too
        (use 0); their hidden rows are meaningless. ``added [T, H]`` is added to the embeddings.
        """
        read = self.lm_head.gather_rows if self.embed is None else self.embed
        x = read(input_ids) if self.ranks is None else self.ranks.rows(read, input_ids)
        if self.embedding_scale != 1:
            x = x * self.embedding_scale
        if added is not None:
            x = x + added
        rows, adapters = without_adapters(rows)
        rotations = self.rotary.of_layers(rows.positions)
        given: Sequence[Tensor | None] = [None] * len(self.layers)
        if self.per_layer is not None:
            given = self.per_layer(input_ids, x)
        states, last = {-1: x}, len(self.layers) - 1
        cuts_early = max(self.capture_layers, default=-1) < last
        for i, layer in enumerate(self.layers):
            cut = kept if cuts_early and i == last else None
            cache = caches[self.cache_places[i]]
            x = layer(x, rows, rotations[i], cache, cut, given[i], self.ranks, adapters)
            states[i] = x
        hidden: Tensor = self.norm(x)
        states[last + 1] = hidden
        captured = [states[i] for i in self.capture_layers]
        if kept is not None and not cuts_early:
            hidden = hidden[kept]
        return hidden, torch.cat(captured, dim=-1) if captured else None

    def draft(
        self,
        input_ids: Tensor,
        features: Tensor | None,
        rows: Rows,
        caches: Caches,
        kept: Tensor | None = None,
    ) -> tuple[Tensor | None, Tensor]:
        """One pass of a rollout (see `DraftNetwork`); a language model reads no features."""
        hidden, _ = self.trunk(input_ids, rows, caches, kept)
        return None, hidden

    def head(self, hidden: Tensor) -> Tensor:
        """Logits ``[R, V] f32`` for hidden rows ``[R, H]``; ``[R, V_d]`` with a cut head."""
        logits: Tensor = self.lm_head(hidden, torch.float32)
        if self.ranks is not None:
            logits = self.ranks.columns(logits, self.config.draft_vocab_size)
        spec = self.config.head
        found = capped(logits if spec.scale == 1 else logits * spec.scale, spec.soft_cap)
        return found if self.head_bias is None else found + self.head_bias

    def forward(
        self,
        input_ids: Tensor,
        rows: Rows | AdapterRows,
        logits_rows: Tensor,
        caches: Caches,
    ) -> tuple[Tensor, ...]:
        """Logits ``[R, V] f32`` of the rows ``logits_rows [R] i64`` and, with ``capture_layers``,
        the captured hidden states ``[T, n * H]`` of all rows; the rest as in `trunk`."""
        hidden, captured = self.trunk(input_ids, rows, caches, logits_rows)
        logits = self.head(hidden)
        return (logits,) if captured is None else (logits, captured)

    @torch.no_grad()
    def load_weights(self, checkpoint: WeightSource) -> None:
        """Load every buffer from a checkpoint's tensors, converted to the model's dtype and packed.

        Reads one tensor at a time. Raises CheckpointError if the checkpoint was made for another
        config or lacks a tensor.
        """
        if checkpoint.config != self.config:
            raise CheckpointError(
                f"the checkpoint's config {checkpoint.config} is not the model's {self.config}"
            )
        tensors = checkpoint.tensors
        if self.embed is not None:
            self.embed.load(tensors, f"{EMBEDDING}.weight")
        if self.ranks is not None:
            self.ranks.load(tensors)
        load_linear(self.lm_head, tensors, [head_weight(self.config)])
        if self.head_bias is not None:
            self.head_bias.copy_(read_tensor(tensors, HEAD_BIAS))
        if self.token_map is not None:
            self.token_map.copy_(read_tensor(tensors, TOKEN_MAP))
        for name, buffer in self.norm.named_buffers():
            buffer.copy_(read_tensor(tensors, f"norm.{name}"))
        if self.per_layer is not None:
            self.per_layer.load(tensors)
        load_layers(self.layers, tensors)


def head_weight(config: ModelConfig) -> str:
    """The name, without ``.weight``, of the weight that the head is loaded from."""
    return "embed" if config.head.tied else "head"


def new_caches(
    config: ModelConfig,
    num_blocks: int,
    block_size: int,
    dtype: torch.dtype,
    device: torch.device | None = None,
    *,
    num_states: int = 0,
    num_rows: int = 0,
) -> Caches:
    """Zeroed caches, one for each of `decoder_caches`, of buffers ``[num_blocks, block_size, heads,
    size]``, states ``[num_states, heads, size]`` and rows of a call ``[num_rows, heads, size]``, on
    ``device`` (None: the CPU)."""
    counts = {"paged": (num_blocks, block_size), "slot": (num_states,), "step": (num_rows,)}

    def new(buffer: CacheBuffer) -> Tensor:
        shape = *counts[buffer.kind], buffer.heads, buffer.size
        return torch.zeros(shape, dtype=buffer_dtype(buffer, dtype), device=device)

    return [tuple(map(new, buffers)) for buffers in decoder_caches(config)]


def new_slot_caches(
    config: ModelConfig,
    num_slots: int,
    length: int,
    dtype: torch.dtype,
    device: torch.device | None = None,
) -> Caches:
    """The same over slots: buffers ``[num_slots, heads, length, size]``."""
    caches = new_caches(config, num_slots, length, dtype, device)
    return [tuple(b.view(len(b), b.shape[2], length, -1) for b in cache) for cache in caches]
