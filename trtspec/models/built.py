"""Names the parts of a model's specs that no block runs; they are refused before anything is
built."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from trtspec.config.attention_spec import AttentionSpec
from trtspec.config.ffn_spec import DenseSpec, ExpertsSpec
from trtspec.config.latent_attention_spec import LatentAttentionSpec
from trtspec.config.layer import FeedForward, LayerSpec, Mixer
from trtspec.config.model import ModelConfig
from trtspec.config.norm_spec import NormSpec
from trtspec.config.recurrent_spec import GatedDeltaSpec
from trtspec.errors import ConfigError


def missing_blocks(config: ModelConfig) -> list[str]:
    """The parts of a decoder that no block runs, in words; empty where blocks run all of it."""
    found = dict.fromkeys(part for spec in config.layers.specs for part in _of_layer(spec))
    return list(dict.fromkeys((*found, *_of_model(config))))


def require_blocks(config: ModelConfig) -> None:
    """Raises:
    ConfigError: no block runs a part of the decoder; all such parts are named.
    """
    _refuse(missing_blocks(config), config.architecture)


def attention_of(spec: LayerSpec) -> AttentionSpec:
    """The mixer of a layer that a block runs.

    Raises:
        ConfigError: see `require_layer`.
    """
    require_layer(spec)
    assert isinstance(spec.mixer, AttentionSpec), "other mixers were refused"
    return spec.mixer


def dense_of(spec: LayerSpec) -> DenseSpec:
    """The feed-forward part of a layer that a block runs.

    Raises:
        ConfigError: see `require_layer`.
    """
    require_layer(spec)
    assert isinstance(spec.ffn, DenseSpec), "other parts were refused"
    return spec.ffn


def require_layer(spec: LayerSpec) -> None:
    """Raises:
    ConfigError: no block runs a part of the layer; all such parts are named.
    """
    _refuse(_of_layer(spec), "a layer")


def _refuse(missing: Iterable[str], what: str) -> None:
    parts = list(missing)
    if parts:
        raise ConfigError(
            f"{what} has {', '.join(parts)}, which this version does not run; it runs attention "
            "with rotary embedding and dense SwiGLU, with RMS norms before both"
        )


def _of_model(config: ModelConfig) -> Iterator[str]:
    embedding, head = config.embedding, config.head
    yield from _of_norm(config.norm)
    if embedding.scale != 1:
        yield f"an embedding that is scaled (by {embedding.scale})"
    if embedding.per_layer_size:
        yield f"embeddings for every layer (of {embedding.per_layer_size} elements)"
    if head.scale != 1:
        yield f"logits that are scaled (by {head.scale})"
    if head.soft_cap is not None:
        yield f"a soft cap of the logits ({head.soft_cap})"
    if head.bias:
        yield "a head with a bias"


def _of_layer(spec: LayerSpec) -> Iterator[str]:
    yield from _of_mixer(spec.mixer)
    yield from _of_ffn(spec.ffn)
    yield from _of_norm(spec.norm)
    if spec.norm_place == "after":
        yield "norms behind attention and feed-forward"
    if spec.norm_place == "both":
        yield "norms before and behind attention and feed-forward"
    if spec.parallel:
        yield "attention and feed-forward in parallel"
    if spec.residual_scale != 1:
        yield f"residuals that are scaled (by {spec.residual_scale})"


def _of_mixer(mixer: Mixer) -> Iterator[str]:
    if not isinstance(mixer, AttentionSpec):
        if isinstance(mixer, LatentAttentionSpec):
            yield f"multi-head latent attention (MLA, a latent of {mixer.kv_rank} elements)"
        else:
            is_delta = isinstance(mixer, GatedDeltaSpec)
            yield "the gated delta rule (linear attention)" if is_delta else "Mamba-2"
        return
    if mixer.rope is None:
        yield "attention without rotary embedding"
    if mixer.rotary_dim not in (None, mixer.head_dim):
        yield f"rotary embedding of {mixer.rotary_dim} of {mixer.head_dim} elements of a head"
    if mixer.interleaved:
        yield "rotary embedding of neighbouring elements"
    if mixer.qk_norm is not None:
        if mixer.qk_norm_over == "all":
            yield "norms of queries and keys over all heads"
        yield from _of_norm(mixer.qk_norm)
    if mixer.soft_cap is not None:
        yield f"a soft cap of attention's scores ({mixer.soft_cap})"
    if mixer.sinks:
        yield "attention sinks"
    if mixer.gated:
        yield "gated attention"
    if mixer.values_are_keys:
        yield "attention whose values are its keys"
    if mixer.kv_from is not None:
        yield "layers that read K and V of an earlier one"


def _of_ffn(ffn: FeedForward | None) -> Iterator[str]:
    if ffn is None:
        yield "layers without feed-forward"
        return
    if isinstance(ffn, ExpertsSpec):
        yield f"a mixture of experts (MoE, {ffn.top_k} of {ffn.num_experts})"
        return
    if not ffn.gated:
        yield "a feed-forward part without a gate"
    if ffn.activation != "silu":
        yield f"the activation {ffn.activation}"


def _of_norm(norm: NormSpec) -> Iterator[str]:
    if norm.kind == "layer":
        yield "layer norms"
    if norm.one_plus:
        yield "norms that multiply by 1 + weight"
