"""A dense decoder, or a head over its hidden states, at other sizes: its config, and tensors on
demand."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any
from zlib import crc32

import torch
from torch import Tensor

from trtspec.bench.synthetic.sizes import Sizes
from trtspec.bench.synthetic.spaces import CONSTANT_GAIN, Axis, HiddenSpace, widen
from trtspec.config.embedding_spec import EmbeddingSpec, HeadSpec
from trtspec.config.feed_forwards.dense import DenseSpec
from trtspec.config.layer import Layers, LayerSpec
from trtspec.config.mixers.attention import AttentionSpec
from trtspec.config.model import ModelConfig
from trtspec.config.norm_spec import NormSpec
from trtspec.config.quantised import Weights
from trtspec.config.state_reader import StateReader
from trtspec.errors import CheckpointError, ConfigError
from trtspec.formats.stored import read_tensor
from trtspec.models.block_map import attention_of, dense_of

_LAYER = re.compile(r"layers\.(\d+)\.(.+)")
_EMBEDDING, _HEAD, _MAP, _FC = "embed.weight", "head.weight", "token_map", "fc.weight"
_NORMS = {"norm.weight", "input_norm.weight", "post_attention_norm.weight", "hidden_norm.weight"}
_READ = {"attn.q.weight", "attn.k.weight", "attn.v.weight", "mlp.gate.weight", "mlp.up.weight"}
_WRITE = {"attn.o.weight", "mlp.down.weight"}


@dataclass(frozen=True)
class Synthetic:
    """A dense decoder at other ``sizes``; ConfigError if it does not fit into them, or has parts
    whose function would change. Added layers compute, and contribute nothing."""

    source: ModelConfig
    sizes: Sizes

    def __post_init__(self) -> None:
        source, sizes = self.source, self.sizes
        _require_plain(source)
        features = dense_of(source.layers[0]).intermediate_size
        for name, own, asked in (
            ("num_layers", source.num_layers, sizes.num_layers),
            ("hidden_size", source.hidden_size, sizes.hidden_size),
            ("vocab_size", source.vocab_size, self.vocab_size),
            ("intermediate_size", features, sizes.intermediate_size),
        ):
            if own > asked:
                raise ConfigError(f"{name} {asked} is less than the source's {own}; raise it")
        _ = self.hidden, self._num_heads  # which refuse what does not fit

    @property
    def vocab_size(self) -> int:
        return self.sizes.vocab_size or self.source.vocab_size

    @cached_property
    def hidden(self) -> HiddenSpace:
        more = self.vocab_size > self.source.vocab_size
        return HiddenSpace(self.source.hidden_size, self.sizes.hidden_size, more)

    def heads(self, is_query: bool, silent: bool = False) -> Axis:
        """Rows of q, or of k and v: every group of heads is the beginning of a larger group.
        ``silent``: the columns of o."""
        own, (wide, wide_kv) = attention_of(self.source.layers[0]), self._num_heads
        count, places = own.num_kv_heads, torch.arange(own.num_kv_heads)
        if is_query:
            group, count = own.num_heads // own.num_kv_heads, own.num_heads
            head = torch.arange(count)
            places, wide_kv = head // group * (wide // wide_kv) + head % group, wide
        inner = (places[:, None] * own.head_dim + torch.arange(own.head_dim)).flatten()
        return Axis.at(inner, wide_kv * own.head_dim, silent)

    @cached_property
    def _num_heads(self) -> tuple[int, int]:
        own, sizes = attention_of(self.source.layers[0]), self.sizes
        asked, group = (sizes.query_size, sizes.kv_size), own.num_heads // own.num_kv_heads
        wide, wide_kv = (size // own.head_dim for size in asked)
        rest = any(size % own.head_dim for size in asked) or wide_kv < own.num_kv_heads
        if rest or wide % wide_kv or wide < group * wide_kv:
            raise ConfigError(
                f"query_size {sizes.query_size} and kv_size {sizes.kv_size} must be multiples of "
                f"head_dim {own.head_dim}, of {own.num_kv_heads} K/V heads or more with {group} "
                "heads or more for each, as the source has"
            )
        return wide, wide_kv

    @property
    def places(self) -> list[int]:
        """Where the source's layers are placed, evenly spaced."""
        count = self.source.num_layers
        return [i * self.sizes.num_layers // count for i in range(count)]

    @cached_property
    def config(self) -> ModelConfig:
        """Its config. A larger vocabulary unties the head."""
        source, spec = self.source, self.source.layers[0]
        heads = dict(zip(("num_heads", "num_kv_heads"), self._num_heads, strict=True))
        layer = spec.with_mixer(**heads)
        dense = replace(dense_of(spec), intermediate_size=self.sizes.intermediate_size)
        layer = replace(layer, ffn=dense, norm=self._norm(spec.norm))
        return replace(
            source,
            vocab_size=self.vocab_size,
            hidden_size=self.sizes.hidden_size,
            layers=Layers.repeat(layer, self.sizes.num_layers),
            norm=self._norm(source.norm),
            head=replace(source.head, tied=source.head.tied and not self.hidden.has_constant),
        )

    def beside(self, network: Any) -> Synthetic:
        """The decoder of a head over the source's hidden states, with as many layers as that has;
        ConfigError for another draft."""
        if not isinstance(network, StateReader) or not network.own_head:
            raise ConfigError(
                f"a draft of kind {network.kind!r} without logits of its own over the target's "
                "states cannot be synthetic; heads such as EAGLE-3's can"
            )
        decoder = network.decoder
        return Synthetic(decoder, replace(self.sizes, num_layers=decoder.num_layers))

    def head_over(self, network: Any) -> Any:
        """The config of such a head over these states."""
        own, asked = network.draft_vocab_size, self.sizes.draft_vocab_size or 0
        if asked > own and not self.hidden.has_constant:
            raise ConfigError(
                f"draft_vocab_size {asked} of a head with {own} rows needs a vocab_size above the "
                f"source's {self.source.vocab_size}; raise it"
            )
        moved = {-1: -1, self.source.num_layers: self.sizes.num_layers}  # embeddings, final norm
        moved |= enumerate(self.places)
        return replace(
            network,
            decoder=self.beside(network).config,
            target_hidden_size=self.sizes.hidden_size,
            draft_vocab_size=max(own, asked),
            capture_layers=tuple(moved[layer] for layer in network.capture_layers),
        )

    def _norm(self, norm: NormSpec) -> NormSpec:
        return replace(norm, eps=norm.eps / self.hidden.ratio)


@dataclass(frozen=True)
class SyntheticTensors(Mapping[str, Tensor]):
    """The tensors of a decoder, or of a head beside it (``is_head``), by internal names, each
    generated on the device on demand and not kept.

    source: those of the small network. The random ones depend only on name and device.
    CheckpointError for a source with tensors of another kind.
    """

    network: Synthetic
    source: Weights
    dtype: torch.dtype
    device: str
    is_head: bool = False
    origins: dict[str, str] = field(init=False, default_factory=dict)

    def __post_init__(self) -> None:
        network, found = self.network, self.origins
        layers = {match[2] for name in self.source if (match := _LAYER.fullmatch(name))}
        found |= {name: name for name in self.source if _LAYER.fullmatch(name) is None}
        known = {"norm.weight", _EMBEDDING, _HEAD}
        known |= {_FC, _MAP, "hidden_norm.weight"} if self.is_head else set()
        strange = (found.keys() - known) | (layers - _NORMS - _READ - _WRITE)
        if strange:
            raise CheckpointError(
                f"no synthetic checkpoint is made of tensors such as {min(strange)}; it is made of "
                "dense decoders without biases, and of heads such as EAGLE-3's"
            )
        own = {place: i for i, place in enumerate(network.places)}
        for i in range(network.sizes.num_layers):
            found |= {f"layers.{i}.{part}": f"layers.{own.get(i, 0)}.{part}" for part in layers}
        if self.is_head and network.hidden.has_constant:
            found[_MAP] = _MAP
        elif not self.is_head and not network.config.head.tied:
            found.setdefault(_HEAD, _EMBEDDING)

    def __iter__(self) -> Iterator[str]:
        return iter(self.origins)

    def __len__(self) -> int:
        return len(self.origins)

    def __contains__(self, name: object) -> bool:
        return name in self.origins  # without making it

    def __getitem__(self, name: str) -> Tensor:
        network, hidden, match = self.network, self.network.hidden, _LAYER.fullmatch(name)
        if self.origins[name] == _MAP:
            return self._token_map()
        part = match[2] if match else name
        found = read_tensor(self.source, self.origins[name]).to(self.device, self.dtype)
        if part in _NORMS:
            constant = CONSTANT_GAIN if match is None else float(part == "hidden_norm.weight")
            return hidden.norm(found, constant)
        # Random numbers are the same whatever else is made.
        generator = torch.Generator(self.device).manual_seed(crc32(name.encode()))
        if part == _EMBEDDING:
            return hidden.embedding(found, network.vocab_size, generator)
        if part == _HEAD:
            rows = self._head_rows(len(found)) if self.is_head else network.vocab_size
            return hidden.head(found, rows, generator)
        if match and int(match[1]) not in network.places and part in _WRITE:
            found = torch.zeros_like(found)  # so that the layer adds nothing
        # EAGLE-3's first layer reads an embedding and a state side by side, its fc three states.
        wide = widen(found, *self._axes(part, found.shape[1] // hidden.size), generator)
        if part == _FC and hidden.has_constant:
            wide[hidden.size, hidden.size] = 1  # that of the first state which the head reads
        return wide

    def _head_rows(self, own: int) -> int:
        """Rows of a head that has so many in the source."""
        return max(own, self.network.sizes.draft_vocab_size or 0)

    def _token_map(self) -> Tensor:
        """The target's ids of a head's rows: those of the source, then ids that it lacks."""
        every = torch.arange(self.network.source.vocab_size)
        own = (read_tensor(self.source, _MAP) if _MAP in self.source else every).to(self.device)
        ids = torch.arange(self.network.vocab_size, device=self.device)
        others = ids[~torch.isin(ids, own)]
        return torch.cat((own, others[: self._head_rows(len(own)) - len(own)]))

    def _axes(self, part: str, count: int) -> tuple[Axis, Axis]:
        """Outputs and inputs of a matrix; one that reads the residual stream reads ``count``
        vectors of it."""
        network, is_attention = self.network, part.startswith("attn")
        own = dense_of(network.source.layers[0]).intermediate_size
        features = torch.arange(own), network.sizes.intermediate_size
        written, read = network.hidden.written, network.hidden.read(count)
        if part == _FC:
            return written, read
        if part in _WRITE:
            return written, network.heads(True, True) if is_attention else Axis.at(*features, True)
        rows = network.heads(part == "attn.q.weight") if is_attention else Axis.at(*features)
        return rows, read


def _require_plain(config: ModelConfig) -> None:
    """Raise ConfigError for a decoder with parts whose function would change."""
    spec = config.layers.specs[0]
    own, dense, heads = attention_of(spec), dense_of(spec), HeadSpec(tied=config.head.tied)
    kept = ("num_heads", "num_kv_heads", "head_dim", "rope", "rotary_dim", "interleaved", "scale")
    mixer = AttentionSpec(**{name: getattr(own, name) for name in (*kept, "cache_dtype")})
    ffn = DenseSpec(dense.intermediate_size, dense.activation, dense.gated)
    layer = LayerSpec(mixer, ffn, NormSpec(spec.norm.eps))
    layers, norm = Layers.repeat(layer, config.num_layers), NormSpec(config.norm.eps)
    plain = replace(
        config, layers=layers, norm=norm, embedding=EmbeddingSpec(), head=heads, storage=None
    )
    if config != plain:
        raise ConfigError(
            f"a {config.architecture} with parts of its own cannot be synthetic; dense decoders "
            "without biases, norms of heads and windows can"
        )
