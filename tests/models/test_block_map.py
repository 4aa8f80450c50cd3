"""What a layer's spec says of its tensors, caches and costs is what its block has."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from trtspec.config.cache_buffer import CacheBuffer
from trtspec.config.embedding_spec import EmbeddingSpec, PerLayerSpec
from trtspec.config.feed_forwards.dense import DenseSpec
from trtspec.config.feed_forwards.experts import ExpertsSpec
from trtspec.config.kv import EIGHT_BITS
from trtspec.config.layer import Layers, LayerSpec
from trtspec.config.mixers.gated_delta import GatedDeltaSpec
from trtspec.config.mixers.latent_attention import LatentAttentionSpec
from trtspec.config.mixers.mamba2 import Mamba2Spec
from trtspec.config.model import ModelConfig
from trtspec.config.norm_spec import NormSpec
from trtspec.config.storage import WeightStorage
from trtspec.errors import ConfigError
from trtspec.formats.network_formats import NetworkFormats
from trtspec.formats.quantised import QuantisedFormat
from trtspec.formats.registry import IN_PANELS, IN_ROWS
from trtspec.models.block import Kernels
from trtspec.models.block_map import (
    missing_blocks,
    require_blocks,
    require_kernels,
    without_kernels,
)
from trtspec.models.causal_lm import CausalLM, new_caches, new_slot_caches
from trtspec.models.feed_forwards.experts import ExpertLinear
from trtspec.models.layer_facts import (
    Matrix,
    cache_places,
    cache_row_bytes,
    decoder_caches,
    decoder_facts,
    decoder_matrices,
    layer_facts,
    matrix_bytes,
    pass_bytes,
)
from trtspec.models.linear import Linear
from trtspec.models.mixers.latent_attention import HeadMatrices

from ..tiny_config import changed, tiny_config

CONFIG = tiny_config("LlamaForCausalLM", 70, 16, 24, 2, 4, 2, 8, 1e-5, 64)
NORM = NormSpec(1e-5)
MAMBA = Mamba2Spec(4, 8, 16, 2, 4, NORM)
WIDER = CONFIG.layers[0].with_mixer(head_dim=4, num_kv_heads=1, window=5)
MIXED = replace(
    CONFIG, layers=Layers.of([WIDER, changed(CONFIG, qk_norm=True, bias=True).layers[0]])
)
# Layers 2 and 3 read the caches of layers 0 and 1; those of layer 1 are its keys alone.
KEYS = changed(CONFIG, qk_norm=True).layers[0].with_mixer(values_are_keys=True, v_norm=NORM)
SHARED = replace(
    CONFIG,
    layers=Layers.of(
        layer.with_per_layer(6, "gelu_tanh").with_output_scale()
        for layer in (WIDER, KEYS, WIDER.with_mixer(kv_from=0), KEYS.with_mixer(kv_from=1))
    ),
    embedding=EmbeddingSpec(2.0, PerLayerSpec(6, NORM)),
)

MIXTURE = replace(
    CONFIG.layers[0],
    ffn=ExpertsSpec(
        5, 2, 12, "sigmoid", choice_bias=True, bias=True, shared_size=20, shared_gate=True
    ),
)
MIXTURES = replace(CONFIG, layers=Layers.of([CONFIG.layers[0], MIXTURE]))

LATENT = LatentAttentionSpec(4, 16, 8, 6, 10, NORM, q_rank=12, bias=True, output_bias=True)
LATENTS = replace(
    CONFIG,
    layers=Layers.of(
        replace(CONFIG.layers[0], mixer=mixer) for mixer in (LATENT, replace(LATENT, q_rank=None))
    ),
)
HYBRID = replace(CONFIG, layers=Layers.of([CONFIG.layers[0], replace(MIXTURE, mixer=MAMBA)]))


@pytest.mark.parametrize(
    "config",
    [CONFIG, changed(CONFIG, bias=True, qk_norm=True), MIXED, MIXTURES, LATENTS, SHARED, HYBRID],
)
def test_facts_are_those_of_the_block(config: ModelConfig) -> None:
    model = CausalLM(config, torch.float32)
    for facts, layer in zip(decoder_facts(config), model.layers, strict=True):
        linears = [m for m in layer.modules() if isinstance(m, Linear)]
        experts = [m for m in layer.modules() if isinstance(m, ExpertLinear)]
        read, held = Counter[int](), sum(buffer.numel() for buffer in layer.buffers())
        padding = sum(m.weights["packed"].numel() - m.out_features * m.in_features for m in linears)
        for each in experts:
            padding += each.weights["packed"].numel()
            padding -= each.num_experts * each.out_features * each.in_features
        for matrix in facts.matrices:
            read[matrix.inputs] += matrix.outputs
            assert f"{matrix.name}.weight" in facts.tensors
        for linear in linears:
            read[linear.in_features] -= linear.out_features
        ups = [m for m in layer.modules() if isinstance(m, HeadMatrices)]
        for up in ups:
            read[LATENT.kv_rank] -= (up.k_up.numel() + up.v_up.numel()) // LATENT.kv_rank
        assert not any(read.values())
        shapes = [torch.Size(shape).numel() for shape in facts.tensors.values()]
        assert sum(shapes) == held - padding
        of_heads = sum(buffer.numel() for up in ups for buffer in up.buffers())
        operations = sum(m.out_features * m.in_features for m in linears) + of_heads
        chosen = 2 * sum(m.out_features * m.in_features for m in experts)
        assert facts.operations == operations + chosen
        everything = operations + sum(
            m.num_experts * m.out_features * m.in_features for m in experts
        )
        assert facts.bytes(IN_PANELS, torch.bfloat16) == 2 * everything
        if ups:  # what they hold stays in floats
            eight = integers(WeightStorage(8))
            rounded = [
                eight.layers.bytes(m.out_features, m.in_features, torch.float32) for m in linears
            ]
            assert facts.bytes(eight, torch.float32) == sum(rounded) + 4 * of_heads


def test_a_pass_reads_the_experts_that_its_rows_choose() -> None:
    reads = decoder_matrices(MIXTURES)
    one = 2 * 3 * 12 * 16  # bytes of an expert
    found = pass_bytes(reads, IN_PANELS, torch.bfloat16, "cpu")
    assert found.mixtures == ((5, 2, one),)
    assert found.always + 5 * one == matrix_bytes(reads, IN_PANELS, torch.bfloat16)
    assert found.expected(1) == found.always + 2 * one
    # Of two rows: 4 experts, less those that both chose.
    assert found.of_experts(2) == pytest.approx((4 - 2 * 2 / 5) * one, abs=1)
    assert found.expected(100) == found.always + 5 * one
    whole = pass_bytes(reads, IN_ROWS, torch.bfloat16, "cpu")
    assert whole.expected(1) == whole.always == found.always + 5 * one
    assert pass_bytes(reads, IN_ROWS, torch.bfloat16, "cuda") == found


def test_bytes_are_exact() -> None:
    """Scales included, also where the last group of inputs is shorter."""
    facts = layer_facts(CONFIG.layers[0], 16)
    count = facts.operations
    outputs = sum(each.outputs for each in facts.matrices)
    for weights in (IN_PANELS, IN_ROWS):
        assert facts.bytes(weights, torch.bfloat16) == 2 * count
    whole, grouped = (integers(WeightStorage(8, group)) for group in (0, 32))
    assert facts.bytes(whole, torch.bfloat16) == count + 4 * outputs
    scales = sum(4 * each.outputs * -(-each.inputs // 32) for each in facts.matrices)
    assert facts.bytes(grouped, torch.bfloat16) == count + scales


def test_a_head_may_have_a_format_of_its_own() -> None:
    """A draft's own, or the target's, which it borrows."""
    eight, four = (integers(WeightStorage(bits)).layers for bits in (8, 4))
    formats = NetworkFormats(IN_PANELS.layers, eight, four)
    layer, head, borrowed = Matrix(8, 32, "fc"), Matrix(8, 32, "head", True), Matrix(8, 32)
    sizes = [matrix_bytes([each], formats, torch.bfloat16) for each in (layer, head, borrowed)]
    assert sizes == [2 * 8 * 32, 8 * 32 + 4 * 8, 8 * 32 // 2 + 4 * 8]


def integers(storage: WeightStorage) -> NetworkFormats:
    return NetworkFormats.uniform(QuantisedFormat(storage))


NARROW = CacheBuffer("k", 1, 4), CacheBuffer("v", 1, 4)
WIDE = CacheBuffer("k", 2, 8), CacheBuffer("v", 2, 8)


def test_layers_may_differ_in_their_caches() -> None:
    assert [facts.buffers for facts in decoder_facts(MIXED)] == [NARROW, WIDE]
    assert [facts.window for facts in decoder_facts(MIXED)] == [5, 0]
    assert cache_row_bytes(MIXED, torch.bfloat16, "paged") == 2 * 2 * (1 * 4 + 2 * 8)
    narrow, wide = new_caches(MIXED, 3, 16, torch.float32)
    assert [tuple(buffer.shape) for buffer in narrow] == [(3, 16, 1, 4)] * 2
    assert [tuple(buffer.shape) for buffer in wide] == [(3, 16, 2, 8)] * 2
    assert cache_row_bytes(LATENTS, torch.float32, "paged") == 4 * 2 * (16 + 6)  # of two layers
    for cache in new_caches(LATENTS, 3, 4, torch.float32):
        assert [tuple(buffer.shape) for buffer in cache] == [(3, 4, 1, 16), (3, 4, 1, 6)]
    slots = new_slot_caches(MIXED, 3, 16, torch.float32)[1]
    assert [tuple(buffer.shape) for buffer in slots] == [(3, 2, 16, 8)] * 2


def test_readers_have_no_cache() -> None:
    assert [facts.buffers for facts in decoder_facts(SHARED)][2:] == [(), ()]
    assert decoder_caches(SHARED) == [NARROW, WIDE]
    assert cache_places(SHARED) == [0, 1, 0, 1]
    shared, mixed = (cache_row_bytes(each, torch.float32, "paged") for each in (SHARED, MIXED))
    assert shared == mixed
    model = CausalLM(SHARED, torch.float32)
    matrices = [read for read in CausalLM.matrices(SHARED) if isinstance(read, Matrix)]
    assert Matrix(4 * 6, 16, "per_layer.projection") in matrices
    read = sum(m.out_features * m.in_features for m in model.modules() if isinstance(m, Linear))
    assert read == sum(each.outputs * each.inputs for each in matrices)
    # A vector of one number would be a constant of compiled graphs, not a weight.
    assert dict(model.named_buffers())["layers.0.output_scale"].shape == (1, 1)


NOT_BUILT: list[tuple[dict[str, Any], str]] = [
    ({"mixer": replace(MAMBA, norm=NormSpec(1e-5, one_plus=True))}, "Mamba-2 with another norm"),
    ({"ffn": ExpertsSpec(8, 2, 12, gated=False)}, "experts without a gate"),
    ({"ffn": ExpertsSpec(8, 2, 12, activation="gelu")}, "experts with the activation gelu"),
    ({"ffn": ExpertsSpec(8, 2, 12, beside=DenseSpec(8))}, "a dense part beside experts"),
    ({"ffn": None}, "layers without feed-forward"),
    ({"parallel": True, "output_scale": True}, "attention and feed-forward in parallel with per-l"),
    ({"parallel": True, "residual_scale": 0.5}, "attention and feed-forward in parallel with"),
]
NOT_BUILT_ATTENTION: list[tuple[dict[str, Any], str]] = [
    ({"qk_norm": NORM, "qk_norm_over": "own"}, "RMS norms of queries and keys with weights for"),
]


def check_refused(config: ModelConfig, words: str) -> None:
    (missing,) = missing_blocks(config)
    assert missing.startswith(words)
    with pytest.raises(ConfigError) as refusal:
        require_blocks(config)
    assert f"LlamaForCausalLM has {missing}, which this version does not run" in str(refusal.value)
    with pytest.raises(ConfigError, match="which this version does not run"):
        CausalLM(config, torch.float32)


@pytest.mark.parametrize(("fields", "words"), NOT_BUILT)
def test_layers_without_a_block(fields: dict[str, Any], words: str) -> None:
    refused_behind(replace(CONFIG.layers[0], **fields), words)


@pytest.mark.parametrize(("fields", "words"), NOT_BUILT_ATTENTION)
def test_attention_without_a_block(fields: dict[str, Any], words: str) -> None:
    refused_behind(CONFIG.layers[0].with_mixer(**fields), words)


def refused_behind(layer: LayerSpec, words: str) -> None:
    """In whatever layer it stands."""
    check_refused(replace(CONFIG, layers=Layers.of([CONFIG.layers[0], layer])), words)
    with pytest.raises(ConfigError, match=r"a layer has .* which this version does not run"):
        layer_facts(layer, 16)


def test_devices_without_kernels() -> None:
    require_kernels(MIXED, "cuda")
    wide, sinks = (
        replace(CONFIG, layers=Layers.of([CONFIG.layers[0].with_mixer(**fields)]))
        for fields in ({"head_dim": 512}, {"sinks": True})
    )
    delta = replace(CONFIG.layers[0], mixer=GatedDeltaSpec(2, 4, 8, 8, 4, NORM))
    states = replace(CONFIG, layers=Layers.of([CONFIG.layers[0], delta]))
    refused = {
        "latent attention, for which cuda has no kernel": LATENTS,
        "mixtures of experts, for which cuda has no kernel": MIXTURES,
        "attention sinks, for which cuda has no kernel": sinks,
        r"heads of 512 elements \(up to 256\), for which cuda has no kernel": wide,
    }
    for words, config in refused.items():
        require_kernels(config, "cpu")
        with pytest.raises(ConfigError, match=words):
            require_kernels(config, "cuda")
    require_kernels(states, "cuda")
    assert GatedDeltaSpec.words in without_kernels(states, Kernels.PLUGINS)
    assert Mamba2Spec.words in without_kernels(HYBRID, Kernels.PLUGINS)
    assert Mamba2Spec.words not in without_kernels(HYBRID, Kernels.CUDA)
    eight_bits = CONFIG.with_caches(EIGHT_BITS)
    require_kernels(eight_bits, "cuda")
    assert "K/V in int8" in without_kernels(eight_bits, Kernels.PLUGINS)


def test_what_is_built_is_not_refused() -> None:
    unturned = replace(CONFIG, layers=Layers.of([CONFIG.layers[0].with_mixer(rope=None)]))
    tied = changed(CONFIG, tied=True, theta=5e5)
    for config in (CONFIG, MIXED, MIXTURES, LATENTS, SHARED, HYBRID, unturned, tied):
        assert missing_blocks(config) == []
        require_blocks(config)
    scaled = replace(CONFIG, layers=Layers.of([CONFIG.layers[0].with_mixer(scale=0.25)]))
    scoring = CausalLM(scaled, torch.float32).layers[0].attn.scoring  # type: ignore[union-attr]
    assert scoring.scale == 0.25
