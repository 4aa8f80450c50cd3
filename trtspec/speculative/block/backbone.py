"""The backbone of all variants: guesses a block of tokens in one pass, over K/V computed from the
target's hidden states.

In every layer the keys and values of accepted tokens are computed from the target's hidden states
at their positions, with the layer's own matrices, so row p of the cache depends only on tokens up
to p. Those of the block (the root and mask tokens) are computed from the block's own states.
(DFlash: arXiv 2602.06036.)
"""

from __future__ import annotations

from functools import partial
from typing import ClassVar, NamedTuple, Protocol, cast

import torch
from torch import Tensor, nn

from trtspec.config.model import ModelConfig
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.registry import IN_PANELS
from trtspec.models.block_map import attention_of, make_feed_forward, require_blocks
from trtspec.models.causal_lm import capped
from trtspec.models.embedding import rounded_scale
from trtspec.models.layer_facts import Matrix, Read, decoder_matrices
from trtspec.models.linear import Linear
from trtspec.models.mixers.attention import make_qk_norms, norm_heads
from trtspec.models.norm import RMSNorm
from trtspec.models.ranks import Ranks, added
from trtspec.models.rope import LayerRotary, Rotation, rotate
from trtspec.models.rows import Cache, Caches, PackedRows, Rows, Scoring, attend
from trtspec.models.vocabulary import head_matrix
from trtspec.speculative.block.shape import BlockConfig
from trtspec.speculative.hidden_state_network import HiddenStateNetwork
from trtspec.speculative.tree_rollout import packed_bits


class Block(Protocol):
    """Where the rows of blocks are and what they see; the counterpart of `Rows` for other
    networks."""

    @property
    def positions(self) -> Tensor:
        """Of every row whose keys and values are written ``[T] i64``, starting with the blocks'."""
        ...

    def offsets(self, count: int) -> Tensor:
        """For the first ``count`` rows, those of blocks, the distance to the first row of the block
        ``[count] i64``."""
        ...

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rotation: Rotation | None,
        cache: Cache,
        scoring: Scoring,
        is_causal: bool,
    ) -> Tensor:
        """Queries of the blocks' rows ``[R, Hq, D]``, keys and values of all rows ``[T, Hkv, D]``,
        which are written -> ``[R, Hq, D]``. ``is_causal``: no row sees a later one of its block."""
        ...


class BlockRows(NamedTuple):
    """The packed rows of one call: those of all blocks, then the context rows, as separate requests
    that see nothing. ``causal_mask`` is the tree mask for causal layers, ``size`` the number of
    rows per block."""

    rows: PackedRows
    causal_mask: Tensor
    size: int

    @classmethod
    def joined(cls, blocks: PackedRows, context: PackedRows, size: int) -> BlockRows:
        """``blocks``: rows of ``size`` for each request, which see the context and their whole
        block; ``context``: the rows before them, of as many requests. Padding stays at the end."""
        blind = context.unseeing()
        offset = torch.arange(size, device=blocks.positions.device)
        own = packed_bits(offset, blocks.tree_mask.shape[1])
        so_far = own.cumsum(0).repeat(blocks.context_lens.shape[0], 1)
        starts = (blocks.query_start[:-1], context.query_start + blocks.positions.shape[0])
        rows = PackedRows(*(torch.cat(both) for both in zip(blocks, blind, strict=True)))
        rows = rows._replace(query_start=torch.cat(starts))
        return cls(rows, torch.cat((so_far, blind.tree_mask)), size)

    @property
    def positions(self) -> Tensor:
        """See `Block.positions`."""
        return self.rows.positions

    def offsets(self, count: int) -> Tensor:
        """See `Block.offsets`."""
        return torch.arange(count, device=self.rows.positions.device) % self.size

    def attend(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        rotation: Rotation | None,
        cache: Cache,
        scoring: Scoring,
        is_causal: bool,
    ) -> Tensor:
        """See `Block.attend`."""
        count = q.shape[0]
        q = rotate(q, None if rotation is None else rotation.first(count))
        q = torch.cat((q, q.new_zeros(k.shape[0] - count, *q.shape[1:])))
        rows = self.rows
        if is_causal:
            rows = rows._replace(tree_mask=self.causal_mask)
        k = rotate(k, rotation)
        attended = attend(q, k, v, cache, rows, scoring)
        return attended[:count]


class BlockAttention(nn.Module):
    """Grouped-query attention of the blocks' rows; context rows only contribute keys and values.

    k and v are one matrix, shared by block and context rows and read once for both.
    """

    def __init__(
        self,
        config: BlockConfig,
        layer: int,
        dtype: torch.dtype,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__()
        spec, hidden = attention_of(config.decoder.layers[layer]), config.decoder.hidden_size
        self.num_heads, self.num_kv_heads = spec.num_heads, spec.num_kv_heads
        self.head_dim = spec.head_dim
        self.scoring = Scoring.of(spec)
        self.is_causal = config.causal_layers[layer]
        q_size, kv_size = spec.num_heads * spec.head_dim, 2 * spec.num_kv_heads * spec.head_dim
        self.q = Linear(hidden, q_size, dtype, spec.bias, format=formats.of({"q": q_size}))
        joined = formats.of({"k": kv_size // 2, "v": kv_size // 2})
        self.kv = Linear(hidden, kv_size, dtype, spec.bias, format=joined)
        o = formats.of({"o": hidden})
        self.o = Linear(q_size, hidden, dtype, spec.output_bias, format=o)
        self.q_norm, self.k_norm = make_qk_norms(spec, dtype)
        self.norms_over_ranks = spec.norms_over_ranks > 0

    def forward(
        self,
        x: Tensor,
        context: Tensor | None,
        block: Block,
        rotation: Rotation | None,
        cache: Cache,
        *,
        residual: Tensor | None = None,
        ranks: Ranks | None = None,
    ) -> Tensor:
        """Rows of blocks ``x [R, H]`` and context rows ``[T, H]`` (None if they are already
        written) -> the sum of ``residual [R, H]``, if given, and the blocks' attention; the K and V
        of all rows are written into the caches. ``ranks``: see `Attention.forward`."""
        q = self.q(x).view(x.shape[0], self.num_heads, self.head_dim)
        q = norm_heads(q, self.q_norm, ranks if self.norms_over_ranks else None)
        k, v = self._keys_values(x if context is None else torch.cat((x, context)), ranks)
        scoring, causal = self.scoring, self.is_causal
        attended = block.attend(q, k, v, rotation, cache, scoring, causal)
        out: Tensor = self.o(attended.flatten(1), residual=residual)
        return out

    def write(
        self,
        context: Tensor,
        rows: Rows,
        rotation: Rotation | None,
        cache: Cache,
        ranks: Ranks | None = None,
    ) -> None:
        """Write the K and V of context rows ``[T, H]``."""
        rows.write(*self._keys_values(context, ranks), rotation, cache)

    def _keys_values(self, source: Tensor, ranks: Ranks | None) -> tuple[Tensor, Tensor]:
        """Each ``[T, Hkv, D]`` of ``source [T, H]``, not rotated."""
        heads = self.kv(source).view(source.shape[0], 2 * self.num_kv_heads, self.head_dim)
        k, v = heads.chunk(2, dim=1)
        return norm_heads(k, self.k_norm, ranks if self.norms_over_ranks else None), v


class BlockLayer(nn.Module):
    """Norm, attention, norm, MLP over the rows of blocks; context rows are left as they are."""

    def __init__(
        self,
        config: BlockConfig,
        layer: int,
        dtype: torch.dtype,
        *,
        formats: NetworkFormats = IN_PANELS,
    ) -> None:
        super().__init__()
        spec, hidden = config.decoder.layers[layer], config.decoder.hidden_size
        eps = spec.norm.eps
        self.input_norm = RMSNorm(hidden, eps, dtype)
        self.attn = BlockAttention(config, layer, dtype, formats=formats.at("attn"))
        self.post_attention_norm = RMSNorm(hidden, eps, dtype)
        self.mlp = make_feed_forward(spec, hidden, dtype, formats.at("mlp"))

    def forward(
        self,
        x: Tensor,
        context: Tensor | None,
        block: Block,
        rotation: Rotation | None,
        cache: Cache,
        ranks: Ranks | None = None,
    ) -> Tensor:
        """``x [R, H]`` -> ``[R, H]``; see `BlockAttention`, and for ``ranks`` `DecoderLayer`."""
        given = self.input_norm(x), context, block, rotation, cache
        x = added(partial(self.attn, *given, ranks=ranks), x, ranks)
        return added(partial(self.mlp, x, norm=self.post_attention_norm), x, ranks)


class BlockDraft(HiddenStateNetwork):
    """The network over packed rows, its own paged caches and the target's hidden states.

    The ``state_dict`` names are those of `EagleDraft`, with ``hidden_norm.weight`` after ``fc``,
    and ``layers.{i}.attn.q`` and ``.kv`` instead of one matrix. A variant may have layers of its
    own (``layer_class``).
    """

    own_buffers: ClassVar[tuple[str, ...]] = ("hidden_norm.", "norm.", "token_map")
    layer_class: ClassVar[type[BlockLayer]] = BlockLayer

    config: BlockConfig

    def __init__(
        self,
        config: BlockConfig,
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
        self.fc = Linear(config.hidden_in, hidden, dtype, format=formats.of({"fc": hidden}))
        self.hidden_norm = RMSNorm(hidden, eps, dtype)
        self.rotary = LayerRotary(decoder)
        self.layers = nn.ModuleList(
            self.layer_class(config, i, dtype, formats=formats.at(f"layers.{i}"))
            for i in range(decoder.num_layers)
        )
        self.norm = RMSNorm(hidden, eps, dtype)
        self.embedding_scale = rounded_scale(config.embedding_scale, dtype)

    @staticmethod
    def matrices(config: BlockConfig) -> list[Read]:
        """The matrices that one pass reads: the projection, the layers' and the head."""
        hidden = config.decoder.hidden_size
        projection = Matrix(hidden, config.hidden_in, "fc")
        return [projection, *decoder_matrices(config.decoder), head_matrix(config)]

    def fuse(self, hidden_in: Tensor) -> Tensor:
        """The target's hidden states ``[T, n * H_t]`` -> the input of context keys and values ``[T,
        H]``."""
        fused: Tensor = self.hidden_norm(self.fc(hidden_in))
        return fused

    def guess(
        self,
        input_ids: Tensor,
        blocks: PackedRows,
        hidden_in: Tensor,
        rows: PackedRows,
        caches: Caches,
    ) -> Tensor:
        """Write the K/V of context rows, and guess what follows them, in one pass.

        ``input_ids [R] i64`` and ``blocks``: the tokens of the blocks and their places (see
        `BlockRows.joined`); ``hidden_in [T, n * H_t]`` and ``rows``: the same for the context.
        Returns the rows ``[R, H]`` that `head` reads.
        """
        joined = BlockRows.joined(blocks, rows, self.config.block_size)
        return self.draft(input_ids, self.fuse(hidden_in), joined, caches)[1]

    def draft(
        self,
        input_ids: Tensor,
        context: Tensor | None,
        block: Block,
        caches: Caches,
    ) -> tuple[None, Tensor]:
        """The blocks' tokens ``[R] i64`` and fused context rows ``[T, H]`` (None if they are
        already written) -> as `DraftNetwork.draft`: no features, and the rows ``[R, H]`` that
        `head` reads."""
        x = self.embedding(input_ids)
        if self.embedding_scale != 1:
            x = x * self.embedding_scale
        turns = self.rotary.of_layers(block.positions)
        for i, layer in enumerate(self.layers):
            x = layer(x, context, block, turns[i], caches[i], self.ranks)
        return None, self.norm(x)

    def head(self, hidden: Tensor) -> Tensor:
        """See `DraftVocabulary.head`."""
        return capped(super().head(hidden), self.config.soft_cap)

    def forward(
        self,
        input_ids: Tensor,
        rows: Rows,
        hidden_in: Tensor,
        caches: Caches,
    ) -> tuple[Tensor]:
        """Write the K/V of context rows (a prefill); their tokens ``input_ids`` are ignored."""
        context = self.fuse(hidden_in)
        turns = self.rotary.of_layers(rows.positions)
        layers = zip(self.layers, turns, caches, strict=True)
        for layer, turn, cache in layers:
            cast(BlockLayer, layer).attn.write(context, rows, turn, cache, self.ranks)
        return (context,)
