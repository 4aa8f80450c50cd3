"""A Llama decoder, or a draft network beside it, as the list of its wider tensors."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from zlib import crc32

import torch
from torch import Tensor

from trtspec.bench.checkpoint_files import Piece, SourceCheckpoint
from trtspec.bench.fixture_shapes import DecoderShape
from trtspec.bench.widen import (
    CONSTANT_GAIN,
    Axis,
    HeadSpace,
    HiddenSpace,
    noise,
    widen_embedding,
    widen_head,
    widen_matrix,
)
from trtspec.bench.widen_latents import LatentSpace
from trtspec.builder.checkpoints import PLAIN_LATENTS, PLAIN_MIXTURE
from trtspec.errors import CheckpointError, ConfigError

EMBEDDING, HEAD = "embed_tokens.weight", "lm_head.weight"
LAYER_NORMS = ("input_layernorm.weight", "post_attention_layernorm.weight", "hidden_norm.weight")


def _name(names: Mapping[str, str], prefix: str, ours: str) -> str:
    """What a family calls a tensor of the layer behind ``prefix``."""
    layer = prefix.removesuffix(".").rpartition(".")[2]
    return names[f"layers.{{i}}.{ours}"].replace("{i}", layer)


def layer_positions(layers: int, wide_layers: int) -> list[int]:
    """Where the source's layers come in the wider model, at even distances. The layers between
    have zero output projections: they compute, and add nothing."""
    return [i * wide_layers // layers for i in range(layers)]


@dataclass
class Widening:
    """One checkpoint being widened: its spaces, and the pieces listed so far.

    ``dtype`` of the tensors written, ``seed`` of the random ones. Raises ConfigError where the
    source does not fit into the shape.
    """

    source: SourceCheckpoint
    shape: DecoderShape
    dtype: torch.dtype
    vocab_size: int
    seed: int
    pieces: list[Piece] = field(default_factory=list)
    used: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        source, shape = self.source, self.shape
        sizes = {
            "hidden_size": shape.hidden_size,
            "num_hidden_layers": shape.num_layers,
            "intermediate_size": shape.intermediate_size,
            "vocab_size": self.vocab_size,
        }
        for key, wide in sizes.items():
            if source.integer(key) > wide:
                raise ConfigError(
                    f"{source.path} has {key} {source.integer(key)}, which does not fit into the "
                    f"{wide} to widen to; choose a larger shape or a smaller source"
                )
        heads = source.integer("num_attention_heads")
        head_dim = source.integer("head_dim", source.integer("hidden_size") // heads)
        for name, size in (("query", shape.query_size), ("K/V", shape.kv_size)):
            if size % head_dim:
                raise ConfigError(
                    f"{source.path} has head_dim {head_dim}, of which the {name} width {size} to "
                    "widen to is no multiple"
                )
        self.vocab = source.integer("vocab_size")
        self.intermediate = source.integer("intermediate_size")
        self.hidden = HiddenSpace(
            source.integer("hidden_size"), shape.hidden_size, self.vocab_size > self.vocab
        )
        self.heads = HeadSpace(
            heads,
            source.integer("num_key_value_heads", heads),
            head_dim,
            shape.query_size // head_dim,
            shape.kv_size // head_dim,
        )
        self.latents = None
        if shape.latent_rank:
            self.latents = LatentSpace(
                self.heads.heads,
                self.heads.kv_heads,
                head_dim,
                self.heads.wide_heads,
                shape.latent_rank,
                shape.plain_dim,
            )

    # -- one tensor -----------------------------------------------------------------------------

    def read(self, name: str) -> Tensor:
        return self.source.tensor(name).to(self.dtype)

    def check(self, name: str, shape: tuple[int, ...]) -> None:
        """Note that a source tensor is used; CheckpointError unless it has the shape."""
        found = self.source.shape(name)
        if found != shape:
            raise CheckpointError(
                f"{self.source.path}: tensor {name} has shape {list(found)}, its config.json asks "
                f"for {list(shape)}"
            )
        self.used.add(name)

    def generator(self, name: str) -> torch.Generator:
        """Random numbers of one tensor; the same whatever else is written."""
        return torch.Generator().manual_seed(crc32(f"{self.seed} {name}".encode()))

    def add(
        self,
        name: str,
        shape: tuple[int, ...],
        make: Callable[[], Tensor],
        dtype: torch.dtype | None = None,
    ) -> None:
        self.pieces.append(Piece(name, shape, dtype or self.dtype, make))

    def add_matrix(self, name: str, source: str | None, rows: Axis, columns: Axis) -> None:
        """A weight of the source, or, without one, a random weight for rows that are read."""
        shape = (rows.wide, columns.wide)
        if source is None:
            self.add(name, shape, lambda: noise(shape, self.dtype, self.generator(name)))
            return
        self.check(source, (len(rows.copies[0]), len(columns.copies[0])))
        self.add(
            name,
            shape,
            lambda: widen_matrix(self.read(source), rows, columns, self.generator(name)),
        )

    def add_norm(
        self, name: str, source: str | None, constant: float = 0.0, copies: int | None = None
    ) -> None:
        size, hidden = (self.hidden.size,), self.hidden
        if source is not None:
            self.check(source, size)
        self.add(
            name,
            (hidden.wide,),
            lambda: hidden.norm(
                torch.ones(size, dtype=self.dtype) if source is None else self.read(source),
                constant,
                copies,
            ),
        )

    def reads(self, count: int) -> Axis:
        """Of a matrix that reads so many hidden vectors side by side."""
        return Axis.joined([self.hidden.read] * count)

    # -- parts ----------------------------------------------------------------------------------

    def add_layer(self, prefix: str, source: str | None, reads: Axis | None = None) -> None:
        """A decoder layer named ``prefix``: the source's of that prefix or, without one, a layer of
        random weights that adds nothing. ``reads``: what q, k and v read, if not a hidden vector.
        """
        reads = reads or self.hidden.read
        wide = self.shape.intermediate_size
        features = partial(Axis.prefix, self.intermediate, wide)
        for norm in LAYER_NORMS:
            there = source is not None and source + norm in self.source.files
            if there or norm != LAYER_NORMS[2]:
                self.add_norm(prefix + norm, None if source is None else source + norm)
        dense = {
            "mlp.gate_proj": (features(silent=False), self.hidden.read),
            "mlp.up_proj": (features(silent=False), self.hidden.read),
            "mlp.down_proj": (self.hidden.written, features(silent=True)),
        }
        if self.latents is None:
            self._add_attention(prefix, source, reads)
        else:
            self._add_latent_attention(self.latents, prefix, source, reads)
        for matrix, axes in dense.items():
            for place in self._places(prefix, matrix):
                self._add_part(place, source, matrix, axes)
        if self.shape.num_experts:
            router = (self.shape.num_experts, self.hidden.wide)
            name = _name(PLAIN_MIXTURE.names.names, prefix, "mlp.router.scores.weight")
            self.add(name, router, lambda: noise(router, self.dtype, self.generator(name)))

    def _add_attention(self, prefix: str, source: str | None, reads: Axis) -> None:
        attention = {
            "self_attn.q_proj": (self.heads.queries(silent=False), reads),
            "self_attn.k_proj": (self.heads.keys(), reads),
            "self_attn.v_proj": (self.heads.keys(), reads),
            "self_attn.o_proj": (self.hidden.written, self.heads.queries(silent=True)),
        }
        for matrix, axes in attention.items():
            self._add_part(f"{prefix}{matrix}.weight", source, matrix, axes)

    def _add_latent_attention(
        self, space: LatentSpace, prefix: str, source: str | None, reads: Axis
    ) -> None:
        """See `widen_latents`; keys and values come of one matrix."""
        names = {
            part: _name(PLAIN_LATENTS.names.names, prefix, f"attn.{part}")
            for part in (
                "q.weight", "kv_a.weight", "kv_a.bias", "kv_a_norm.weight", "kv_b.weight",
                "o.weight", "o.bias",
            )
        }  # fmt: skip
        queries, rows = space.queries(), Axis.joined([space.latents(), space.keys()])
        q, k, v = (f"self_attn.{part}_proj.weight" for part in "qkv")

        def read(*parts: str) -> Tensor | None:
            """Rows of the source one under the other, of a layer that it has."""
            if source is None:
                return None
            return torch.cat([self.read(source + part) for part in parts])

        def widened(name: str, parts: tuple[str, ...], axis: Axis, gain: float) -> Tensor:
            found, generator = read(*parts), self.generator(name)
            if found is None:
                wide = noise((axis.wide, reads.wide), self.dtype, generator)
                wide[axis.zero] = 0
                return wide
            return widen_matrix(found * gain, axis, reads, generator)

        if source is not None:
            width = len(reads.copies[0])
            self.check(source + q, (self.heads.heads * self.heads.head_dim, width))
            self.check(source + k, (space.rope_dim, width))
            self.check(source + v, (space.rope_dim, width))
        made = {
            "q.weight": ((queries.wide, reads.wide), (q,), queries, space.gain),
            "kv_a.weight": ((rows.wide, reads.wide), (v, k), rows, 1.0),
        }
        for part, (shape, parts, axis, gain) in made.items():
            name = names[part]
            self.add(name, shape, partial(widened, name, parts, axis, gain))
        self.add(names["kv_a.bias"], (rows.wide,), lambda: space.bias(self.dtype))
        self.add(names["kv_a_norm.weight"], (space.rank,), lambda: space.norm(self.dtype))
        name = names["kv_b.weight"]
        shape = (space.wide_heads * (space.plain_dim + space.head_dim), space.rank)
        self.add(name, shape, lambda: space.of_heads(self.dtype, self.generator(name)))
        axes = (self.hidden.written, space.results())
        self._add_part(names["o.weight"], source, "self_attn.o_proj", axes)
        self.add(names["o.bias"], (self.hidden.wide,), self._zeros)

    def _zeros(self) -> Tensor:
        return torch.zeros(self.hidden.wide, dtype=self.dtype)

    def _places(self, prefix: str, matrix: str) -> list[str]:
        """Where a matrix of a feed-forward part comes: in each expert, if there are any. Experts
        that all compute the same add up to it, by whatever weights of the sum 1."""
        if not self.shape.num_experts:
            return [f"{prefix}{matrix}.weight"]
        part = matrix.removeprefix("mlp.").removesuffix("_proj")
        ours = f"mlp.experts.{{e}}.{part}.weight"
        pattern = _name(PLAIN_MIXTURE.names.names, prefix, ours)
        return [pattern.format(e=e) for e in range(self.shape.num_experts)]

    def _add_part(
        self, name: str, source: str | None, matrix: str, axes: tuple[Axis, Axis]
    ) -> None:
        """One matrix of a layer, or where the source has no such layer one that adds nothing."""
        rows, columns = axes
        if source is None and matrix in ("self_attn.o_proj", "mlp.down_proj"):
            shape = (rows.wide, columns.wide)
            self.add(name, shape, partial(torch.zeros, shape, dtype=self.dtype))
        else:
            self.add_matrix(name, source and f"{source}{matrix}.weight", rows, columns)

    def add_embedding(self, name: str, source: str) -> None:
        self.check(source, (self.vocab, self.hidden.size))
        self.add(
            name,
            (self.vocab_size, self.hidden.wide),
            lambda: widen_embedding(
                self.read(source), self.hidden, self.vocab_size, self.generator(name)
            ),
        )

    def add_head(self, name: str, source: str, rows: int, wide_rows: int) -> None:
        self.check(source, (rows, self.hidden.size))
        self.add(
            name,
            (wide_rows, self.hidden.wide),
            lambda: widen_head(self.read(source), self.hidden, wide_rows, self.generator(name)),
        )

    def finish(self) -> None:
        """CheckpointError if the source has tensors that were not widened."""
        left = sorted(set(self.source.files) - self.used)
        if left:
            raise CheckpointError(
                f"{self.source.path} has tensors that make-fixture cannot widen: "
                f"{', '.join(left[:4])}{', ...' if len(left) > 4 else ''}; it takes layers without "
                "biases, and what stands around those of a Llama decoder"
            )

    @property
    def num_parameters(self) -> int:
        return sum(piece.num_elements for piece in self.pieces if piece.dtype == self.dtype)

    @property
    def num_multiplied(self) -> int:
        """Weights that every token is multiplied with: all but an embedding that is no head."""
        tied = not any(piece.name == HEAD for piece in self.pieces)
        return self.num_parameters - sum(
            piece.num_elements
            for piece in self.pieces
            if piece.name.endswith(EMBEDDING) and not tied
        )


def widen_model(widening: Widening) -> None:
    """Add all tensors of a language model, under the names that Hugging Face gives them.

    A wider vocabulary unties the head; otherwise it stays as the source has it.
    """
    w = widening
    tied = bool(w.source.config.get("tie_word_embeddings", False))
    stays_tied = tied and w.vocab_size == w.vocab
    w.add_embedding(f"model.{EMBEDDING}", f"model.{EMBEDDING}")
    layers = w.source.integer("num_hidden_layers")
    positions = layer_positions(layers, w.shape.num_layers)
    for wide_layer in range(w.shape.num_layers):
        source = None
        if wide_layer in positions:
            source = f"model.layers.{positions.index(wide_layer)}."
        w.add_layer(f"model.layers.{wide_layer}.", source)
    # A tied head would read every copy, so only the first one gets an output.
    w.add_norm("model.norm.weight", "model.norm.weight", CONSTANT_GAIN, 1 if stays_tied else None)
    if tied and HEAD in w.source.files:
        w.used.add(HEAD)  # stored twice
    if not stays_tied:
        w.add_head(HEAD, f"model.{EMBEDDING}" if tied else HEAD, w.vocab, w.vocab_size)
    w.finish()
