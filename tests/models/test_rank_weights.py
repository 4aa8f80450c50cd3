"""What ranks read of a checkpoint: together all of it, each weight cut along one side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import pytest
import torch
from torch import Tensor

from trtspec.config.embedding_spec import HeadSpec
from trtspec.config.feed_forwards.experts import ExpertsSpec
from trtspec.config.layer import Layers
from trtspec.config.layer_tensors import model_tensors
from trtspec.config.mixers.gated_delta import GatedDeltaSpec
from trtspec.config.model import ModelConfig
from trtspec.config.quantised import QuantisedTensor
from trtspec.errors import CheckpointError, ConfigError
from trtspec.formats.stored import read_tensor
from trtspec.models.rank_weights import RankWeights

from ..tiny_config import changed, tiny_config

PLAIN = tiny_config("LlamaForCausalLM", 70, 64, 96, 2, 4, 2, 16, 1e-5, 64)
CONFIG = changed(PLAIN, bias=True, qk_norm=True)
Q, OUT, DOWN = (f"layers.0.{name}.weight" for name in ("attn.q", "attn.o", "mlp.down"))


@dataclass(frozen=True)
class Stored:
    """A checkpoint."""

    config: ModelConfig
    tensors: dict[str, Any]


def checkpoint(config: ModelConfig) -> Stored:
    made = torch.Generator().manual_seed(5)
    shapes = model_tensors(config).items()
    return Stored(config, {name: torch.randn(shape, generator=made) for name, shape in shapes})


def parts(stored: Stored, ranks: int, name: str, by_expert: bool = False) -> list[Any]:
    own = stored.config.sharded(ranks, by_expert)
    return [RankWeights(stored, own, rank).tensors[name] for rank in range(ranks)]


@pytest.mark.parametrize("ranks", [2, 4])
def test_each_tensor_has_the_shape_that_a_rank_asks_for(ranks: int) -> None:
    stored = checkpoint(CONFIG)
    own = CONFIG.sharded(ranks)
    for rank in range(ranks):
        tensors = RankWeights(stored, own, rank).tensors
        for name, shape in model_tensors(own).items():
            assert tensors[name].shape == shape, name


def test_outputs_and_inputs_are_cut_in_order() -> None:
    stored = checkpoint(CONFIG)
    for name, dim in ((Q, 0), (OUT, 1), ("layers.1.mlp.gate.weight", 0), (DOWN, 1)):
        assert torch.equal(torch.cat(parts(stored, 2, name), dim), stored.tensors[name]), name
    whole = stored.tensors["layers.0.attn.q.bias"]
    assert torch.equal(torch.cat(parts(stored, 2, "layers.0.attn.q.bias")), whole)
    for norm in ("layers.0.input_norm.weight", "layers.0.attn.k_norm.weight"):
        assert all(torch.equal(part, stored.tensors[norm]) for part in parts(stored, 2, norm))


def test_a_head_of_keys_is_at_several_ranks_where_there_are_fewer() -> None:
    stored = checkpoint(CONFIG)
    first, second = stored.tensors["layers.0.attn.k.weight"].split(16)
    found = parts(stored, 4, "layers.0.attn.k.weight")
    expected = (first, first, second, second)
    assert all(torch.equal(*pair) for pair in zip(found, expected, strict=True))


@pytest.mark.parametrize("name", ["layers.0.attn.o.bias", "layers.1.mlp.down.bias"])
def test_a_bias_behind_a_sum_is_added_once(name: str) -> None:
    stored = checkpoint(CONFIG)
    assert torch.equal(torch.stack(parts(stored, 4, name)).sum(0), stored.tensors[name])


@pytest.mark.parametrize(("vocab", "ranks"), [(70, 2), (70, 4), (7, 4), (3, 4)])
def test_rows_of_the_vocabulary(vocab: int, ranks: int) -> None:
    """In order, the last one again where they do not divide; also of few tokens."""
    stored = checkpoint(replace(PLAIN, vocab_size=vocab))
    whole = stored.tensors["head.weight"]
    assert torch.equal(torch.cat(parts(stored, ranks, "head.weight"))[:vocab], whole)
    assert [int(rank) for rank in parts(stored, ranks, "rank")] == [*range(ranks)]


def test_a_tied_head_and_its_bias() -> None:
    stored = checkpoint(replace(PLAIN, head=HeadSpec(tied=True, bias=True)))
    assert torch.equal(torch.cat(parts(stored, 2, "embed.weight")), stored.tensors["embed.weight"])
    found = parts(stored, 2, "head.bias")
    assert all(torch.equal(part, stored.tensors["head.bias"]) for part in found)


def quantised(config: ModelConfig, name: str, groups: int, **more: Tensor) -> Stored:
    """A checkpoint, one of whose weights is quantised."""
    stored = checkpoint(config)
    rows, columns = stored.tensors[name].shape
    made = torch.Generator().manual_seed(6)
    values = torch.randint(-8, 8, (rows, columns), generator=made).to(torch.int8)
    scales = torch.rand((rows, groups), generator=made)
    stored.tensors[name] = QuantisedTensor(values, scales, **more)
    return stored


@pytest.mark.parametrize(("name", "dim", "groups"), [(Q, 0, 4), (OUT, 1, 4), (OUT, 1, 1)])
def test_values_are_cut_with_their_scales(name: str, dim: int, groups: int) -> None:
    factors = torch.arange(64.0)  # of the inputs
    minima = torch.rand(64, groups)
    stored = quantised(PLAIN, name, groups, input_scales=factors, minima=minima)
    whole = stored.tensors[name].floats()
    assert torch.equal(torch.cat([p.floats() for p in parts(stored, 2, name)], dim), whole)
    ranks = (RankWeights(stored, PLAIN.sharded(2), rank).tensors for rank in range(2))
    assert torch.equal(torch.cat([read_tensor(each, name) for each in ranks], dim), whole)


def test_what_groups_and_orders_do_not_allow_is_refused() -> None:
    with pytest.raises(CheckpointError, match="groups of 32 inputs do not divide the 48 inputs"):
        parts(quantised(PLAIN, DOWN, 3), 2, DOWN)
    stored = quantised(PLAIN, OUT, 4, permutation=torch.arange(64, dtype=torch.int32))
    words = r"64 inputs in an order of their own \(act-order\), of which a rank would have 32"
    with pytest.raises(CheckpointError, match=words):
        parts(stored, 2, OUT)


@pytest.mark.parametrize("tiled", [False, True])
def test_value_heads_go_where_their_key_heads_go(tiled: bool) -> None:
    """Of the gated delta rule, whose q, k and v lie side by side; in tiles value head h belongs to
    key head h modulo their number."""
    mixer = GatedDeltaSpec(4, 8, 16, 8, 4, PLAIN.norm, tiled=tiled)
    stored = checkpoint(
        replace(PLAIN, layers=Layers.of([replace(PLAIN.layers[0], mixer=mixer), PLAIN.layers[1]]))
    )
    owners = torch.arange(8) % 4 if tiled else torch.arange(8) // 2
    whole = stored.tensors["layers.0.attn.qkv.weight"]
    q, k, v = whole.split([64, 64, 64])
    out = stored.tensors["layers.0.attn.out.weight"].unflatten(1, (8, 8))
    for rank in range(2):
        here = owners // 2 == rank
        keys = slice(32 * rank, 32 * (rank + 1))
        values = v.unflatten(0, (8, 8))[here].flatten(0, 1)
        found = parts(stored, 2, "layers.0.attn.qkv.weight")[rank]
        assert torch.equal(found, torch.cat([q[keys], k[keys], values]))
        found = parts(stored, 2, "layers.0.attn.out.weight")[rank]
        assert torch.equal(found, out[:, here].flatten(1))
        a_log = stored.tensors["layers.0.attn.a_log"]
        assert torch.equal(parts(stored, 2, "layers.0.attn.a_log")[rank], a_log[here])


def experts(num_experts: int) -> ModelConfig:
    ffn = ExpertsSpec(num_experts, 2, 32, shared_size=48, bias=True)
    layers = [replace(PLAIN.layers[0], ffn=ffn), PLAIN.layers[1]]
    return replace(PLAIN, layers=Layers.of(layers))


def test_whole_experts_are_shared_out_in_order() -> None:
    stored, place = checkpoint(experts(6)), "layers.0.mlp.experts"
    for part in ("gate.weight", "down.bias"):
        for own in range(3):
            found = parts(stored, 2, f"{place}.{own}.{part}", by_expert=True)
            wanted = [stored.tensors[f"{place}.{expert}.{part}"] for expert in (own, own + 3)]
            assert all(torch.equal(*pair) for pair in zip(found, wanted, strict=True))
    starts = parts(stored, 2, "layers.0.mlp.first_expert", by_expert=True)
    assert [int(start) for start in starts] == [0, 3]
    shared = parts(stored, 2, "layers.0.mlp.shared.down.weight", by_expert=True)
    whole = stored.tensors["layers.0.mlp.shared.down.weight"]
    assert torch.equal(torch.cat(shared, 1), whole)


def test_experts_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ConfigError, match="num_experts is 6, which tensor_parallel_size 4"):
        experts(6).sharded(4, by_expert=True)
