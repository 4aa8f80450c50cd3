"""The tensors of a checkpoint that a spec asks for, by internal names, as data.

A converter maps them to a family's own names, and the blocks of `trtspec.models` are filled from
them: what exists follows from the spec alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeAlias

from trtspec.config.feed_forwards.dense import DenseSpec
from trtspec.config.feed_forwards.experts import ExpertsSpec
from trtspec.config.layer import LayerSpec, Mixer
from trtspec.config.mixers.attention import AttentionSpec
from trtspec.config.mixers.latent_attention import LatentAttentionSpec
from trtspec.config.model import ModelConfig
from trtspec.config.norm_spec import NormSpec
from trtspec.errors import ConfigError

Shape: TypeAlias = tuple[int, ...]

EMBEDDING = "embed.weight"
HEAD = "head.weight"
HEAD_BIAS = "head.bias"
EXPERTS = "mlp.experts."
"""Behind a layer's name: what tensors of its experts begin with, before the expert's number."""
LATENT_UP = "attn.kv_b.weight"
"""Behind a layer's name: what makes keys and values of latents, which stays in floats."""
PER_LAYER = "per_layer."


def model_tensors(config: ModelConfig) -> dict[str, Shape]:
    """Shapes by name: ``embed.weight [V, H]``, those of each layer behind ``layers.{i}.``,
    ``norm.weight [H]`` (and ``norm.bias``) and, unless the head is tied, ``head.weight [V, H]``;
    ``head.bias [V]`` where there is one; ``V_d`` rows of both where the head is cut;
    with embeddings of P elements for every of L layers, ``per_layer.embed.weight [V, L * P]``,
    ``per_layer.projection.weight [L * P, H]`` and ``per_layer.norm.weight [P]``.

    Raises:
        ConfigError: see `layer_tensors`.
    """
    hidden = config.hidden_size
    tensors: dict[str, Shape] = {EMBEDDING: (config.vocab_size, hidden)}
    for index, spec in enumerate(config.layers):
        own = layer_tensors(spec, hidden)
        tensors |= {f"layers.{index}.{name}": shape for name, shape in own.items()}
    tensors |= _per_layer(config)
    tensors |= _norm("norm", config.norm, (hidden,))
    if not config.head.tied:
        tensors[HEAD] = (config.draft_vocab_size, hidden)
    if config.head.bias:
        tensors[HEAD_BIAS] = (config.draft_vocab_size,)
    return tensors


def layer_tensors(
    spec: LayerSpec, hidden: int, width: int | None = None, input_norm: bool = True
) -> dict[str, Shape]:
    """Shapes by name of one layer of a model of ``hidden`` elements a row. ``width``: of what q, k
    and v read, if it is another; ``input_norm``: whether a norm stands before the mixer.

    Raises:
        ConfigError: a part whose tensors have no names here.
    """
    mixer = _mixer(spec.mixer, hidden, width or hidden)
    if spec.ffn is None:
        raise _unnamed("a layer without feed-forward")
    before, after = spec.norm_place != "after", spec.norm_place != "before"
    norms = {
        "input_norm": before and input_norm,
        "attn_out_norm": after,
        "post_attention_norm": before and not spec.parallel,
        "mlp_out_norm": after,
    }
    tensors: dict[str, Shape] = {}
    for name, exists in norms.items():
        tensors |= _norm(name, spec.norm, (hidden,)) if exists else {}
    tensors |= dict(mixer)
    if isinstance(spec.ffn, ExpertsSpec):
        tensors |= dict(_experts(spec.ffn, hidden))
    else:
        tensors |= dict(_dense("mlp.", spec.ffn, hidden))
    if spec.per_layer is not None:
        tensors[PER_LAYER + "gate.weight"] = (spec.per_layer.size, hidden)
        tensors[PER_LAYER + "out.weight"] = (hidden, spec.per_layer.size)
        tensors |= _norm(PER_LAYER + "norm", spec.norm, (hidden,))
    if spec.output_scale:
        tensors["output_scale"] = (1,)
    return tensors


def _per_layer(config: ModelConfig) -> dict[str, Shape]:
    given = config.embedding.per_layer
    if given is None:
        return {}
    rows = config.num_layers * given.size
    tensors: dict[str, Shape] = {
        PER_LAYER + EMBEDDING: (given.rows or config.vocab_size, rows),
        PER_LAYER + "projection.weight": (rows, config.hidden_size),
    }
    return tensors | _norm(PER_LAYER + "norm", given.norm, (given.size,))


def _norm(name: str, spec: NormSpec, shape: Shape) -> dict[str, Shape]:
    parts = ("weight", "bias") if spec.bias else ("weight",)
    return dict.fromkeys((f"{name}.{part}" for part in parts), shape)


def _unnamed(what: str) -> ConfigError:
    return ConfigError(f"the tensors of {what} have no names in this version")


def _mixer(mixer: Mixer, hidden: int, width: int) -> Iterator[tuple[str, Shape]]:
    if isinstance(mixer, AttentionSpec):
        return _attention(mixer, hidden, width)
    if isinstance(mixer, LatentAttentionSpec):
        return _latent_attention(mixer, hidden, width)
    raise _unnamed(f"a mixer of kind {mixer.kind}")


def _attention(mixer: AttentionSpec, hidden: int, width: int) -> Iterator[tuple[str, Shape]]:
    queries, keys = mixer.num_heads * mixer.head_dim, mixer.num_kv_heads * mixer.head_dim
    rows = {"q": 2 * queries if mixer.gated else queries}
    if mixer.kv_from is None:
        rows |= {"k": keys} if mixer.values_are_keys else {"k": keys, "v": keys}
    for part, size in rows.items():
        yield f"attn.{part}.weight", (size, width)
        if mixer.bias:
            yield f"attn.{part}.bias", (size,)
    yield "attn.o.weight", (hidden, queries)
    if mixer.output_bias:
        yield "attn.o.bias", (hidden,)
    if mixer.sinks:
        yield "attn.sinks", (mixer.num_heads,)
    if mixer.qk_norm is not None:
        for part, heads in (("q", mixer.num_heads), ("k", mixer.num_kv_heads)):
            if part in rows:
                shape = qk_norm_shape(mixer, heads)
                yield from _norm(f"attn.{part}_norm", mixer.qk_norm, shape).items()


def qk_norm_shape(mixer: AttentionSpec, heads: int) -> Shape:
    """Of the weights of a norm over so many heads of queries or keys."""
    size = mixer.head_dim
    return {"head": (size,), "all": (heads * size,), "own": (heads, size)}[mixer.qk_norm_over]


def is_matrix(name: str, shape: Shape) -> bool:
    """Whether a tensor is one that rows are multiplied with; weights of norms may have two
    dimensions as well."""
    return len(shape) == 2 and not name.endswith(("_norm.weight", "_norm.bias"))


def _latent_attention(
    mixer: LatentAttentionSpec, hidden: int, width: int
) -> Iterator[tuple[str, Shape]]:
    queries = mixer.num_heads * mixer.query_dim
    down = {"kv_a": mixer.kv_rank + mixer.rope_dim}
    if mixer.q_rank is None:
        yield "attn.q.weight", (queries, width)
    else:
        down["q_a"] = mixer.q_rank
        yield from _norm("attn.q_a_norm", mixer.norm, (mixer.q_rank,)).items()
        yield "attn.q_b.weight", (queries, mixer.q_rank)
    for part, size in down.items():
        yield f"attn.{part}.weight", (size, width)
        if mixer.bias:
            yield f"attn.{part}.bias", (size,)
    yield from _norm("attn.kv_a_norm", mixer.norm, (mixer.kv_rank,)).items()
    of_heads = mixer.num_heads * (mixer.plain_dim + mixer.value_dim)
    yield LATENT_UP, (of_heads, mixer.kv_rank)
    yield "attn.o.weight", (hidden, mixer.num_heads * mixer.value_dim)
    if mixer.output_bias:
        yield "attn.o.bias", (hidden,)


def _dense(prefix: str, ffn: DenseSpec, hidden: int) -> Iterator[tuple[str, Shape]]:
    inner = ffn.intermediate_size
    for part in ("gate", "up") if ffn.gated else ("up",):
        yield f"{prefix}{part}.weight", (inner, hidden)
        if ffn.bias:
            yield f"{prefix}{part}.bias", (inner,)
    yield f"{prefix}down.weight", (hidden, inner)
    if ffn.bias:
        yield f"{prefix}down.bias", (hidden,)


def _experts(ffn: ExpertsSpec, hidden: int) -> Iterator[tuple[str, Shape]]:
    count = ffn.num_experts
    yield "mlp.router.scores.weight", (count, hidden)
    if ffn.router_bias:
        yield "mlp.router.scores.bias", (count,)
    if ffn.choice_bias:
        yield "mlp.router.choice_bias", (count,)
    if ffn.shared_size:
        yield from _dense("mlp.shared.", DenseSpec(ffn.shared_size), hidden)
    if ffn.shared_gate:
        yield "mlp.shared_gate.weight", (1, hidden)
    for expert in range(count):
        yield from _dense(f"{EXPERTS}{expert}.", ffn.expert, hidden)
