"""Layers and their specs: checked, written once where they are equal, and read back equal."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trtspec.config.embedding_spec import EmbeddingSpec, HeadSpec, PerLayerSpec
from trtspec.config.feed_forwards.dense import DenseSpec
from trtspec.config.feed_forwards.experts import ExpertsSpec
from trtspec.config.layer import Layers, LayerSpec, PerLayerInput
from trtspec.config.mixers.attention import AttentionSpec
from trtspec.config.mixers.gated_delta import GatedDeltaSpec
from trtspec.config.mixers.latent_attention import LatentAttentionSpec
from trtspec.config.mixers.mamba2 import Mamba2Spec
from trtspec.config.model import ModelConfig
from trtspec.config.norm_spec import NormSpec
from trtspec.config.rope import RopeConfig
from trtspec.errors import ConfigError

NORM = NormSpec(1e-6, one_plus=True)
PLAIN = LayerSpec(
    AttentionSpec(4, 2, 8), DenseSpec(24), NORM, per_layer=PerLayerInput(8, "gelu_tanh")
)
MIXERS = (
    AttentionSpec(4, 2, 8, window=16, rope=1, rotary_dim=4, interleaved=True, qk_norm=NORM),
    AttentionSpec(4, 1, 8, rope=None, scale=0.5, soft_cap=50.0, sinks=True, gated=True, bias=True),
    AttentionSpec(4, 4, 9, rope=None, qk_norm=NORM, qk_norm_over="all", values_are_keys=True),
    LatentAttentionSpec(4, 16, 8, 4, 8, NORM, q_rank=12),
    GatedDeltaSpec(2, 4, 8, 8, 4, NORM),
    Mamba2Spec(4, 8, 16, 2, 4, NORM),
)
PARTS = (
    DenseSpec(24, "gelu_tanh", gated=False, bias=True),
    ExpertsSpec(8, 2, 12, "sigmoid", num_groups=4, top_groups=2, shared_size=12, shared_gate=True),
    ExpertsSpec(4, 1, 12, "softmax_of_chosen", beside=DenseSpec(24)),
    None,
)
SPECS = [
    *(replace(PLAIN, mixer=mixer, norm_place="both", residual_scale=0.5) for mixer in MIXERS),
    *(replace(PLAIN, ffn=part, norm=NormSpec(1e-5, "layer", bias=True)) for part in PARTS),
]


def model(layers: Layers) -> ModelConfig:
    return ModelConfig(
        "ToyForCausalLM",
        100,
        32,
        layers,
        NORM,
        64,
        ropes=(RopeConfig(), RopeConfig(1e6)),
        embedding=EmbeddingSpec(5.5, PerLayerSpec(8, NORM)),
        head=HeadSpec(True, 0.1, 30.0),
    )


@given(st.lists(st.sampled_from(SPECS), min_size=1, max_size=12))
@settings(max_examples=40, deadline=None)
def test_round_trip(listed: list[LayerSpec]) -> None:
    config = model(Layers.of(listed))
    assert list(config.layers) == listed and config.num_layers == len(listed)
    assert [config.layers[i] for i in range(len(listed))] == listed
    text = json.dumps(config.to_dict())
    again = ModelConfig.from_dict(json.loads(text))
    assert again == config and hash(again) == hash(config)
    assert len(config.layers.specs) == len(set(listed)) == text.count('"mixer"')
    assert list(config.layers.times(2)) == listed * 2
    source = config.layers[0].mixer
    if isinstance(source, AttentionSpec):
        reader = replace(config.layers[0], mixer=replace(source, kv_from=0))
        longer = replace(config, layers=Layers.of([*listed, reader]))
        assert ModelConfig.from_dict(json.loads(json.dumps(longer.to_dict()))) == longer


def test_equal_layers_are_written_once() -> None:
    few, many = (model(Layers.repeat(PLAIN, count)) for count in (2, 80))
    assert many.layers == Layers.of([PLAIN] * 80)
    assert len(json.dumps(many.to_dict())) - len(json.dumps(few.to_dict())) == 78 * len("0, ")


BAD_LAYERS: list[tuple[tuple[Any, Any], str]] = [
    (((), ()), "num_layers is 0; it must be at least 1"),
    (((PLAIN,), (0, 1)), r"uses the specs \[0, 1\]; it must use all of 1"),
    (((PLAIN, SPECS[0]), (1, 0)), r"uses the specs \[1, 0\].*in the order of their first layer"),
    (((PLAIN, SPECS[0]), (0,)), "must use all of 2"),
    (((PLAIN, PLAIN), (0, 1)), "2 specs of layers are not all different"),
]


@pytest.mark.parametrize(("fields", "message"), BAD_LAYERS)
def test_layers_have_one_form(fields: tuple[Any, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Layers(*fields)


@pytest.mark.parametrize(
    ("spec", "changes", "message"),
    [
        (MIXERS[0], {"num_heads": 0}, "num_heads is 0; it must be at least 1"),
        (MIXERS[0], {"num_kv_heads": 3}, "num_heads 4 is not a multiple of num_kv_heads 3"),
        (MIXERS[0], {"head_dim": 5, "rotary_dim": None}, "head_dim is 5; rotary embedding needs"),
        (MIXERS[0], {"rotary_dim": 10}, "rotary_dim is 10; .* from 2 to head_dim 8"),
        (MIXERS[0], {"rope": None}, "rotary_dim is 4; with a rope table"),
        (MIXERS[0], {"window": -1}, "sliding_window is -1; it must be at least 1"),
        (MIXERS[0], {"soft_cap": 0}, "soft_cap is 0.0; it must be above 0"),
        (MIXERS[3], {"kv_rank": 0}, "kv_rank is 0; it must be at least 1"),
        (MIXERS[3], {"rope_dim": 3}, "rope_dim is 3; rotary embedding needs an even number"),
        (MIXERS[4], {"num_value_heads": 3}, "num_value_heads 3 is not a multiple of .* 2"),
        (MIXERS[5], {"num_groups": 3}, "num_heads 4 is not a multiple of num_groups 3"),
        (PARTS[0], {"intermediate_size": 0}, "intermediate_size is 0; it must be at least 1"),
        (PARTS[0], {"activation": "tanh"}, "activation 'tanh' is not supported; supported: silu"),
        (PARTS[1], {"top_k": 9}, r"top_k is 9; there are 8 \(num_experts\)"),
        (PARTS[1], {"num_groups": 3}, "num_experts 8 is not a multiple of num_groups 3"),
        (PARTS[1], {"shared_size": 0}, "shared_gate is the gate of a shared expert"),
        (NORM, {"eps": -1.0}, "eps of a norm is -1.0; it must not be negative"),
        (NORM, {"bias": True}, "a norm of kind rms has no bias"),
        (HeadSpec(), {"scale": 0.0}, "scale of the logits is 0.0; it must be above 0"),
        (PerLayerSpec(8, NORM), {"size": 0}, "size of a per-layer embedding is 0; it must be"),
        (PerLayerSpec(8, NORM), {"scale": 0.0}, "scale of a per-layer embedding is 0.0; it must"),
        (PLAIN.per_layer, {"activation": "tanh"}, "activation 'tanh' is not supported"),
    ],
)
def test_refused(spec: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        replace(spec, **changes)


@pytest.mark.parametrize(
    ("layers", "message"),
    [
        ([PLAIN.with_mixer(rope=2)], "layer 0 names rope table 2, there are 2"),
        ([PLAIN, PLAIN.with_mixer(kv_from=1)], "layer 1 reads K and V of layer 1 .* the 1 before"),
        ([PLAIN, PLAIN.with_mixer(kv_from=0, num_kv_heads=1)], "layer 0 .* own with 1 x 8"),
        ([SPECS[3], PLAIN.with_mixer(kv_from=0)], "none of its own"),
        ([PLAIN, PLAIN.with_mixer(kv_from=0, window=4)], "own with 2 x 8 and window 4"),
        ([PLAIN.with_per_layer(4, "silu")], "layer 0 reads .* 4 elements, the embedding has 8"),
    ],
)
def test_what_layers_name_outside_themselves(layers: list[LayerSpec], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        model(Layers.of(layers))


def test_a_fault_is_told_in_the_words_of_its_kind() -> None:
    data = json.loads(json.dumps(model(Layers.of(SPECS)).to_dict()))
    specs = data["layers"]["specs"]
    specs[3]["mixer"]["kv_rnk"] = 3
    with pytest.raises(ConfigError, match="LatentAttentionSpec: unknown option `kv_rnk`"):
        ModelConfig.from_dict(data)
    specs[3]["mixer"] = {"kind": "convolution"}
    with pytest.raises(ConfigError, match=r"is of kind 'convolution'; supported: attention, "):
        ModelConfig.from_dict(data)
